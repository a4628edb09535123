"""Which tests stay with one worker."""

import pytest

from tests.spreading import group_of


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/unit/test_lane.py::test_a", "tests/unit/test_lane.py"),
        ("tests/unit/test_deaths.py::test_a[effect]", "tests/unit/test_deaths.py::test_a[effect]"),
        ("tests/broker/test_admin.py::test_a", "tests/broker/test_admin.py::test_a"),
        ("tests/contract/test_effects.py::test_a[kafka]", "tests/contract/test_effects.py::test_a[kafka]"),
        ("tests/broker/test_kills.py::TestOwnBroker::test_a_stage_ends_in_time", "in_time"),
        ("tests/sandbox/test_agent.py::test_a", "sandbox"),
    ],
)
def test_tests_stay_with_their_file_unless_they_are_long_or_judge_time(nodeid: str, group: str) -> None:
    assert group_of(nodeid) == group
