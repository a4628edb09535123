"""The process edge: lazy commands, one form of error, exit codes."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from gagar.cli.main import COMMANDS, main
from gagar.errors import ConfigError, FencedError, MachineError, UnavailableError
from tests.forks import printed_in_forks

pytestmark = pytest.mark.slow

HEAVY = ("torch", "transformers", "deepspeed", "aiokafka", "kafka", "docker", "vllm", "matplotlib", "numpy", "psutil", "rich")


def exit_of(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return caught.value.code


def with_command(monkeypatch: pytest.MonkeyPatch, command: click.Command) -> None:
    """Puts a command `probe` into the table."""
    monkeypatch.setitem(COMMANDS, "probe", ("tests.unit.test_main:probe", "A probe."))
    monkeypatch.setattr(importlib.import_module("tests.unit.test_main"), "probe", command, raising=False)


def failing(error: BaseException) -> click.Command:
    @click.command()
    def probe() -> None:
        raise error

    return probe


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("run.name: expected x, got y"), 2),
        (UnavailableError("kafka: expected x, got y"), 4),
        (MachineError("disk: expected x, got y"), 5),
        (FencedError("stage sampler: expected x, got y"), 4),
    ],
)
def test_our_errors_become_one_line_and_an_exit_code_by_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int
) -> None:
    with_command(monkeypatch, failing(error))
    assert exit_of("probe") == code
    assert capsys.readouterr().err == f"error: {error}\n"


def test_each_line_of_an_error_with_several_is_marked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_command(monkeypatch, failing(ConfigError("one\ntwo")))
    assert exit_of("probe") == 2
    assert capsys.readouterr().err == "error: one\nerror: two\n"


def test_an_extra_that_was_not_installed_is_one_line_and_exit_code_5(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_command(monkeypatch, failing(ModuleNotFoundError("No module named 'filelock'", name="filelock")))
    assert exit_of("probe") == 5
    assert capsys.readouterr().err.startswith("error: filelock: expected the package, got none; run `pip install")


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    with_command(monkeypatch, failing(ZeroDivisionError("a bug")))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        main(["probe"])


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device", "/x"), RuntimeError("/x: No space left on device (os error 28)")]
)
def test_what_the_machine_lacks_is_one_line_and_exit_code_5(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    with_command(monkeypatch, failing(error))
    assert exit_of("probe") == 5
    assert re.fullmatch(r"error: (/x|disk): expected to take data, got no space left on device\n", capsys.readouterr().err)


def run_gagar(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", "-m", "gagar.cli.main", *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, **options)


@pytest.mark.parametrize("arguments", [("topics", "graph"), ("--help",)])
def test_a_stdout_that_is_full_is_one_clear_line(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = run_gagar(*arguments, stdout=full)
    assert (done.returncode, done.stderr) == (5, "error: stdout: expected to take data, got no space left on device\n")


def test_a_stdout_that_nobody_reads_is_one_clear_line() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = run_gagar("topics", "graph", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "error: stdout: expected to take the output, got broken pipe\n")


@pytest.mark.parametrize("arguments", [("topics", "graph"), ("demo",), ("run", "verifier")])
def test_a_working_directory_that_was_deleted_is_one_clear_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "x").mkdir()
    script = f'cd {tmp_path / "x"} && rmdir {tmp_path / "x"} && exec "$0" "$@"'
    command = ["/bin/sh", "-c", script, sys.executable, "-P", "-m", "gagar.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: working directory: expected one, got one that was deleted; change into another one\n"


def test_a_stdout_that_was_closed_is_no_error() -> None:
    command = ["/bin/sh", "-c", 'exec "$0" "$@" >&-', sys.executable, "-P", "-m", "gagar.cli.main", "topics", "graph"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interruption_is_exit_code_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with_command(monkeypatch, failing(KeyboardInterrupt()))
    assert exit_of("probe") == 130
    assert capsys.readouterr().err.strip() == "stopped"


def test_a_number_that_a_command_returns_is_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def probe() -> int:
        return 3

    with_command(monkeypatch, probe)
    assert exit_of("probe") == 3


def test_wrong_usage_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of("nonsense") == 2
    assert "No such command 'nonsense'" in capsys.readouterr().err
    assert exit_of("topics", "check", "--nonsense") == 2


def test_help_lists_every_command_and_imports_none(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail(f"imported {name}"))
    assert exit_of("--help") == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in COMMANDS)


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """What each command's --help prints; the last line holds the exit code and the heavy modules that were loaded."""
    body = (
        "import sys\nfrom gagar.cli.main import main\ntry:\n    main([name, '--help'])\nexcept SystemExit as end:\n"
        f"    print(end.code, *[heavy for heavy in {HEAVY!r} if heavy in sys.modules])\n"
    )
    return printed_in_forks(body, sorted(COMMANDS))


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_help_of_a_command_loads_no_heavy_module(helps: dict[str, str], name: str) -> None:
    assert helps[name].startswith(f"Usage: gagar {name}")
    assert helps[name].splitlines()[-1] == "0"
