"""Which tests stay with one worker."""

import pytest

from tests.spreading import group_of


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/unit/test_lane.py::test_a", "tests/unit/test_lane.py"),
        ("tests/unit/test_deaths.py::test_a[effect]", "tests/unit/test_deaths.py::test_a[effect]"),
        ("tests/broker/test_admin.py::test_a", "tests/broker/test_admin.py::test_a"),
        ("tests/broker/test_secured.py::test_a", "tests/broker/test_secured.py"),
        ("tests/broker/test_cluster.py::test_a[freeze]", "tests/broker/test_cluster.py"),
        ("tests/contract/test_effects.py::test_a[kafka]", "tests/contract/test_effects.py::test_a[kafka]"),
        ("tests/sandbox/test_agent.py::test_a", "sandbox"),
    ],
)
def test_tests_stay_with_their_file_unless_they_are_long(nodeid: str, group: str) -> None:
    assert group_of(nodeid) == group
