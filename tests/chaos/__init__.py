"""The chaos suite: the whole stream on a real broker, first undisturbed, then under fire; `python -m tests.chaos --help`."""
