"""A run's settings are saved when it starts; whoever reads or restarts it goes by them and is told every difference."""

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from gagar.broker import local
from gagar.cli import saved_run
from gagar.cli.run_file import check_run, open_run
from gagar.cli.saved_run import (
    cluster_to_read,
    name_another,
    reading_options,
    run_to_read,
    run_to_replay,
    save_run,
    save_unless_saved,
)
from gagar.config import KafkaTable, Run, load_run
from gagar.errors import ConfigError
from tests.runs import write_run
from topology.composition import stage_config
from topology.settings import differences, settings_of
from topology.stages import VERIFIER


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.delenv("GAGAR_KAFKA_BOOTSTRAP_SERVERS", raising=False)


def started(path: Path, *overrides: str, at: int = 0) -> Run:
    """A run that was started with these options, at that second."""
    run = open_run(str(path), overrides)
    save_run(run)
    os.utime(run.directory / "run.toml", (at, at))
    return run


def test_what_is_saved_loads_back_equal(tmp_path: Path) -> None:
    path = write_run(tmp_path, '[verifier]\nsandbox = { memory_bytes = 300000000 }\n[grader]\nkind = "none"\n')
    run = started(
        path, "training.num_steps=4", "rollout_worker.sandbox.kind=bubblewrap", "run.name=a", "training.temperature=0.5"
    )
    saved = load_run(run.directory / "run.toml")
    assert differences(settings_of(run), settings_of(saved)) == []
    assert (saved.training, saved.policy, saved.kafka, saved.tables, saved.root) == (
        *(run.training, run.policy, run.kafka, run.tables),
        str(tmp_path),
    )
    assert saved.directory == run.directory
    check_run(saved)
    assert [file.name for file in run.directory.iterdir()] == ["run.toml"]


def test_an_address_of_the_environment_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_run(tmp_path)
    monkeypatch.setenv("GAGAR_KAFKA_BOOTSTRAP_SERVERS", "secret-host:9092")
    run = started(path)
    assert "secret-host" not in (run.directory / "run.toml").read_text()
    saved = saved_run.saved_run(run)
    assert saved is not None
    assert saved.kafka.bootstrap_servers == "secret-host:9092"
    monkeypatch.delenv("GAGAR_KAFKA_BOOTSTRAP_SERVERS")
    assert load_run(run.directory / "run.toml").kafka.bootstrap_servers == ""


def test_saved_settings_that_cannot_be_read_are_told_to_readers_and_replaced_by_a_start(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    run = started(path)
    for text in ("[run", "[run]\nname = 'test'\nnonsense = 1\n"):
        (run.directory / "run.toml").write_text(text)
        with pytest.raises(ConfigError, match=r"^settings of run test in .*run.toml: "):
            run_to_read(str(path), (), is_file_given=True)
        assert save_run(run) == ""
        assert run_to_read(str(path), (), is_file_given=True).training == run.training


@pytest.mark.parametrize(
    ("overrides", "is_file_given", "name"),
    [
        ((), False, "new"),
        (("training.num_steps=7",), False, "new"),
        (("run.name=old",), False, "old"),
        (("run.name=old",), True, "old"),
        ((), True, "test"),
    ],
)
def test_the_newest_run_is_read_unless_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], overrides: tuple[str, ...], is_file_given: bool, name: str
) -> None:
    path = write_run(tmp_path)
    for number, (other, num_steps) in enumerate((("test", 3), ("old", 4), ("new", 5)), start=1):
        started(path, f"run.name={other}", f"training.num_steps={num_steps}", at=number)
    run = run_to_read(str(path), overrides, is_file_given=is_file_given)
    assert name_another(run) == "name one with --set run.name=NAME, of test, old, new"
    assert (run.run.name, run.training.num_steps) == (name, {"test": 3, "old": 4, "new": 5}[name])
    told = capsys.readouterr().err
    assert ("run new: the newest in" in told) == (not is_file_given and "run.name=old" not in overrides)
    assert ("training.num_steps: was 5, now 7; it is read as it was" in told) == ("training.num_steps=7" in overrides)
    assert (f"training.num_steps: was {run.training.num_steps}, now 60" in told) == is_file_given


