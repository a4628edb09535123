"""The judgement of a patch: measures, and the facts that a verdict carries."""
