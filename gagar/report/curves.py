"""The curves of a run as PNG pictures, in a light and a dark dress.

In: a snapshot. Out: `Picture`s in memory, drawn by matplotlib without a display. Curves without data are left out.
"""

import io
from collections.abc import Callable, Iterable
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

    background: str
    text: str
    grid: str
    series: tuple[str, str, str, str]


LIGHT = Palette(background="#ffffff", text="#1f2733", grid="#dfe4ea", series=("#1769aa", "#c2410c", "#15803d", "#7c3aed"))
DARK = Palette(background="#161b22", text="#d7dee7", grid="#30363d", series=("#58a6ff", "#f0883e", "#56d364", "#bc8cff"))


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """One curve; the file name is `<name>.png` in light and `<name>-dark.png` in dark."""

    name: str
    title: str
    caption: str
    light: bytes
    dark: bytes


Points = list[tuple[float, float]]
Draw = Callable[["Figure", Snapshot, Palette], None]
"""Draws on an empty figure; nothing if there are no data."""


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
    from matplotlib.figure import Figure

    with mpl.rc_context(_style(palette)):
        figure = Figure(figsize=(7.2, 3.7), dpi=DPI, layout="constrained")
        draw(figure, snapshot, palette)
        if not any(axes.has_data() for axes in figure.axes):
            return b""
        for axes in figure.axes:
            if axes.get_legend_handles_labels()[0]:
                axes.legend()
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


def _axes(figure: "Figure", ylabel: str, xlabel: str = "policy version (optimizer steps)") -> "Axes":
    """The only axes of a curve over steps."""
    from matplotlib.ticker import MaxNLocator

    axes = figure.subplots()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    return axes


def _line(axes: "Axes", points: Points, label: str, colour: str, **style: Any) -> None:
    if points:
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, label=label, color=colour, **style)


def _error_bars(axes: "Axes", rounds: Iterable[tuple[int, float | None, float]], label: str, colour: str, **style: Any) -> None:
    """Step, share and standard error of each round that has a share."""
    known = [entry for entry in rounds if entry[1] is not None]
    if known:
        steps, shares, errors = zip(*known, strict=True)
        axes.errorbar(steps, shares, yerr=errors, label=label, color=colour, capsize=4, markersize=7, **style)


def _sampled(snapshot: Snapshot) -> list[AttemptSums]:
    return [a for a in snapshot.attempts if a.version >= 0 and a.num_valid]


def _over_versions(sums: list[AttemptSums], part: str, whole: str) -> Points:
    """One share per version, those without a whole left out."""
    shares = [(float(s.version), ratio(getattr(s, part), getattr(s, whole))) for s in sums]
    return [(x, y) for x, y in shares if y is not None]


def _training(axes: "Axes", snapshot: Snapshot, part: str, colour: str) -> None:
    """What a valid training attempt has of `part`: of each version, and the moving average."""
    sums = _sampled(snapshot)
    raw, average = (_over_versions(s, part, "num_valid") for s in (sums, moving(sums, MOVING_ATTEMPTS)))
    _line(axes, raw, "training, each version", colour, alpha=0.35, linewidth=1, marker=".", markersize=4)
    _line(axes, average, f"training, last {MOVING_ATTEMPTS} attempts", colour)


def _draw_pass_rate(figure: "Figure", snapshot: Snapshot, palette: Palette) -> None:
    axes = _axes(figure, "pass rate")
    axes.set_ylim(-0.02, 1.02)
    _training(axes, snapshot, "num_passed", palette.series[0])
    rounds = ((r.step, r.pass_rate, r.pass_error) for r in snapshot.rounds)
    _error_bars(axes, rounds, "held-out tasks (+- standard error)", palette.series[1], fmt="o--", linewidth=1.6)


def _draw_quality(figure: "Figure", snapshot: Snapshot, palette: Palette) -> None:
    sums = moving([s for s in _sampled(snapshot) if s.num_passed], MOVING_ATTEMPTS)
    axes = _axes(figure, "share of passing attempts")
    axes.set_ylim(-0.02, 1.02)
    _line(axes, _over_versions(sums, "num_clean", "num_passed"), "clean", palette.series[2])
    _line(axes, _over_versions(sums, "num_with_dead_code", "num_passed"), "dead code", palette.series[1], linestyle="--")
    _line(axes, _over_versions(sums, "num_out_of_scope", "num_passed"), "out of scope", palette.series[3], linestyle=":")
    rounds = ((r.step, r.quality, r.quality_error) for r in snapshot.rounds)
    _error_bars(axes, rounds, "clean, held-out tasks", palette.series[2], fmt="o")


def _draw_lengths(figure: "Figure", snapshot: Snapshot, palette: Palette) -> None:
    axes = _axes(figure, "sampled tokens per attempt")
    _training(axes, snapshot, "num_sampled_tokens", palette.series[0])
    rounds: Points = [(r.step, r.num_sampled_tokens / r.num_valid) for r in snapshot.rounds if r.num_valid]
    _line(axes, rounds, "held-out tasks", palette.series[1], marker="o", linestyle="--", linewidth=1.6)
    axes.set_ylim(bottom=0)


def _draw_staleness(figure: "Figure", snapshot: Snapshot, palette: Palette) -> None:
    steps = [s for s in snapshot.steps if s.num_groups]
    axes = _axes(figure, "staleness (steps)", "optimizer step")
    oldest: Points = [(s.step, s.staleness_max) for s in steps]
    _line(axes, oldest, "oldest group", palette.series[1], drawstyle="steps-mid", linewidth=1, alpha=0.8)
    _line(axes, [(s.step, s.staleness_sum / s.num_groups) for s in steps], "mean over groups", palette.series[3])
    axes.set_ylim(0, max((s.staleness_max for s in steps), default=1) + 0.6)


def _draw_learner(figure: "Figure", snapshot: Snapshot, palette: Palette) -> None:
    names = (("loss", "loss"), ("grad_norm", "gradient norm"), ("clip_fraction", "clipped share"))
    lines = ((label, [(float(s.step), s.metrics[key]) for s in snapshot.steps if key in s.metrics]) for key, label in names)
    known = [(label, points) for label, points in lines if points]
    if not known:
        return
    rows = figure.subplots(len(known), sharex=True, squeeze=False)[:, 0]
    for axes, (label, points), colour in zip(rows, known, palette.series, strict=False):
        _line(axes, points, "", colour, linewidth=1.6)
        axes.set_ylabel(label)
    rows[-1].set_xlabel("optimizer step")
    figure.align_ylabels()


def _draw_outcomes(figure: "Figure", snapshot: Snapshot, palette: Palette) -> None:
    counts = [("trained", snapshot.num_trained), ("evaluated", snapshot.num_evaluated)]
    counts += [(f"dropped: {reason.replace('_', ' ')}", count) for reason, count in snapshot.dropped.items()]
    counts.append(("in flight", snapshot.num_in_flight))
    shown = [(label, count) for label, count in counts if count > 0]
    if not shown:
        return
    labels, values = zip(*reversed(shown), strict=True)
    colours = {"trained": palette.series[0], "evaluated": palette.series[2], "in flight": palette.series[3]}
    axes = figure.subplots()
    bars = axes.barh(labels, values, color=[colours.get(label, palette.series[1]) for label in labels], height=0.62)
    axes.bar_label(bars, padding=4)
    axes.margins(x=0.1)
    axes.set_xlabel("groups")
    axes.grid(visible=False, axis="y")


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
