"""Graders: which of the passing patches of a group are better."""
