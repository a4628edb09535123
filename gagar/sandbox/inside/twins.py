"""Protected test files, loaded from memory and with traps in them.

In: the text of a test file. Out: a module whose name exists nowhere in the tree, that holds its tests, a canary under a
random name that must fail, and `==` assertions that also try a value that cannot be right: an object equal to everything
gives itself away.
"""

import ast
import types
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 8
"""Of nested containers whose leaves are replaced."""
CANARY = "\n\ndef {name}():\n    assert 0 == 1\n"


def load_tests(source: str, path: str, module: types.ModuleType, canary: str, alarm: Callable[[str], None]) -> None:
    """Executes `source` in `module` with the canary at its end."""
    tree = ast.parse(source + CANARY.format(name=canary), path)
    compare = f"_{canary}"
    _Twin(compare).visit(tree)
    vars(module)[compare] = Comparison(alarm)
    exec(compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True), vars(module))


class _Twin(ast.NodeTransformer):
    """Turns `assert a == b` into `assert compare(a, b)`, unless it speaks of ANY."""

    def __init__(self, compare: str) -> None:
        self.compare = compare

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        test = node.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq) and not _names_any(test):
            call = ast.Call(ast.Name(self.compare, ast.Load()), [test.left, test.comparators[0]], [])
            node.test = ast.copy_location(call, test)
        return node


def _names_any(node: ast.AST) -> bool:
    names = (getattr(child, "id", getattr(child, "attr", "")) for child in ast.walk(node))
    return "ANY" in names


class Comparison:
    """`==` that raises the alarm if an object is also equal to what it cannot be equal to."""

    def __init__(self, alarm: Callable[[str], None]) -> None:
        self.alarm = alarm

    def __call__(self, left: Any, right: Any) -> Any:
        result = left == right
        if result and (_equals(left, _twin(right)) or _equals(right, _twin(left))):
            self.alarm("a value is equal to what it cannot be equal to")
        return result


def _twin(value: Any, depth: int = 0) -> Any:
    """The value with other leaves; lists, tuples and dicts of the exact types keep their shape."""
    kind = type(value)
    if kind in (list, tuple) and value and depth < MAX_DEPTH:
        return kind([_twin(item, depth + 1) for item in value])
    if kind is dict and value and depth < MAX_DEPTH:
        return {key: _twin(item, depth + 1) for key, item in value.items()}
    return object()


def _equals(value: Any, other: Any) -> bool:
    try:
        return bool(value == other)
    except Exception:
        return False
