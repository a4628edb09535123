"""Commands below `gagar topics` that are more than a look at the topology."""
