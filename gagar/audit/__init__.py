"""The laws of a run, their findings, and the fold over the topics that checks them."""
