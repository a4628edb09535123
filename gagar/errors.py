"""Errors, by what the caller must do about them.

Message form: `<what/id>: expected <x>, got <y>[; <what to do>]`, lower case, no full stop, configuration keys verbatim.
"""

EXIT_REFUSED = 2
"""Exit code of a process that a GagarError ends."""


class GagarError(Exception):
    """Base of every error that gagar raises on purpose; its text is meant for the user."""


class ConfigError(GagarError):
    """The run file, a task file or a checkpoint is wrong; the process exits with 2 before it connects anywhere."""


class UnavailableError(GagarError):
    """Something outside (broker, sandbox, engine) is missing or down; retried by the stage runtime, exit 2 at the edge."""


class BadRecordError(GagarError):
    """A record that no retry can mend; the stage runtime moves it to `dead-letters`."""


class FencedError(GagarError):
    """A successor has taken over this process's place in the log: nothing of the open transaction is visible, nor will be."""
