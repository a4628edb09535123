"""Dead statements: what counts, what does not, and that each counts once."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagar.sandbox.inside.dead_code import MAX_FILE_CHARS, count_dead_statements, find_dead_statements


def count(body: str, path: str = "x.py") -> int:
    """Dead statements of a function `f(x)` with that body."""
    return len(find_dead_statements(path, "def f(x):\n" + "".join(f"    {line}\n" for line in body.split("\n"))))


@pytest.mark.parametrize(
    "body",
    [
        "t = 0\nreturn x",
        "x = x\nreturn x",
        "pass\nreturn x",
        "x\nreturn x",
        "import os\nreturn x",
        "return x\nreturn None",
        "return x\nx = 0",
        "x, x = x, x\nreturn x",
        "x += 0\nreturn x",
        "x *= 1\nreturn x",
        "t: int = 0\nreturn x",
        "x + 1\nreturn x",
        "[x]\nreturn x",
        "'doc'\n'no doc'\nreturn x",
        "0\nreturn x",
        "...\nreturn x",
        "if True:\n    return x",
        "if x:\n    return x\nelse:\n    pass",
        "for y in x:\n    print(y)\n    continue\n    print(x)",
        "while x:\n    break\n    x = 0",
        "raise ValueError\nx = 0",
        "from os import path, sep\nreturn x",
        "return x\nif x:\n    t = 0\n    return t",
        "import os\nimport os\nreturn os",
    ],
)
def test_a_dead_statement_counts_once(body: str) -> None:
    assert count(body) == 1


@pytest.mark.parametrize(
    "body",
    [
        "return x",
        "pass",
        "...",
        "'doc'\nreturn x",
        "import os\nreturn os.sep",
        "x.append(1)\nreturn x",
        "x += 1\nreturn x",
        "y = x\nreturn y",
        "x, y = 1, x\nreturn x, y",
        "yield x",
        "(y := x)\nreturn y",
        "try:\n    x.y\nexcept AttributeError:\n    pass",
        "for y in x:\n    pass",
        "if x:\n    return 1\nreturn 2",
        "for y in x:\n    if y:\n        continue\n    print(y)",
        "def g():\n    return x\nreturn g",
        "x.y = x\nreturn x",
    ],
)
def test_a_statement_with_a_purpose_does_not_count(body: str) -> None:
    assert count(body) == 0


def test_attribute_docstrings_and_reexports_are_fine() -> None:
    assert (
        find_dead_statements(
            "x.py", '"""doc"""\nLIMIT = 1\n"""Of what."""\n\n\nclass A:\n    """doc"""\n\n    x: int\n    """x"""\n'
        )
        == []
    )
    assert find_dead_statements("pack/__init__.py", "from os import path\n") == []
    assert len(find_dead_statements("pack/module.py", "from os import path\n")) == 1


def test_only_what_the_patch_brought_in_counts() -> None:
    old = "import os\n\n\ndef f(x):\n    t = 0\n    return x\n"
    moved = "import os\n\n\ndef g():\n    return 1\n\n\ndef f(x):\n    t = 0\n    return x + 1\n"
    assert count_dead_statements({"x.py": old}, {"x.py": moved}) == 0
    assert count_dead_statements({"x.py": old}, {"x.py": moved + "\n\ndef h(x):\n    t = 0\n    return x\n"}) == 1
    assert count_dead_statements({"x.py": old, "y.py": ""}, {"x.py": old, "y.py": old, "notes.md": "import os"}) == 2


@pytest.mark.parametrize("source", ["def f(:", "\0", "(" * 500, "x" * (MAX_FILE_CHARS + 1), "x = 1\n\tx = 1\n"])
def test_what_does_not_parse_counts_for_nothing(source: str) -> None:
    assert count_dead_statements({}, {"x.py": source}) == 0


STATEMENTS = st.sampled_from(
    ["t = 0", "x = x", "pass", "x", "import os", "return x", "return None", "x = 0", "x = f(x)", "if x:\n        x"]
)


@given(st.lists(STATEMENTS, min_size=1, max_size=8))
def test_no_more_counts_than_there_are_statements(statements: list[str]) -> None:
    source = "def f(x):\n" + "".join(f"    {statement}\n" for statement in statements)
    number = sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(source))) - 1
    assert 0 <= count_dead_statements({}, {"x.py": source}) <= number
    assert count_dead_statements({"x.py": source}, {"x.py": source + "\n"}) == 0
