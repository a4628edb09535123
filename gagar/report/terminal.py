"""The live view of a run: a compact screen on a terminal, a line every few seconds elsewhere.

In: `Screen`, what is known at one moment. Out: a rich renderable of at most 24 lines of 80 columns, or one line of text. Kept:
the record counts of the last seconds, for rates. Nothing here reads a topic or a process.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from rich.console import Group, OverflowMethod, RenderableType
from rich.table import Table
from rich.text import Text

from gagar.groups.rounds import Round, ratio
from gagar.report.progress import Snapshot, recent
from gagar.stream.spec import Stage

RECENT_ATTEMPTS = 256
"""Attempts behind the pass rate that is shown."""
RATE_WINDOW_S = 15.0
BLOCKS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
ASCII_BLOCKS = "_.-=+*%#"
LABEL_WIDTH = 9
MAX_TROUBLE = 300
"""Characters: four lines."""


class StageRow(msgspec.Struct, frozen=True, kw_only=True):
    """One stage: its processes and its topic."""

    name: str
    num_up: int
    num_processes: int
    num_restarts: int
    lag: int | None
    """Input records not yet finished; none if unknown, or for a stage that consumes none."""
    rate: float
    """Output records per second."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the watched run is."""

    run_name: str
    num_steps: int
    stages: tuple[Stage, ...]
    log_dir: str


class Screen(msgspec.Struct, frozen=True, kw_only=True):
    """All that is shown at one moment."""

    plan: Plan
    phase: str
    """What is going on, in a word or two. Example: `training`."""
    elapsed_s: float
    stages: list[StageRow]
    snapshot: Snapshot
    trouble: str = ""
    """What went wrong last, in a line; empty if nothing did."""


class Rates:
    """Records per second and topic over the last `RATE_WINDOW_S` seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[str, int]]] = deque()

    def update(self, now: float, records: Mapping[str, int]) -> None:
        """Takes in the counts at `now`; call it about once a second."""
        self._seen.append((now, dict(records)))
        while len(self._seen) > 2 and now - self._seen[1][0] >= RATE_WINDOW_S:
            self._seen.popleft()

    def rate(self, topics: Iterable[str]) -> float:
        """Of all `topics` together; 0 before the second update."""
        if len(self._seen) < 2 or self._seen[-1][0] <= self._seen[0][0]:
            return 0.0
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        return sum(after.get(t, 0) - before.get(t, 0) for t in topics) / (last - first)


def sparkline(values: Sequence[float], width: int, blocks: str = BLOCKS) -> str:
    """Shares 0 .. 1 as one line of at most `width` bars, each the mean of as many values as it takes."""
    if not values:
        return ""
    size = -(-len(values) // width)
    chunks = [values[i : i + size] for i in range(0, len(values), size)]
    top = len(blocks) - 1
    return "".join(blocks[round(min(max(sum(c) / len(c), 0.0), 1.0) * top)] for c in chunks)


def clock(seconds: float) -> str:
    """`m:ss`, or `h:mm:ss` from an hour on."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def share(value: float | None) -> str:
    """Two decimals, or a dash for nothing."""
    return "-" if value is None else f"{value:.2f}"


def number(value: float | None) -> str:
    """Three significant digits, or a dash for nothing."""
    return "-" if value is None else f"{value:.3g}"


def plain_line(screen: Screen) -> str:
    """The moment as one line for logs. Example: `1:20 training step=12/50 pass=0.41 clean=0.52 requested=130 ...`."""
    snapshot = screen.snapshot
    sums = recent(snapshot.attempts, RECENT_ATTEMPTS)
    lag = sum(row.lag or 0 for row in screen.stages)
    fields = {
        "step": f"{max(snapshot.step, 0)}/{screen.plan.num_steps}",
        "pass": share(ratio(sums.num_passed, sums.num_valid)),
        "clean": share(ratio(sums.num_clean, sums.num_passed)),
        "requested": snapshot.num_requested,
        "trained": snapshot.num_trained,
        "evaluated": snapshot.num_evaluated,
        "dropped": snapshot.num_dropped,
        "in_flight": snapshot.num_in_flight,
        "staleness": number(trained.staleness) if (trained := snapshot.newest_trained) else "-",
        "loss": number(snapshot.metrics.get("loss")),
        "lag": lag,
        "restarts": sum(row.num_restarts for row in screen.stages),
    }
    trouble = f" trouble={screen.trouble}" if screen.trouble else ""
    return f"{clock(screen.elapsed_s):>5} {screen.phase} " + " ".join(f"{k}={v}" for k, v in fields.items()) + trouble


def render(screen: Screen, is_unicode: bool = True) -> RenderableType:
    """The moment as a screen for a terminal."""
    return Group(_header(screen, is_unicode), _stages(screen.stages), *_facts(screen, is_unicode))


