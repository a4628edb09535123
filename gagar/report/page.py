"""The report of a run: `report.html`, one file that needs no other, and its curves as PNG files beside it.

In: a directory and `ReportData`. Out: the page's path. Texts of agents and tasks are hostile: the template escapes everything.
"""

import base64
import math
from pathlib import Path
from typing import Any

import msgspec

from gagar.groups.rounds import Round
from gagar.report.curves import Picture, draw_pictures
from gagar.report.examples import ShownAttempt
from gagar.report.progress import Snapshot
from gagar.report.summary import Summary, summary_rows

TEMPLATES = Path(__file__).parent.parent / "data" / "report"


class ReportData(msgspec.Struct, frozen=True, kw_only=True):
    """All that a report shows."""

    summary: Summary
    snapshot: Snapshot
    examples: list[ShownAttempt]
    tables: dict[str, dict[str, Any]]
    """The run file's, as the run used them."""
    made_at: str
    """UTC, for people."""


class Tile(msgspec.Struct, frozen=True, kw_only=True):
    """One figure in large type. Example: `held-out pass rate`, `0.36`, `0.74`, `+0.38`."""

    label: str
    before: str
    after: str
    note: str


def write_report(directory: Path, data: ReportData) -> Path:
    """Writes the page and the pictures, over those of an earlier call; returns the page's path."""
    pictures = draw_pictures(data.snapshot)
    curves = directory / "curves"
    curves.mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        (curves / f"{picture.name}.png").write_bytes(picture.light)
        (curves / f"{picture.name}-dark.png").write_bytes(picture.dark)
    page = directory / "report.html"
    page.write_text(render_page(data, pictures), encoding="utf-8")
    return page


def render_page(data: ReportData, pictures: list[Picture]) -> str:
    """The page as text, pictures embedded."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["base64"] = lambda data: base64.b64encode(data).decode()
    return environment.get_template("report.html").render(
        summary=data.summary,
        tiles=tiles(data.summary, data.snapshot.rounds),
        rows=summary_rows(data.summary, data.snapshot.rounds),
        pictures=pictures,
        examples=data.examples,
        tables={name: {key: toml_text(v) for key, v in table.items()} for name, table in data.tables.items()},
        made_at=data.made_at,
    )


def tiles(summary: Summary, rounds: list[Round]) -> list[Tile]:
    """The headline: pass rate and quality, first and last, and how many groups taught something."""
    kept = summary.groups_trained
    judged = kept + sum(summary.groups_dropped.values())
    error = math.hypot(rounds[0].pass_error, rounds[-1].pass_error) if rounds else 0.0
    return [
        _change("held-out pass rate", summary.pass_rate_first, summary.pass_rate_last, f", standard error {error:.2f}"),
        _change("clean among passing", summary.quality_first, summary.quality_last, ""),
        Tile(label="groups trained on", before="", after=str(kept), note=f"of {judged} training groups"),
        Tile(label="conservation of groups", before="", after=_audit_word(summary.audit), note="audit of the topics"),
    ]


def _change(label: str, first: float | None, last: float | None, error: str) -> Tile:
    if first is None or last is None:
        return Tile(label=label, before="", after="-" if first is None else f"{first:.2f}", note="one evaluation or none")
    return Tile(label=label, before=f"{first:.2f}", after=f"{last:.2f}", note=f"{last - first:+.2f}{error}")


def _audit_word(audit: str) -> str:
    return audit if audit == "clean" else "not clean" if audit else "-"


def toml_text(value: object) -> str:
    """A value of the run file as TOML writes it; a table inside a table as JSON."""
    return msgspec.json.encode(value).decode()
