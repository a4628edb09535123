"""The in-memory transport: for tests, and for trying a stage out."""