def _header(screen: Screen, is_unicode: bool) -> Text:
    width = 20
    done = min(max(screen.snapshot.step, 0) / screen.plan.num_steps, 1.0)
    full, empty = ("\u2501", "\u2500") if is_unicode else ("=", "-")
    num_full = round(done * width)
    return Text.assemble(
        (" gagar ", "bold reverse"),
        (f" {screen.plan.run_name} ", "bold"),
        f" {clock(screen.elapsed_s)}  {screen.phase}  ",
        (full * num_full, "green"),
        (empty * (width - num_full), "dim"),
        f" step {max(screen.snapshot.step, 0)}/{screen.plan.num_steps}",
        no_wrap=True,
        overflow="crop",
    )


def _stages(rows: list[StageRow]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 1), header_style="dim")
    table.add_column("stage", min_width=20, no_wrap=True)
    for heading in ("up", "restarts", "lag", "out/s"):
        table.add_column(heading, justify="right", min_width=8, no_wrap=True)
    for row in rows:
        table.add_row(
            row.name,
            f"[{'green' if row.num_up == row.num_processes else 'red'}]{row.num_up}/{row.num_processes}[/]",
            f"[yellow]{row.num_restarts}[/]" if row.num_restarts else "[dim]0[/]",
            "[dim]-[/]" if row.lag is None else str(row.lag),
            f"{row.rate:.1f}",
        )
    return table


def _facts(screen: Screen, is_unicode: bool) -> list[Text]:
    """The lines below the table, each with its label."""
    snapshot = screen.snapshot
    sums = recent(snapshot.attempts, RECENT_ATTEMPTS)
    rates = [r for a in snapshot.attempts if a.version >= 0 and (r := ratio(a.num_passed, a.num_valid)) is not None]
    bars = sparkline(rates, 40, BLOCKS if is_unicode else ASCII_BLOCKS)
    restarted = f", {snapshot.num_superseded} superseded" if snapshot.num_superseded else ""
    letters = f"  dead letters {snapshot.num_dead_letters}" if snapshot.num_dead_letters else ""
    return [
        _line("", ""),
        _line(
            "groups",
            f"{snapshot.num_requested} requested: {snapshot.num_trained} trained, {snapshot.num_evaluated} evaluated, "
            f"{snapshot.num_in_flight} in flight{restarted}",
        ),
        _line("dropped", (", ".join(f"{n} {r}" for r, n in snapshot.dropped.items()) or "none") + letters),
        _line("pass", f"{share(ratio(sums.num_passed, sums.num_valid))} of {sums.num_valid}  ", bars, "cyan"),
        _line(
            "quality",
            f"{share(ratio(sums.num_clean, sums.num_passed))} of passing are clean; "
            f"{sums.num_with_dead_code} dead code, {sums.num_out_of_scope} out of scope",
        ),
        _line("held-out", _rounds(snapshot.rounds)),
        _line("tokens", f"{number(ratio(sums.num_sampled_tokens, sums.num_valid))} sampled per attempt"),
        _line("learner", _learner(snapshot)),
        _line("logs", screen.plan.log_dir, style="dim"),
        # In full over a few lines: its end tells the most.
        *([_line("trouble", "", screen.trouble[-MAX_TROUBLE:], "red", is_folded=True)] if screen.trouble else []),
    ]


def _line(label: str, text: str, tail: str = "", style: str = "", *, is_folded: bool = False) -> Text:
    overflow: OverflowMethod = "fold" if is_folded else "crop"
    return Text.assemble((f" {label:<{LABEL_WIDTH}}", "dim"), text, (tail, style), no_wrap=not is_folded, overflow=overflow)


def _rounds(rounds: list[Round]) -> str:
    """The first and the newest evaluation round."""
    shown = rounds[:1] + rounds[1:][-1:]
    texts = [f"step {r.step}: {share(r.pass_rate)} +-{r.pass_error:.2f} clean {share(r.quality)}" for r in shown]
    return ", ".join(texts) or "not evaluated yet"


def _learner(snapshot: Snapshot) -> str:
    """The newest step's figures; those that the learner reports."""
    metrics = snapshot.metrics
    figures = [f"{name} {number(metrics[key])}" for key, name in METRIC_NAMES.items() if key in metrics]
    if trained := snapshot.newest_trained:
        figures.insert(0, f"staleness {number(trained.staleness)} (max {trained.staleness_max})")
    return ", ".join(figures) if figures else f"version {snapshot.version}" if snapshot.version >= 0 else "starting"


METRIC_NAMES = {"loss": "loss", "grad_norm": "grad", "clip_fraction": "clip"}
