"""The learner as a whole, over a log in memory and real DeepSpeed: what it writes, and what a restart does again."""

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from consumers.learner.client import JournalClient
from consumers.learner.rank import Stop, train
from gagar.arrays import Tensor
from gagar.errors import ConfigError, FencedError, GagarError
from gagar.records import Outcome, PolicyVersion
from gagar.stream.handlers import Tombstone
from gagar.training.checkpoint import read_latest
from tests.learner import VOCAB, FakeJournal, FakeLog, make_model_directory, make_settings
from tests.toy_kinds import ToyLoss

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]


class Crash(Exception):
    """Thrown out of a commit, as a kill would."""


def run_until(
    root: Path, log: FakeLog, is_enough: Callable[[FakeLog], bool], *, is_crash: bool = False, **options: Any
) -> FakeJournal:
    """One life of a learner: until `is_enough`, then SIGTERM (or a crash between two calls)."""
    journal, stop = FakeJournal(log), Stop()

    def after_commit(outputs: list[Any]) -> None:
        if is_enough(log):
            if is_crash:
                raise Crash
            stop._event.set()

    journal.on_commit = after_commit
    guard = threading.Timer(60, stop._event.set)
    guard.start()
    try:
        train(make_settings(root, **options), partial(JournalClient, journal), stop)
    except Crash:
        pass
    finally:
        guard.cancel()
    return journal


def kinds(log: FakeLog) -> dict[str, str]:
    """group_id -> how it ended last."""
    return {outcome.group_id: f"{outcome.kind}/{outcome.reason}@{outcome.step}" for outcome in log.outcomes}


def steps_of(log: FakeLog, run_id: str) -> list[set[str]]:
    """Groups of each step of a run, in the order of the steps."""
    found: dict[int, set[str]] = {}
    for outcome in log.outcomes:
        if outcome.run_id == run_id and outcome.kind == "trained":
            found.setdefault(outcome.step, set()).add(outcome.group_id)
    return [found[step] for step in sorted(found)]


def has_step(step: int, runs: int = 1) -> Callable[[FakeLog], bool]:
    return lambda log: log.versions[-1].step >= step and len({version.run_id for version in log.versions}) >= runs


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_model_directory(tmp_path / "policy")
    return tmp_path


def test_publishes_the_initial_policy_before_anything_else_and_a_version_for_each_step(root: Path) -> None:
    log = FakeLog()
    for number in range(8):
        log.add_group(number)
    run_until(root, log, has_step(4))
    assert [type(record) for record in log.transactions[0]] == [PolicyVersion]
    assert [(version.version, version.step, version.is_last) for version in log.versions] == [
        (0, 0, False), (1, 1, False), (2, 2, False), (3, 3, False), (4, 4, True)
    ]  # fmt: skip
    assert steps_of(log, log.versions[0].run_id) == [{"g0", "g1"}, {"g2", "g3"}, {"g4", "g5"}, {"g6", "g7"}]
    checksums = {version.checksum for version in log.versions}
    assert len(checksums) == 5


def test_a_step_its_outcomes_and_its_version_are_one_transaction(root: Path) -> None:
    log = FakeLog()
    for number in range(2):
        log.add_group(number)
    run_until(root, log, has_step(1))
    assert [type(record) for record in log.transactions[1]] == [Outcome, Outcome, PolicyVersion]
    assert log.offsets == {0: 1, 1: 1}


def test_the_metrics_of_a_version_say_how_its_step_went(root: Path) -> None:
    log = FakeLog()
    for number in range(2):
        log.add_group(number)
    run_until(root, log, has_step(1))
    metrics = log.versions[-1].metrics
    assert metrics["num_groups"] == 2
    assert metrics["num_tokens"] == sum(
        m.attempt.num_sampled_tokens for part in log.advantages.values() for g in part for m in g.members
    )
    assert metrics["lr"] == pytest.approx(2e-4 / 3)
    assert metrics["staleness_max"] == 0
    assert 0 < metrics["grad_norm"] < 100
    assert {"loss", "clip_fraction", "ratio_mean", "entropy", "step_s", "wait_s", "reward_mean", "advantage_std"} <= set(
        metrics
    )


def test_the_loss_is_the_one_that_the_run_file_names(root: Path) -> None:
    log = FakeLog()
    for number in range(2):
        log.add_group(number)
    run_until(root, log, has_step(1), loss=ToyLoss())
    metrics = log.versions[-1].metrics
    assert 0 < metrics["toy_fraction"] < 1
    assert "clip_fraction" not in metrics


