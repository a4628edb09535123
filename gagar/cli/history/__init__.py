"""Commands that tell the history of one thing from the log, and retry what was rejected."""