@pytest.mark.parametrize("is_file_given", [False, True])
def test_a_run_is_replayed_as_it_was_started_but_for_what_is_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_file_given: bool
) -> None:
    path = write_run(tmp_path)
    started(path, "grader.size_slack_lines=7", "advantage_publisher.max_rescale=2", "kafka.bootstrap_servers=kafka-1:9092")
    run = run_to_replay(str(path), ("advantage_publisher.max_rescale=1.0",), is_file_given=is_file_given)
    settings = settings_of(run)
    assert (settings["grader.size_slack_lines"], settings["advantage_publisher.max_rescale"]) == (7, 1.0)
    assert run.kafka.bootstrap_servers == "kafka-1:9092"
    told = "grader.size_slack_lines: was 7, now 3 in the run file; it is replayed as it was started, but for --set"
    assert (told in capsys.readouterr().err) == is_file_given


def test_a_directory_that_takes_no_file_is_told(tmp_path: Path) -> None:
    run = open_run(str(write_run(tmp_path)), ("run.dir=run.toml",))
    assert save_run(run).startswith("settings not saved: [Errno ")


def test_a_run_of_which_nothing_is_saved_is_read_as_it_is_given(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    run = open_run(str(path), ("run.name=x",))
    assert name_another(run) == "name one with --set run.name=NAME"
    assert run_to_read(str(path), ("run.name=x",), is_file_given=False) == run


@pytest.mark.parametrize("is_saved", [True, False])
def test_a_word_that_is_not_known_is_refused_for_reading_too(tmp_path: Path, is_saved: bool) -> None:
    path = write_run(tmp_path)
    if is_saved:
        started(path)
    for is_file_given in (True, False):
        with pytest.raises(ConfigError, match=r"\[trainig\]: expected a known table, got trainig; did you mean training\?"):
            run_to_read(str(path), ("trainig.num_steps=3",), is_file_given=is_file_given)


def test_a_directory_that_was_moved_is_read_where_it_is_now(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    started(path, "training.num_steps=4")
    (tmp_path / ".gagar").rename(tmp_path / "moved")
    run = run_to_read(str(path), ("run.dir=moved",), is_file_given=False)
    assert (run.dir, run.training.num_steps) == (tmp_path / "moved", 4)


def test_the_tables_of_stages_are_read_as_they_were(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    started(path, "verifier.concurrency=7")
    assert stage_config(VERIFIER, run_to_read(str(path), (), is_file_given=True)).concurrency == 7


@click.command()
@reading_options
def probe(run: Run) -> None:
    click.echo(f"{run.run.name} {run.training.num_steps}")


def test_the_command_has_the_run_while_its_cluster_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_run(tmp_path)
    started(path, "training.num_steps=4", "kafka.bootstrap_servers=k:9092")
    servers = list[str]()

    def check_cluster(kafka: KafkaTable, timeout_s: float) -> None:
        servers.extend(kafka.servers)

    monkeypatch.setattr(local, "check_cluster", check_cluster)
    result: Result = CliRunner().invoke(probe, ["--run", str(path)], catch_exceptions=False)
    assert result.stdout == "test 4\n"
    assert servers == ["k:9092"]


def test_no_broker_is_started_where_none_ever_ran(tmp_path: Path) -> None:
    with (
        pytest.raises(
            ConfigError, match=r"run.dir: expected a directory with runs, got none in .*; name one with --set run.dir="
        ),
        cluster_to_read(open_run(str(write_run(tmp_path)))),
    ):
        pass
    assert not (tmp_path / ".gagar").exists()


def test_a_stage_that_is_started_by_hand_changes_nothing_of_its_run(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    for num_steps in (4, 9):  # the first one saves
        assert save_unless_saved(open_run(str(path), (f"training.num_steps={num_steps}",))) == ""
        assert run_to_read(str(path), (), is_file_given=True).training.num_steps == 4
