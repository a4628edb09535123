"""A part of a run in a file: groups with all that they refer to, carried to another log."""
