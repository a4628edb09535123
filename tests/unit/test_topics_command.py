"""What `gagar topics plan` says beyond the changes."""

from pathlib import Path

from gagar.cli.topics.planning import allowances
from tests.runs import make_run


def test_the_partitions_tell_the_most_processes_of_each_stage_and_the_disk_that_tokens_take() -> None:
    run = make_run(Path("/nowhere"), "far:9092", num_partitions=16, replication_factor=3)
    assert allowances(run, 3) == [
        "kafka.num_partitions=16: at most 16 processes each of rollout-worker, verifier, gatherer, grader, "
        "advantage-publisher; 1 of sampler, learner; fixed once the run has topics",
        "kafka.token_retention_bytes=17179869184: at most 20.0 GiB of tokens on disk, times kafka.replication_factor=3",
    ]


def test_one_replica_on_several_brokers_is_warned_of() -> None:
    warned = "kafka.replication_factor=1 on {} brokers: one that is lost takes its partitions along; set {} before the topics"
    run = make_run(Path("/nowhere"), "far:9092")
    assert len(allowances(run, 1)) == 2
    assert allowances(run, 2)[-1].startswith(warned.format(2, 2))
    assert allowances(run, 5)[-1].startswith(warned.format(5, 3))
