"""Figures of repeated measurements, and tables of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Median and range of one quantity."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return cls(median=percentile(values, 50), low=min(values), high=max(values))

    def __str__(self) -> str:
        return f"{number(self.median)} ({number(self.low)} to {number(self.high)})"

    def as_json(self, name: str) -> dict[str, Any]:
        """`name` and `name_range`."""
        return {name: rounded(self.median), f"{name}_range": [rounded(self.low), rounded(self.high)]}


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one part of the bench found."""

    table: str
    """For people."""
    figures: Mapping[str, Any]
    """For programs: the part's object in the last line."""


def percentile(values: Sequence[float], percent: float) -> float:
    """Interpolated between the two nearest values of a sample; raises ValueError if there is none."""
    if not values:
        raise ValueError("percentile: expected at least one value, got none")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Of the ratios of each pair: two things measured one after the other share the state of the machine."""
    return Spread.of([a / b for a, b in zip(above, below, strict=True)])


def rounded(value: float) -> float:
    """To four significant digits."""
    return float(f"{value:.4g}")


def number(value: float) -> str:
    """Three significant digits, no exponent. Example: `1520`, `0.74`."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Plain text in columns: the first to the left, the others to the right."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    texts = [
        "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(cells))
        for cells in (list(zip(line, widths, strict=True)) for line in lines)
    ]
    return "\n".join(
        [title, *(f"  {text.rstrip()}" for text in (texts[0], "  ".join("-" * width for width in widths), *texts[1:]))]
    )
