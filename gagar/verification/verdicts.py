"""What a verdict takes over from the trajectory that it is of."""

from gagar.records import Trajectory, Verdict
from gagar.stream.handlers import Delivery


def untested(delivery: Delivery[Trajectory], num_tests: int) -> Verdict:
    """The verdict of a trajectory of which no test has run yet, out of `num_tests`: failed, until something decides."""
    trajectory = delivery.record
    return Verdict(
        group_id=trajectory.group_id,
        sample_index=trajectory.sample_index,
        task_id=trajectory.task_id,
        purpose=trajectory.purpose,
        attempt=trajectory.attempt,
        trajectory=delivery.ref,
        status="failed",
        num_tests_expected=num_tests,
    )
