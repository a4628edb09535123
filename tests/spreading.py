"""Which tests one worker keeps together when several run them.

Those of a file, whose fixtures are made once; all that need a sandbox, which is started once. Tests with a broker go to any
worker, and so do those of deaths, which are long; but for those of `OWN_BROKERS`.
"""

from typing import Any

OWN_BROKERS = ("tests/broker/test_cluster.py", "tests/broker/test_secured.py")
"""Files that start brokers of their own: one that is spread would start them in each worker."""


def make_scheduler(config: Any, log: Any) -> Any:
    """Of xdist. Its own groups, by a mark, are of no effect with pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = group_of
    return scheduler


def group_of(nodeid: str) -> str:
    """The name of a test's group. Example: `tests/unit/test_lane.py`."""
    path = nodeid.partition("::")[0]
    if path.startswith("tests/sandbox/"):
        return "sandbox"
    if path in OWN_BROKERS:
        return path
    is_alone = path.startswith(("tests/broker/", "tests/contract/")) or path.endswith("deaths.py")
    return nodeid if is_alone else path
