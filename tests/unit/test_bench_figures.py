"""Statistics and tables of the bench."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.figures import Spread, number, paired_ratio, percentile, table

values = st.lists(st.floats(min_value=-1e6, max_value=1e6), min_size=1, max_size=50)


def test_percentiles_lie_between_the_nearest_values() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([1.0, 2.0], 50) == 1.5
    assert percentile([float(value) for value in range(101)], 99) == 99.0


@given(values, st.floats(min_value=0, max_value=100))
def test_a_percentile_stays_within_the_sample(sample: list[float], percent: float) -> None:
    assert min(sample) - 1e-6 <= percentile(sample, percent) <= max(sample) + 1e-6


@given(values)
def test_the_ends_of_a_sample_are_its_outer_percentiles(sample: list[float]) -> None:
    assert (percentile(sample, 0), percentile(sample, 100)) == (min(sample), max(sample))


def test_a_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="percentile: expected at least one value, got none"):
        percentile([], 50)


def test_ratios_are_taken_pair_by_pair() -> None:
    assert paired_ratio([2.0, 20.0, 6.0], [1.0, 10.0, 2.0]) == Spread(median=2.0, low=2.0, high=3.0)


def test_pairs_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired_ratio([1.0, 2.0], [1.0])


def test_a_spread_is_two_keys_of_the_last_line() -> None:
    assert Spread.of([1.0, 3.00004, 9.0]).as_json("x_ms") == {"x_ms": 3.0, "x_ms_range": [1.0, 9.0]}


def test_numbers_have_three_digits_and_no_exponent() -> None:
    assert [number(value) for value in (0.7421, 12.345, 1520.4, 1234567.0)] == ["0.742", "12.3", "1,520", "1,234,567"]


def test_a_table_aligns_names_to_the_left_and_figures_to_the_right() -> None:
    lines = table("title", ["", "ms"], [["fresh", "466"], ["warm sandbox", "32.5"]]).splitlines()
    assert lines == [
        "title",
        "                  ms",
        "  ------------  ----",
        "  fresh          466",
        "  warm sandbox  32.5",
    ]
