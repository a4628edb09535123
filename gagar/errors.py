"""Errors, by what the caller must do about them, and the exit codes that they end a process with.

Message form: `<what/id>: expected <x>, got <y>[; <what to do>]`, lower case, no full stop, configuration keys verbatim.
"""

EXIT_REFUSED = 2
"""Wrong usage or configuration, or a record that cannot be used: the same command fails again."""
EXIT_UNAVAILABLE = 4
"""Something outside is missing, down or busy: the same command may succeed later."""
EXIT_MACHINE = 5
"""This machine lacks something that no restart brings, such as room on a disk."""


class GagarError(Exception):
    """Base of every error that gagar raises on purpose; its text is meant for the user."""

    exit_code = EXIT_REFUSED
    """Of a process that it ends."""


class ConfigError(GagarError):
    """The run file, a task file or a checkpoint is wrong; the process exits with 2 before it connects anywhere."""


class ClusterRefusalError(ConfigError):
    """The cluster refuses for good what a client asks of it: a permission, a setting of its brokers, a version. No retry mends
    it; whoever runs the cluster does."""


class UnavailableError(GagarError):
    """Something outside (broker, sandbox, engine) is missing, down or busy; the stage runtime retries it."""

    exit_code = EXIT_UNAVAILABLE


class MachineError(GagarError):
    """This machine lacks something that no restart brings: room on a disk, a file system that takes writes."""

    exit_code = EXIT_MACHINE


class BadRecordError(GagarError):
    """A record that no retry can mend; the stage runtime moves it to `dead-letters`."""


class FencedError(GagarError):
    """A successor has taken over this process's place in the log: nothing of the open transaction is visible, nor will be."""

    exit_code = EXIT_UNAVAILABLE
