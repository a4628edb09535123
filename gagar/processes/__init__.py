"""Processes of this machine: supervision, orphan cleanup, locks, shutdown."""