def test_a_published_policy_is_a_whole_model_directory_and_old_ones_go(root: Path) -> None:
    log = FakeLog()
    for number in range(8):
        log.add_group(number)
    run_until(root, log, has_step(4), keep_policies=2)
    assert [(tombstone.of.version) for tombstone in log.records(Tombstone)] == [0, 1, 2]
    newest = Path(log.versions[-1].location)
    assert {item.name for item in newest.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert sorted(item.name for item in newest.parent.iterdir()) == ["3", "4"]
    assert newest.parent.parent == root / "data/runs/test/policies"


def test_a_restart_trains_exactly_the_groups_of_the_abandoned_steps_again(root: Path) -> None:
    log = FakeLog()
    for number in range(6):
        log.add_group(number)
    run_until(root, log, has_step(3), is_crash=True, checkpoint_every=2)
    first = log.versions[-1].run_id
    log.add_group(6)
    log.add_group(7)
    journal = run_until(root, log, has_step(4, runs=2), checkpoint_every=2)
    second = log.versions[-1].run_id
    assert journal.sought == {0: 2, 1: 2}
    assert steps_of(log, first) == [{"g0", "g1"}, {"g2", "g3"}, {"g4", "g5"}]
    assert steps_of(log, second) == [{"g4", "g5"}, {"g6", "g7"}]
    published = [version for version in log.versions if version.run_id == second]
    assert [version.version for version in published] == [2, 3, 4]
    assert [(entry.run_id, entry.last_step) for entry in published[0].lineage] == [(first, 2)]


def test_a_restart_goes_on_with_the_very_weights_and_optimizer_of_the_checkpoint(root: Path) -> None:
    log = FakeLog()
    for number in range(8):
        log.add_group(number)
    run_until(root, log, has_step(3), is_crash=True, checkpoint_every=2)
    run_until(root, log, has_step(4, runs=2), checkpoint_every=2)
    first, second = log.versions[0].run_id, log.versions[-1].run_id
    by_step = {(version.run_id, version.step): version.checksum for version in log.versions}
    assert by_step[first, 2] == by_step[second, 2]
    assert by_step[first, 3] == by_step[second, 3]


def test_an_unfinished_group_before_finished_ones_is_read_again_and_they_are_passed_over(root: Path) -> None:
    log = FakeLog()
    log.add_group(0, version=1)
    for number in (2, 4, 6):
        log.add_group(number)
    run_until(root, log, has_step(1), checkpoint_every=1)
    found = read_latest(root / "data/runs/test/checkpoints")
    assert found is not None
    assert found[1].positions == {0: 0}
    assert found[1].finished == {0: [1, 2]}
    log.add_group(1, version=1)
    log.add_group(3, version=1)
    run_until(root, log, has_step(3, runs=2), checkpoint_every=1)
    trained = [outcome.group_id for outcome in log.outcomes]
    assert sorted(trained) == ["g0", "g1", "g2", "g3", "g4", "g6"]


def check_begun_again(log: FakeLog) -> None:
    """The second run goes back to the initial policy and trains the same groups."""
    first, second = log.versions[0].run_id, log.versions[-1].run_id
    assert [(entry.run_id, entry.last_step) for entry in log.versions[-1].lineage] == [(first, 0)]
    assert steps_of(log, second) == [{"g0", "g1"}, {"g2", "g3"}]


def test_a_learner_killed_before_its_first_checkpoint_is_due_begins_again_with_the_same_groups(root: Path) -> None:
    log = FakeLog()
    for number in range(4):
        log.add_group(number)
    run_until(root, log, has_step(1), is_crash=True)
    run_until(root, log, has_step(2, runs=2))
    check_begun_again(log)


def test_trained_steps_are_abandoned_only_when_told_and_a_predecessor_is_left_alone(root: Path) -> None:
    """As a learner of the same run in another directory would: it finds no checkpoint."""
    log = FakeLog()
    for number in range(4):
        log.add_group(number)
    run_until(root, log, has_step(1), is_crash=True)
    shutil.rmtree(root / "data/runs/test/checkpoints")
    epoch, num_transactions = log.epoch, len(log.transactions)
    expected = r"checkpoints of run.name in .*: expected one, since this run has been trained up to step 1 .*, got none; "
    with pytest.raises(ConfigError, match=expected):
        run_until(root, log, has_step(2, runs=2))
    assert (log.epoch, len(log.transactions)) == (epoch, num_transactions)
    run_until(root, log, has_step(2, runs=2), start_over=True)
    check_begun_again(log)


def test_a_checkpoint_whose_topic_was_made_anew_is_refused_and_a_predecessor_is_left_alone(root: Path) -> None:
    log = FakeLog()
    for number in range(4):
        log.add_group(number)
    run_until(root, log, has_step(1), checkpoint_every=1)
    before = log.epoch, len(log.transactions)
    journal = FakeJournal(log)
    journal.input_id = "second"
    expected = (
        r"checkpoint of run \S+ step 1: expected its input to be the topic with the id first, got second: it was deleted and "
        r"made anew, and what it held is missing; take another run\.name to start over"
    )
    with pytest.raises(ConfigError, match=expected):
        train(make_settings(root), partial(JournalClient, journal), Stop())
    assert (log.epoch, len(log.transactions)) == before
    run_until(root, log, has_step(2, runs=2))


def test_a_learner_trains_a_group_once_whatever_the_log_holds_and_wherever_it_starts(root: Path) -> None:
    log = FakeLog()
    for number in range(4):
        log.add_group(number)
    run_until(root, log, has_step(1), checkpoint_every=1)
    doubled = [outcome.group_id for outcome in log.outcomes if outcome.kind == "trained"]
    for groups in log.advantages.values():
        groups += [group for group in groups if group.group_id in doubled]
    for number in range(4, 8):
        log.add_group(number)
    run_until(root, log, has_step(3, runs=2))
    trained = [outcome.group_id for outcome in log.outcomes if outcome.kind == "trained"]
    assert sorted(trained) == sorted(set(trained))


def test_a_checkpoint_of_another_model_is_refused_before_anything_is_written(root: Path) -> None:
    log = FakeLog()
    for number in range(2):
        log.add_group(number)
    run_until(root, log, has_step(1), checkpoint_every=1)
    make_model_directory(root / "policy", hidden_size=32)
    before = len(log.transactions), log.epoch
    with pytest.raises(
        ConfigError, match=r"checkpoint .*: expected the model at policy.path, LlamaForCausalLM \d+ .*, got Llama"
    ):
        run_until(root, log, has_step(1))
    assert (len(log.transactions), log.epoch) == before


def test_another_zero_stage_is_refused(root: Path) -> None:
    log = FakeLog()
    for number in range(2):
        log.add_group(number)
    run_until(root, log, has_step(1), checkpoint_every=1)
    with pytest.raises(ConfigError, match=r"expected learner\.zero_stage 1, got 0"):
        run_until(root, log, has_step(1), zero_stage=1)


def test_after_the_planned_end_every_group_ends_without_training(root: Path) -> None:
    log = FakeLog()
    for number in range(5):
        log.add_group(number)
    run_until(root, log, lambda log: len(log.outcomes) >= 5, training={"num_steps": 2})
    assert kinds(log)["g4"] == "dropped/ended@3"
    assert log.versions[-1].is_last
    log.add_group(5)
    run_until(root, log, lambda log: "g5" in kinds(log), training={"num_steps": 2})
    assert kinds(log)["g5"] == "dropped/ended@3"
    assert log.versions[-1].is_last
    assert log.versions[-1].step == 2
    assert len(steps_of(log, log.versions[-1].run_id)) == 0


def test_a_stale_group_is_dropped_and_the_others_train(root: Path) -> None:
    log = FakeLog()
    for number in range(4):
        log.add_group(number)
    run_until(root, log, has_step(2), checkpoint_every=1, training={"max_staleness": 1})
    log.add_group(4, version=0)
    for number in (5, 6):
        log.add_group(number, version=2)
    run_until(root, log, has_step(3, runs=2), training={"max_staleness": 1})
    assert kinds(log)["g4"] == "dropped/stale@3"
    assert kinds(log)["g5"] == kinds(log)["g6"] == "trained/@3"


def test_a_group_without_anything_to_train_is_dropped(root: Path) -> None:
    log = FakeLog()
    log.add_group(0, advantages=(0.0, 0.0))
    log.add_group(1)
    log.add_group(2)
    run_until(root, log, has_step(1))
    assert kinds(log) == {"g0": "dropped/untrainable@1", "g1": "trained/@1", "g2": "trained/@1"}


def test_groups_with_lost_or_wrong_tokens_end_as_lost_and_the_others_train(root: Path) -> None:
    log = FakeLog()
    gone, wrong, foreign = log.add_group(0), log.add_group(1), log.add_group(2)
    log.add_group(3)
    log.add_group(4)
    del log.tokens[gone.members[1].attempt.sampled_tokens()]
    log.tokens[wrong.members[0].attempt.sampled_tokens()] = log.tokens[wrong.members[1].attempt.sampled_tokens()]
    record = log.tokens[foreign.members[0].attempt.sampled_tokens()]
    ids = np.full(record.token_ids.length, VOCAB, "<i4")
    log.tokens[foreign.members[0].attempt.sampled_tokens()] = msgspec.structs.replace(record, token_ids=Tensor.of(ids))
    run_until(root, log, has_step(1))
    ends = kinds(log)
    assert [ends[f"g{number}"] for number in range(5)] == [
        "dropped/lost@1", "dropped/lost@1", "dropped/lost@1", "trained/@1", "trained/@1"
    ]  # fmt: skip


def test_a_batch_without_a_finite_loss_is_skipped_kept_as_evidence_and_the_next_takes_its_step(root: Path) -> None:
    log = FakeLog()
    log.add_group(0, advantages=(float("inf"), -0.5))
    for number in range(1, 4):
        log.add_group(number)
    run_until(root, log, has_step(1))
    ends = kinds(log)
    assert ends == {"g0": "dropped/non_finite@1", "g1": "dropped/non_finite@1", "g2": "trained/@1", "g3": "trained/@1"}
    assert [version.version for version in log.versions] == [0, 1]
    assert log.versions[-1].metrics["num_non_finite"] == 1
    evidence = list((root / "data/runs/test/evidence").iterdir())
    facts = json.loads(evidence[0].read_text())
    assert [group["group_id"] for group in facts["groups"]] == ["g0", "g1"]
    assert facts["numbers"]["loss"] in ("nan", "inf", "-inf")


def test_too_many_of_them_in_a_row_end_the_run(root: Path) -> None:
    log = FakeLog()
    for number in range(4):
        log.add_group(number, advantages=(float("inf"), -0.5))
    with pytest.raises(GagarError, match=r"step 1: expected a finite loss and gradient, got none 2 times in a row; see"):
        run_until(root, log, has_step(1), max_non_finite=2)


def test_a_successor_ends_the_learner(root: Path) -> None:
    log = FakeLog()
    for number in range(2):
        log.add_group(number)
    journal, stop = FakeJournal(log), Stop()

    def fence(outputs: list[Any]) -> None:
        log.epoch += 1

    journal.on_commit = fence
    with pytest.raises(FencedError, match="got a successor"):
        train(make_settings(root), partial(JournalClient, journal), stop)
    assert len(log.transactions) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_it_starts_is_quick_and_quiet(number: signal.Signals) -> None:
    """Nothing is under way yet that could end in good order; afterwards the round in progress does."""
    code = (
        "import logging, os; from consumers.learner.rank import Stop; logging.basicConfig(level=logging.INFO)\n"
        "stop = Stop(); stop.install(); stop.bound = lambda seconds: print('log ends in time', 0 < seconds < 10)\n"
        f"os.kill(os.getpid(), {number}); print(stop.is_set(), flush=True)\n"
        f"stop.is_starting = True; os.kill(os.getpid(), {number}); print('lives on')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "log ends in time True\nTrue\n", "")


def test_the_same_log_gives_the_same_batches_whatever_the_order_of_arrival(root: Path) -> None:
    log = FakeLog()
    for number in (3, 1, 0, 2):
        log.add_group(number, version=0)
    run_until(root, log, has_step(2))
    assert steps_of(log, log.versions[-1].run_id) == [{"g0", "g1"}, {"g2", "g3"}]


def test_a_learner_killed_again_and_again_makes_the_steps_of_one_that_never_was(root: Path) -> None:
    """It falls back to the same checkpoint three times; batches and weights of a step are the same in every life."""
    log, undisturbed = FakeLog(), FakeLog()
    for number in range(8):
        log.add_group(number)
        undisturbed.add_group(number)
    for step, num_lives in ((3, 1), (3, 2), (4, 3)):
        run_until(root, log, has_step(step, num_lives), is_crash=True, checkpoint_every=2)
    run_until(root, log, has_step(4, 4), checkpoint_every=2)
    shutil.copytree(root / "policy", root / "other" / "policy")
    run_until(root / "other", undisturbed, has_step(4), checkpoint_every=2)
    steps = steps_of(undisturbed, undisturbed.versions[0].run_id)
    lives = list(dict.fromkeys(version.run_id for version in log.versions))
    assert [steps_of(log, run_id) for run_id in lives] == [steps[:3], steps[2:3], steps[2:], steps[2:]]
    weights = {(version.step, version.checksum) for version in undisturbed.versions}
    assert {(version.step, version.checksum) for version in log.versions} == weights
    assert len(weights) == 5
