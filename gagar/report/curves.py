"""The curves of a run as PNG pictures, in a light and a dark dress.

In: a snapshot. Out: `Picture`s in memory, drawn by matplotlib without a display. Curves without data are left out.
"""

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from gagar.groups.rounds import ratio
from gagar.report.progress import AttemptSums, Snapshot, moving

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOVING_ATTEMPTS = 256
"""Attempts in the window of a moving average."""


DPI = 144
"""Of the pictures: sharp at twice the size that a page shows."""


class Palette(msgspec.Struct, frozen=True, kw_only=True):
    """Colours of one dress; the series are told apart by lightness too."""

    name: str
    background: str
    text: str
    grid: str
    series: tuple[str, str, str, str]


LIGHT = Palette(
    name="light", background="#ffffff", text="#1f2733", grid="#dfe4ea", series=("#1769aa", "#c2410c", "#15803d", "#7c3aed")
)
DARK = Palette(
    name="dark", background="#161b22", text="#d7dee7", grid="#30363d", series=("#58a6ff", "#f0883e", "#56d364", "#bc8cff")
)


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """One curve; the file name is `<name>.png` in light and `<name>-dark.png` in dark."""

    name: str
    title: str
    caption: str
    light: bytes
    dark: bytes


Points = list[tuple[float, float]]
Draw = Callable[["Figure", Snapshot, Palette], bool]
"""Draws on an empty figure; false if there is nothing to draw."""


def draw_pictures(snapshot: Snapshot) -> list[Picture]:
    """All curves that have data, in the order of the report."""
    pictures = []
    for name, title, caption, draw in CURVES:
        light, dark = _png(draw, snapshot, LIGHT), _png(draw, snapshot, DARK)
        if light and dark:
            pictures.append(Picture(name=name, title=title, caption=caption, light=light, dark=dark))
    return pictures


