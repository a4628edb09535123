"""Where code that nobody trusts is run."""
