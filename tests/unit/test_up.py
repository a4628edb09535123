"""`gagar up`: its options and its printing."""

import asyncio
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gagar.cli.up import pipeline
from gagar.cli.up.command import LogView, Printer, parse_scales, up
from gagar.cli.up.stage_processes import stage_processes
from gagar.config import KafkaTable, Run
from gagar.errors import ConfigError, UnavailableError
from tests.runs import make_run, write_run


def test_scales_are_numbers_by_stage() -> None:
    assert parse_scales(["verifier=4", "grader=0"]) == {"verifier": 4, "grader": 0}
    assert parse_scales([]) == {}


@pytest.mark.parametrize("scale", ["verifier", "verifier=", "verifier=-1", "verifier=two", "verifier=9999"])
def test_a_scale_of_another_form_is_refused(scale: str) -> None:
    with pytest.raises(ConfigError, match=rf"--scale {scale}: expected stage=n with n from 0 to 1024"):
        parse_scales([scale])


def test_a_twin_on_a_cluster_is_looked_for_before_anything_is_touched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By who starts the sampler: the other stages may be many."""
    run = make_run(tmp_path / "run", "cluster:9092")

    @contextlib.contextmanager
    def cluster_of(run: Run) -> Iterator[KafkaTable]:
        yield run.kafka

    def find_twin(run: Run, kafka: KafkaTable) -> None:
        raise UnavailableError(f"a twin on {kafka.bootstrap_servers}")

    async def drive(*arguments: object) -> int:
        return 7

    for name, stand_in in {"cluster_of": cluster_of, "check_no_twin": find_twin, "drive": drive}.items():
        monkeypatch.setattr(pipeline, name, stand_in)
    with pytest.raises(UnavailableError, match="a twin on cluster:9092"):
        pipeline.run_pipeline(run, stage_processes([], {}, run), LogView(run, []))
    assert not (tmp_path / "run").exists()
    assert pipeline.run_pipeline(run, stage_processes([], {"sampler": 0}, run), LogView(run, [])) == 7


def test_lines_bear_their_process_and_repeats_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer()
    for name, text in [("verifier", "down"), ("verifier", "down"), ("grader", "x"), ("verifier", "down"), ("verifier", "up")]:
        printer.line(name, text)
    printed = [re.sub(r"\x1b\[\d+m", "", line).split(None, 1) for line in capsys.readouterr().out.splitlines()]
    assert printed == [["verifier", "down"], ["grader", "x"], ["verifier", "(the same 2 more times)"], ["verifier", "up"]]


async def test_a_stage_that_is_left_to_others_is_said_with_the_whole_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[LogView] = []

    def note(run: Run, specs: object, view: LogView) -> int:
        seen.append(view)
        return 0

    monkeypatch.setattr("gagar.cli.up.command.run_pipeline", note)
    run_file = write_run(tmp_path)
    arguments = ["--run", str(run_file), "--set", "run.seed=3", "--scale", "verifier=0", "--scale", "grader=2"]
    assert CliRunner().invoke(up, arguments, standalone_mode=False).return_value == 0

    class Ended:
        async def wait(self) -> int:
            return 7

    await seen[0].follow("", Ended(), asyncio.Event())  # type: ignore[arg-type]
    assert await seen[0].conclude(KafkaTable(), []) == 7
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("run test: logs in ")
    assert told[1:] == [f"this run ends only if somebody else runs `gagar run verifier --run {run_file} --set run.seed=3`"]
