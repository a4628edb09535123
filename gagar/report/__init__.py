"""The report of a run: summary, curves, examples, one HTML page."""
