"""Ids complete in the shell: by click's own completion, bounded, and silent without a cluster."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete

from gagar.cli.history import ids
from gagar.cli.history.dead_letters import dead_letters
from gagar.cli.history.show import show
from gagar.errors import UnavailableError
from gagar.history import recent
from gagar.records import DeadLetter
from gagar.stream.memory.transport import MemoryLog
from tests.builders import make_ref, make_request, make_version
from tests.logs import append, empty_log, transport_of
from tests.runs import write_run
from topology.resources import Resources


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MemoryLog:
    log = empty_log()
    monkeypatch.setattr(Resources, "_kafka", lambda resources: transport_of(log))
    monkeypatch.chdir(tmp_path)
    return log


def completed(command: click.Command, *words: str) -> list[str]:
    """What the last word may become."""
    found = ShellComplete(command, {}, "gagar", "_GAGAR_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return [item.value for item in found]


def test_groups_complete_the_newest_first(log: MemoryLog) -> None:
    for index in range(5):
        append(log, make_request(f"t-{index}"), at=1000.0 + index)
    append(log, make_request("e-1"))
    assert completed(show, "group", "t-") == ["t-4", "t-3", "t-2", "t-1", "t-0"]
    assert completed(show, "group", "--json", "e") == ["e-1"]


def test_versions_steps_and_letters_complete(log: MemoryLog) -> None:
    for number in (1, 12, 2):
        append(log, make_version(number, version=number + 100), at=1000.0 + number)
    source = make_ref("trajectories", 0)
    letter = append(log, DeadLetter(stage="verifier", source=source, error="", key=b"a", value=b""))
    append(log, DeadLetter(stage="verifier", source=letter, error="", key=b"a", value=b"", retried_as=source))
    assert completed(show, "step", "1") == ["12", "1"]
    assert completed(show, "version", "1") == ["112", "102", "101"]
    name = f"{letter.partition}@{letter.offset}"
    assert completed(dead_letters, "retry", "") == [name]
    assert completed(dead_letters, "retry", name, "") == [name]


def test_tasks_complete_from_the_files_of_the_run(log: MemoryLog, tmp_path: Path) -> None:
    path = write_run(tmp_path)
    assert completed(show, "task", "--run", str(path), "") == ["a", "b"]


def test_runs_complete_from_their_directory(log: MemoryLog, tmp_path: Path) -> None:
    for number in (1, 2):
        path = tmp_path / "runs" / f"nano-{number}" / "run.toml"
        path.parent.mkdir(parents=True)
        path.write_text("")
        os.utime(path, (number, number))
    assert completed(show, "run", "--set", f"run.dir={tmp_path}", "--set", "run.name=other", "nano") == ["nano-2", "nano-1"]


def test_only_the_ends_of_the_partitions_are_read(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "MAX_RECORDS", 3)
    for index in range(90):
        append(log, make_request(f"t-{index:02}"), at=1000.0 + index)
    assert len(completed(show, "group", "t-")) == 9


@pytest.mark.parametrize("error", [UnavailableError("no cluster"), TimeoutError(), ConnectionRefusedError()])
def test_without_a_cluster_nothing_completes_and_nothing_is_said(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: Exception
) -> None:
    def failing(resources: Resources) -> Any:
        logging.getLogger("aiokafka").error("no connection")
        raise error

    monkeypatch.setattr(Resources, "_kafka", failing)
    assert completed(show, "group", "t") == []
    assert capfd.readouterr() == ("", "")
    assert logging.root.manager.disable == logging.NOTSET


def test_a_cluster_that_does_not_answer_in_time_completes_nothing(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    append(log, make_request("t-0"))
    monkeypatch.setattr(ids, "COMPLETION_S", -1.0)
    assert completed(show, "group", "t") == []


def test_a_run_file_that_is_wrong_completes_nothing(log: MemoryLog) -> None:
    assert completed(show, "group", "--run", "nowhere.toml", "t") == []


@pytest.mark.slow
def test_the_shell_asks_the_command_itself(tmp_path: Path) -> None:
    asked = {"_GAGAR_COMPLETE": "bash_complete", "COMP_WORDS": "gagar show gr", "COMP_CWORD": "2"}
    command = [sys.executable, "-m", "gagar.cli.main"]
    for words, expected in ((asked, "plain,group"), (asked | {"COMP_WORDS": "gagar show group t", "COMP_CWORD": "3"}, "")):
        found = subprocess.run(command, env=os.environ | words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (found.stdout.strip(), found.stderr, found.returncode) == (expected, "", 0)
