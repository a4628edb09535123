"""The process edge: lazy commands, one form of error, exit codes."""

import importlib

import click
import pytest

from gagar.cli.main import COMMANDS, main
from gagar.errors import ConfigError, FencedError, MachineError, UnavailableError
from tests.forks import printed_in_forks

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


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    with_command(monkeypatch, failing(ZeroDivisionError("a bug")))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        main(["probe"])


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
