"""The process edge: the command, run files, processes, views."""
