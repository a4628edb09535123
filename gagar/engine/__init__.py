"""Engines: they sample tokens from the policy."""
