"""`gagar topics`: all that is done with the topics of a run as a whole."""
