"""The report: hostile text stays text, the page needs no other file, and a run without data gets a page too."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagar.records import Record
from gagar.report.curves import DARK, LIGHT, draw_pictures
from gagar.report.examples import FAILED, ShownAttempt
from gagar.report.page import ReportData, Tile, render_page, tiles, toml_text, write_report
from gagar.report.progress import Progress, Snapshot
from gagar.report.summary import summarize
from tests.builders import DEAD_CODE, OUTSIDE, make_delivery, make_outcome, make_request, make_verdict, make_version

pytestmark = pytest.mark.slow

HOSTILE = "</pre><script>alert('x')</script><img src=x onerror=alert(1)>{{ 7 * 7 }}{% raw %}&amp;\" onload=\"x"


def snapshot_of(records: Iterable[Record] = ()) -> Snapshot:
    progress = Progress()
    for record in records:
        progress.apply(make_delivery(record, type(record).__name__))
    return progress.snapshot()


def full_run() -> list[Record]:
    """A short run with everything in it that is drawn."""
    records: list[Record] = [make_version(0)]
    for step in range(1, 6):
        for group in range(2):
            name = f"t-{step}-{group}"
            records += [make_request(name), make_outcome(name, "trained", step=step, staleness=group)]
            records += [make_verdict(name, i, "passed" if i <= step else "failed", policy_version_max=step) for i in range(6)]
        records.append(make_verdict(f"t-{step}-0", 7, measures=DEAD_CODE if step % 2 else OUTSIDE, policy_version_max=step))
        records.append(make_version(step, metrics={"loss": 0.1 * step, "clip_fraction": 0.01, "grad_norm": 1.0}))
    evaluations = [make_outcome(f"e-{step}-{i}", "evaluated", step=step) for step in (0, 5) for i in range(3)]
    return [*records, *evaluations, make_outcome("t-9", "dropped", reason="all_failed")]


def make_example(**fields: Any) -> ShownAttempt:
    defaults = {"kind": FAILED, "when": "first", "task_id": "sum", "version": 3, "statement": "Add.", "patch": "+x\n-y\n"}
    return ShownAttempt(**{**defaults, "reason": "", "tests": "1 of 2", "num_sampled_tokens": 9, **fields})


def make_data(snapshot: Snapshot, **fields: Any) -> ReportData:
    defaults: dict[str, Any] = {
        "summary": summarize(snapshot, "try", "clean", 12.0),
        "snapshot": snapshot,
        "examples": [],
        "tables": {"run": {"name": "try"}},
        "made_at": "2026-11-29 20:12 UTC",
    }
    return ReportData(**{**defaults, **fields})


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run in which everything happened, drawn once: drawing takes a second or two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gagar.report.curves.DPI", 30)
        return write_report(tmp_path_factory.mktemp("report") / "runs", make_data(snapshot_of(full_run())))


def test_a_report_is_one_page_and_its_pictures(written: Path) -> None:
    names = {path.name for path in (written.parent / "curves").iterdir()}
    shown = ("pass-rate", "quality", "lengths", "staleness", "learner", "outcomes")
    assert names == {f"{name}{dress}.png" for name in shown for dress in ("", "-dark")}
    assert (written.name, written.parent.name) == ("report.html", "runs")
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (written.parent / "curves").iterdir())


def test_every_picture_has_its_own_dress(written: Path) -> None:
    curves = written.parent / "curves"
    assert (curves / "quality.png").read_bytes() != (curves / "quality-dark.png").read_bytes()
    assert LIGHT.background != DARK.background


def test_the_page_asks_for_nothing_from_elsewhere(written: Path) -> None:
    page = written.read_text(encoding="utf-8")
    sources = re.findall(r"(?:src|srcset|href)=\"([^\"]*)\"", page)
    assert len(sources) == 12
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "default-src 'none'" in page
    assert "url(" not in page


def test_a_later_report_replaces_the_earlier_one(tmp_path: Path) -> None:
    write_report(tmp_path, make_data(snapshot_of()))
    page = write_report(tmp_path, make_data(snapshot_of([make_outcome("t-9", "dropped", reason="all_failed")])))
    assert "How groups ended" in page.read_text(encoding="utf-8")


def test_a_run_that_ended_at_once_has_a_page_without_curves(tmp_path: Path) -> None:
    page = write_report(tmp_path, make_data(snapshot_of()))
    text = page.read_text(encoding="utf-8")
    assert "ended before there was anything to draw" in text
    assert list((tmp_path / "curves").iterdir()) == []


@pytest.mark.parametrize("field", ["statement", "patch", "reason", "task_id", "tests"])
def test_hostile_text_of_an_attempt_stays_text(field: str) -> None:
    page = render_page(make_data(snapshot_of(), examples=[make_example(**{field: HOSTILE})]), [])
    assert "<script" not in page
    assert "<img" not in page
    assert "49" not in page
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in page


def test_hostile_text_of_the_run_file_stays_text() -> None:
    page = render_page(make_data(snapshot_of(), tables={HOSTILE: {HOSTILE: HOSTILE}}), [])
    assert "<script" not in page
    assert "<img" not in page


@settings(max_examples=25)
@given(st.text(max_size=200))
def test_no_text_of_an_attempt_adds_an_element(text: str) -> None:
    plain = render_page(make_data(snapshot_of(), examples=[make_example(statement="", reason="x")]), [])
    hostile = render_page(make_data(snapshot_of(), examples=[make_example(statement=text, reason="x")]), [])
    assert hostile.count("<") == plain.count("<")


def test_lines_of_a_patch_are_told_apart() -> None:
    patch = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-old\n+new\n"
    page = render_page(make_data(snapshot_of(), examples=[make_example(patch=patch)]), [])
    assert '<span class="del">-old</span>' in page
    assert '<span class="add">+new</span>' in page
    assert '<span class="row">--- a/x.py</span>' in page


def test_tiles_show_the_change_between_first_and_last() -> None:
    snapshot = snapshot_of(
        [make_outcome("e-0", "evaluated", num_passed=1), make_outcome("e-1", "evaluated", step=9, num_passed=3, num_clean=3)]
    )
    shown = tiles(summarize(snapshot, "try", "clean"), snapshot.rounds)
    assert shown[0] == Tile(label="held-out pass rate", before="0.25", after="0.75", note="+0.50, standard error 0.00")
    assert shown[1] == Tile(label="clean among passing", before="1.00", after="1.00", note="+0.00")
    assert shown[3].after == "clean"


def test_tiles_of_an_unfinished_run_have_dashes() -> None:
    shown = tiles(summarize(snapshot_of(), "try", "in flight: expected 0"), [])
    assert [tile.after for tile in shown] == ["-", "-", "0", "not clean"]


def test_curves_without_data_are_left_out() -> None:
    only_outcomes = snapshot_of([make_outcome("t-9", "dropped", reason="all_failed")])
    assert [picture.name for picture in draw_pictures(only_outcomes)] == ["outcomes"]
    assert draw_pictures(snapshot_of()) == []


@pytest.mark.parametrize(
    ("value", "text"), [("a", '"a"'), (3, "3"), (0.5, "0.5"), (True, "true"), ([1, "b"], '[1,"b"]'), ({"x": 1}, '{"x":1}')]
)
def test_values_of_the_run_file_read_as_they_were_written(value: object, text: str) -> None:
    assert toml_text(value) == text
