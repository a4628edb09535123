"""What came of a replay as `gagar replay` prints it: tables for people, or one object for programs."""

from collections.abc import Iterator
from typing import Any

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gagar.replay.comparing import FieldTally
from gagar.replay.judging import DIFFERENCES, ReplayResult

COMPARED = ("equal", "changed", "unrecorded", "groups_changed", "fields", "tasks", "differences")
"""Of a comparison; left out where there was none."""
MAX_CHANGES = 8
"""Changes of one answer that are shown."""
MAX_TEXT = 60


def as_object(result: ReplayResult) -> dict[str, Any]:
    """The result as one JSON object."""
    plain: dict[str, Any] = msgspec.to_builtins(result)
    del plain["is_compared"]
    return plain if result.is_compared else {name: value for name, value in plain.items() if name not in COMPARED}


def as_tables(result: ReplayResult) -> Iterator[RenderableType]:
    """The result for people."""
    for line in result.settings:
        yield Text(f"setting  {line}")
    if result.is_compared and result.changed:
        yield _differences(result)
        yield _fields(result)
    if result.tasks and result.changed:
        tasks = ", ".join(f"{task_id} {count}" for task_id, count in result.tasks.items())
        yield Text(f"tasks    {tasks}")
    for line in result.retired:
        yield Text(f"retired  {line}")
    if result.missing:
        num_more = result.missing - len(result.missing_names)
        yield Text(f"missing  inputs of {', '.join(result.missing_names)}{f' and {num_more} more' if num_more > 0 else ''}")
    yield Text(_sum(result))


def _sum(result: ReplayResult) -> str:
    counts = [f"{result.records} replayed"]
    if result.is_compared:
        counts += [f"{result.equal} equal", f"{result.changed} changed in {_groups(result.groups_changed)}"]
        counts += [f"{result.unrecorded} not recorded"] if result.unrecorded else []
    counts += [f"{result.dead_letters} dead letters"] if result.dead_letters else []
    counts += [f"{result.missing} missing"]
    return f"{result.stage}: {', '.join(counts)}; in {result.directory}"


def _groups(count: int) -> str:
    return f"{count} group{'' if count == 1 else 's'}"


def _differences(result: ReplayResult) -> Table:
    """The first answers that have changed, a row for each value."""
    table = Table("group", "input", "what", "recorded", "replayed", title="by group")
    for difference in result.differences:
        first = (difference.key, difference.input)
        for change in difference.changes[:MAX_CHANGES]:
            table.add_row(*map(Text, (*first, change.path, _shown(change.before), _shown(change.now))))
            first = ("", "")
        if len(difference.changes) > MAX_CHANGES:
            table.add_row("", "", Text(f"and {len(difference.changes) - MAX_CHANGES} more"), "", "")
    num_more = result.changed - len(result.differences)
    if num_more > 0:
        table.caption = f"and {num_more} more in {result.directory}/{DIFFERENCES}"
    return table


def _fields(result: ReplayResult) -> Table:
    """A row for each field."""
    table = Table("what", "changed", "how", title="in sum")
    for name, tally in sorted(result.fields.items()):
        table.add_row(Text(name), str(tally.count), Text(_how(tally)))
    return table


def _how(tally: FieldTally) -> str:
    ranked = sorted(tally.values.items(), key=lambda item: -item[1])
    lines = [f"{pair}: {count}" for pair, count in ranked]
    return "\n".join([*lines, *([f"by up to {tally.largest:.6g}"] if tally.largest else [])])


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."
