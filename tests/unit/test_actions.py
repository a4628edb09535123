"""The action parser against hostile text, and the observation's bounds."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagar.agent.actions import MAX_ACTION_CHARS, MAX_OBSERVATION_CHARS, format_observation, parse_action, shorten
from gagar.sandbox.protocol import CommandResult


def test_the_block_is_the_action() -> None:
    assert parse_action("first I look\n```bash\nls -l\ncat x\n```\nso") == "ls -l\ncat x\n"


def test_the_last_complete_block_wins() -> None:
    assert parse_action("```bash\none\n```\n```bash\ntwo\n```\n```bash\nthree") == "two\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ls",
        "```bash\nls",
        "```\nls\n```",
        "```python\nprint()\n```",
        "~~~bash\nls\n~~~",
        " ```bash\nls\n```",
        "```bash ls ```",
        "```bashful\nls\n```",
        "```bash\nls\0\n```",
        f"```bash\n{'x' * (MAX_ACTION_CHARS + 1)}\n```",
    ],
)
def test_what_is_no_complete_bounded_block_is_no_action(text: str) -> None:
    assert parse_action(text) is None


def test_an_opening_fence_inside_a_block_is_part_of_the_script() -> None:
    assert parse_action("```bash\ncat <<'E'\n```bash\nE\n```") == "cat <<'E'\n```bash\nE\n"


def test_other_line_ends_and_trailing_blanks_of_fences_are_taken() -> None:
    assert parse_action("```bash \r\nls\r\n```\r\n") == "ls\r\n"


def test_an_empty_block_is_an_empty_action() -> None:
    assert parse_action("```bash\n```") == ""


@given(st.text(alphabet="`bash\n x", max_size=200))
def test_an_action_is_always_a_part_of_the_text(text: str) -> None:
    action = parse_action(text)
    assert action is None or ((action == "" or action.endswith("\n")) and action in text + "\n")


def test_a_hostile_megabyte_is_parsed_in_linear_time() -> None:
    start = time.perf_counter()
    assert parse_action("```bash\n" * 200_000) is None
    assert time.perf_counter() - start < 2


def test_an_observation_tells_the_exit_code_and_the_output() -> None:
    assert format_observation(CommandResult(exit_code=3, output="no\n"), 5.0) == "exit code 3\nno\n"


def test_an_observation_of_a_killed_command_tells_so() -> None:
    assert format_observation(CommandResult(exit_code=-1, output="", is_timeout=True), 5.0) == "killed after 5 s\n"


def test_a_long_output_keeps_head_and_tail() -> None:
    text = format_observation(CommandResult(exit_code=0, output="a" * 50_000 + "z"), 5.0)
    assert text.startswith("exit code 0\na")
    assert text.endswith("z")
    assert len(text) < MAX_OBSERVATION_CHARS + 100


@given(st.text(max_size=50), st.integers(min_value=2, max_value=20))
def test_shortening_leaves_short_texts_alone(text: str, bound: int) -> None:
    short = shorten(text, bound)
    assert (short == text) == (len(text) <= bound)