def _png(draw: Draw, snapshot: Snapshot, palette: Palette) -> bytes:
    """The picture's bytes; empty if there was nothing to draw."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(_style(palette)):
        figure = Figure(figsize=(7.2, 3.7), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        if not draw(figure, snapshot, palette):
            return b""
        target = io.BytesIO()
        figure.savefig(target, format="png")
        return target.getvalue()


def _style(palette: Palette) -> dict[str, Any]:
    return {
        "figure.facecolor": palette.background,
        "axes.facecolor": palette.background,
        "axes.edgecolor": palette.grid,
        "axes.labelcolor": palette.text,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": palette.grid,
        "grid.linewidth": 0.8,
        "text.color": palette.text,
        "xtick.color": palette.text,
        "ytick.color": palette.text,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "font.size": 10,
        "lines.linewidth": 2.2,
    }


def _line(axes: "Axes", points: Points, label: str, colour: str, **style: Any) -> None:
    if points:
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, label=label, color=colour, **style)


def _share_axes(figure: "Figure", ylabel: str) -> "Axes":
    axes = figure.subplots()
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel(ylabel)
    axes.set_xlabel("policy version (optimizer steps)")
    return axes


def _sampled(snapshot: Snapshot) -> list[AttemptSums]:
    return [a for a in snapshot.attempts if a.version >= 0 and a.num_valid]


def _over_versions(sums: list[AttemptSums], part: str, whole: str) -> Points:
    """One share per version, those without a whole left out."""
    shares = [(float(s.version), ratio(getattr(s, part), getattr(s, whole))) for s in sums]
    return [(x, y) for x, y in shares if y is not None]


def _draw_pass_rate(figure: "Figure", snapshot: Snapshot, palette: Palette) -> bool:
    sums = _sampled(snapshot)
    rounds = [(r.step, r.pass_rate, r.pass_error) for r in snapshot.rounds if r.pass_rate is not None]
    axes = _share_axes(figure, "pass rate")
    raw = _over_versions(sums, "num_passed", "num_valid")
    _line(axes, raw, "training, each version", palette.series[0], alpha=0.35, linewidth=1, marker=".", markersize=4)
    average = _over_versions(moving(sums, MOVING_ATTEMPTS), "num_passed", "num_valid")
    _line(axes, average, f"training, last {MOVING_ATTEMPTS} attempts", palette.series[0])
    if rounds:
        steps, rates, errors = zip(*rounds, strict=True)
        style: dict[str, Any] = {"fmt": "o--", "color": palette.series[1], "capsize": 4, "linewidth": 1.6, "markersize": 7}
        axes.errorbar(steps, rates, yerr=errors, label="held-out tasks (+- standard error)", **style)
    return _finish(axes, bool(sums or rounds))


def _draw_quality(figure: "Figure", snapshot: Snapshot, palette: Palette) -> bool:
    sums = moving([s for s in _sampled(snapshot) if s.num_passed], MOVING_ATTEMPTS)
    rounds = [(r.step, r.quality, r.quality_error) for r in snapshot.rounds if r.quality is not None]
    axes = _share_axes(figure, "share of passing attempts")
    _line(axes, _over_versions(sums, "num_clean", "num_passed"), "clean", palette.series[2])
    _line(axes, _over_versions(sums, "num_with_dead_code", "num_passed"), "dead code", palette.series[1], linestyle="--")
    _line(axes, _over_versions(sums, "num_out_of_scope", "num_passed"), "out of scope", palette.series[3], linestyle=":")
    if rounds:
        steps, shares, errors = zip(*rounds, strict=True)
        style: dict[str, Any] = {"fmt": "o", "color": palette.series[2], "capsize": 4, "markersize": 7}
        axes.errorbar(steps, shares, yerr=errors, label="clean, held-out tasks", **style)
    return _finish(axes, bool(sums or rounds))


def _draw_lengths(figure: "Figure", snapshot: Snapshot, palette: Palette) -> bool:
    sums = _sampled(snapshot)
    axes = figure.subplots()
    axes.set_xlabel("policy version (optimizer steps)")
    axes.set_ylabel("sampled tokens per attempt")
    raw = _over_versions(sums, "num_sampled_tokens", "num_valid")
    _line(axes, raw, "training, each version", palette.series[0], alpha=0.35, linewidth=1, marker=".", markersize=4)
    average = _over_versions(moving(sums, MOVING_ATTEMPTS), "num_sampled_tokens", "num_valid")
    _line(axes, average, f"training, last {MOVING_ATTEMPTS} attempts", palette.series[0])
    rounds: Points = [(r.step, r.num_sampled_tokens / r.num_valid) for r in snapshot.rounds if r.num_valid]
    _line(axes, rounds, "held-out tasks", palette.series[1], marker="o", linestyle="--", linewidth=1.6)
    axes.set_ylim(bottom=0)
    return _finish(axes, bool(sums or rounds))


def _draw_staleness(figure: "Figure", snapshot: Snapshot, palette: Palette) -> bool:
    steps = [s for s in snapshot.steps if s.num_groups]
    axes = figure.subplots()
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("staleness (steps)")
    if steps:
        oldest: Points = [(s.step, s.staleness_max) for s in steps]
        _line(axes, oldest, "oldest group", palette.series[1], drawstyle="steps-mid", linewidth=1, alpha=0.8)
        _line(axes, [(s.step, s.staleness_sum / s.num_groups) for s in steps], "mean over groups", palette.series[3])
    axes.set_ylim(0, max((s.staleness_max for s in steps), default=1) + 0.6)
    return _finish(axes, bool(steps))


def _draw_learner(figure: "Figure", snapshot: Snapshot, palette: Palette) -> bool:
    names = (("loss", "loss"), ("grad_norm", "gradient norm"), ("clip_fraction", "clipped share"))
    known: list[tuple[str, Points]] = []
    for key, label in names:
        points = [(float(s.step), s.metrics[key]) for s in snapshot.steps if key in s.metrics]
        known += [(label, points)] if points else []
    if not known:
        return False
    rows = figure.subplots(len(known), sharex=True, squeeze=False)[:, 0]
    for axes, (label, points), colour in zip(rows, known, palette.series, strict=False):
        _line(axes, points, label, colour, linewidth=1.6)
        axes.set_ylabel(label)
    rows[-1].set_xlabel("optimizer step")
    figure.align_ylabels()
    return True


def _draw_outcomes(figure: "Figure", snapshot: Snapshot, palette: Palette) -> bool:
    counts = [("trained", snapshot.num_trained), ("evaluated", snapshot.num_evaluated)]
    counts += [(f"dropped: {reason.replace('_', ' ')}", count) for reason, count in snapshot.dropped.items()]
    counts += [("in flight", snapshot.num_in_flight)] if snapshot.num_in_flight > 0 else []
    shown = [(label, count) for label, count in counts if count]
    axes = figure.subplots()
    if not shown:
        return False
    labels, values = zip(*reversed(shown), strict=True)
    colours = {"trained": palette.series[0], "evaluated": palette.series[2], "in flight": palette.series[3]}
    bars = axes.barh(labels, values, color=[colours.get(label, palette.series[1]) for label in labels], height=0.62)
    axes.bar_label(bars, padding=4)
    axes.margins(x=0.1)
    axes.set_xlabel("groups")
    axes.grid(visible=False, axis="y")
    return True


def _finish(axes: "Axes", has_data: bool) -> bool:
    if has_data:
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axes.legend(loc="best")
    return has_data


CURVES: tuple[tuple[str, str, str, Draw], ...] = (
    (
        "pass-rate",
        "Pass rate",
        "Share of valid attempts whose tests all passed, by the policy version that sampled them.",
        _draw_pass_rate,
    ),
    (
        "quality",
        "Quality of what passes",
        "Among passing attempts: clean ones, those with dead code, those that edit files outside the task.",
        _draw_quality,
    ),
    ("lengths", "Length", "Tokens that the policy sampled for an attempt, prompts not counted.", _draw_lengths),
    (
        "staleness",
        "Staleness",
        "Optimizer steps between the version that sampled a group's oldest token and the version that trained on it.",
        _draw_staleness,
    ),
    ("learner", "Learner", "Of each optimizer step.", _draw_learner),
    (
        "outcomes",
        "How groups ended",
        "Groups where all attempts pass or all fail teach nothing and are dropped; every group has exactly one outcome.",
        _draw_outcomes,
    ),
)
