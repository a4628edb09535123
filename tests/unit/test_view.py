"""The live view: fits 80 by 24, says what the snapshot says, and survives a run of which nothing is known yet."""

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gagar.records import DeadLetter, Outcome
from gagar.report.progress import Progress
from gagar.report.terminal import (
    ASCII_BLOCKS,
    BLOCKS,
    RATE_WINDOW_S,
    Plan,
    Rates,
    Screen,
    StageRow,
    clock,
    number,
    plain_line,
    render,
    share,
    sparkline,
)
from tests.builders import CLEAN, DEAD_CODE, make_delivery, make_outcome, make_ref, make_request, make_verdict, make_version

NAMES = ("sampler", "rollout-worker", "verifier", "gatherer", "grader", "advantage-publisher", "learner")


def make_row(name: str, **fields: Any) -> StageRow:
    return StageRow(**{"name": name, "num_up": 1, "num_processes": 1, "num_restarts": 0, "lag": 3, "rate": 1.25, **fields})


def make_plan(run_name: str) -> Plan:
    return Plan(run_name=run_name, num_steps=60, stages=(), log_dir=f"/somewhere/.gagar/runs/{run_name}")


def make_screen(progress: Progress | None = None, **fields: Any) -> Screen:
    defaults: dict[str, Any] = {
        "plan": make_plan("nano-20261129-201244"),
        "phase": "training",
        "elapsed_s": 95.0,
        "stages": [make_row(name) for name in NAMES],
        "snapshot": (progress or Progress()).snapshot(),
    }
    return Screen(**{**defaults, **fields})


def busy() -> Progress:
    """A run in its middle, with all that can be shown."""
    progress = Progress()
    letter = DeadLetter(stage="verifier", source=make_ref("trajectories", 1), error="bad", key=b"", value=b"")
    drops: tuple[Any, ...] = ("all_passed", "all_failed", "too_few_valid", "stale", "dead_letter")
    records = [
        *(make_request(f"t-{i}") for i in range(20)),
        *(make_verdict(f"t-{v}", i, "passed" if i < 3 else "failed", measures=CLEAN if i else DEAD_CODE, policy_version_max=v)
          for v in range(8) for i in range(4)),
        make_outcome("e-0", "evaluated"),
        make_outcome("e-1", "evaluated", step=50),
        make_version(0),
        *(make_outcome(f"t-{i}", "trained", staleness=1) for i in range(3)),
        make_version(1, metrics={"loss": 0.012345, "grad_norm": 1.5, "clip_fraction": 0.25}),
        *(Outcome(group_id=f"d-{r}", task_id="t", purpose="training", kind="dropped", reason=r) for r in drops),
        letter,
    ]  # fmt: skip
    for record in records:
        progress.apply(make_delivery(record, type(record).__name__))
    return progress


def drawn(screen: Screen, is_unicode: bool = True, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, height=24, force_terminal=False)
    console.print(render(screen, is_unicode))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("progress", [Progress(), busy()], ids=["nothing yet", "busy"])
def test_the_screen_fits_a_small_terminal(progress: Progress) -> None:
    lines = drawn(make_screen(progress)).splitlines()
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80


def test_the_screen_shows_every_stage_and_the_figures() -> None:
    text = drawn(make_screen(busy()), width=140)
    assert all(name in text for name in NAMES)
    for expected in (
        "step 1/60",
        "20 requested: 3 trained, 2 evaluated, 10 in flight",
        "1 all_failed, 1 all_passed, 1 dead_letter, 1 stale, 1 too_few_valid  dead letters 1",
        "0.75 of 32",
        "0.67 of passing are clean; 8 dead code, 0 out of scope",
        "step 0: 0.50 +-0.00 clean 0.50, step 50: 0.50",
        "40 sampled per attempt",
        "staleness 1 (max 1), loss 0.0123, grad 1.5, clip 0.25",
        "/somewhere/.gagar/runs/",
    ):
        assert expected in text


def test_a_terminal_without_unicode_gets_ascii() -> None:
    assert drawn(make_screen(busy()), is_unicode=False).isascii()
    assert not drawn(make_screen(busy()), is_unicode=True).isascii()


def test_a_stage_that_is_down_or_has_no_input_says_so() -> None:
    rows = [make_row("sampler", lag=None), make_row("verifier", num_up=1, num_processes=4, num_restarts=7)]
    lines = drawn(make_screen(stages=rows)).splitlines()
    assert lines[2].split() == ["sampler", "1/1", "0", "-", "1.2"]
    assert lines[3].split() == ["verifier", "1/4", "7", "3", "1.2"]


def test_hostile_names_are_shown_as_text() -> None:
    assert "[bold]x" in drawn(make_screen(plan=make_plan("[bold]x")))


def test_a_line_for_logs_holds_the_same_figures() -> None:
    line = plain_line(make_screen(busy()))
    assert "\n" not in line
    assert line.startswith(" 1:35 training step=1/60 pass=0.75 clean=0.67 requested=20 trained=3 evaluated=2 dropped=5")
    assert "lag=21 restarts=0" in line


def test_a_line_of_an_unknown_run_has_dashes() -> None:
    assert "step=0/60 pass=- clean=- requested=0" in plain_line(make_screen(stages=[]))


def test_rates_are_records_per_second_over_the_window() -> None:
    rates = Rates()
    rates.update(0.0, {"verdicts": 0})
    assert rates.rate(["verdicts"]) == 0.0
    for second in range(1, 60):
        rates.update(float(second), {"verdicts": 10 * second, "groups": second})
    assert rates.rate(["verdicts"]) == pytest.approx(10.0)
    assert rates.rate(["verdicts", "groups"]) == pytest.approx(11.0)
    assert rates.rate(["outcomes"]) == 0.0


def test_rates_forget_what_is_older_than_the_window() -> None:
    rates = Rates()
    rates.update(0.0, {"verdicts": 1000})
    for second in range(1, 2 * int(RATE_WINDOW_S)):
        rates.update(float(second), {"verdicts": 1000})
    assert rates.rate(["verdicts"]) == 0.0


@given(st.lists(st.floats(0, 1), max_size=300), st.integers(1, 60))
def test_a_sparkline_never_exceeds_its_width(values: list[float], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) <= width
    assert set(line) <= set(BLOCKS)
    assert bool(line) == bool(values)


def test_a_sparkline_rises_with_its_values() -> None:
    assert sparkline([0.0, 0.5, 1.0], 10, ASCII_BLOCKS) == "_+#"
    assert sparkline([0.0, 0.0, 1.0, 1.0], 2) == BLOCKS[0] + BLOCKS[-1]
    assert sparkline([-1.0, 2.0], 2) == BLOCKS[0] + BLOCKS[-1]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.9, "0:59"), (61, "1:01"), (3600, "1:00:00"), (36061, "10:01:01")]
)
def test_times_read_like_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_unknown_figures_are_dashes() -> None:
    assert (share(None), number(None), share(0.456), number(0.012345)) == ("-", "-", "0.46", "0.0123")
