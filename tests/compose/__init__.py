"""The compose files on a real Docker engine: built, started, scaled, killed, audited. `make compose-test`."""
