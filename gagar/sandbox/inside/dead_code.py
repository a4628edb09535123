"""Dead code: statements that nothing needs, counted in the syntax tree, nothing is executed.

In: text files before and after. Out: how many statements the change brought in that do nothing. Standard library and
pyflakes only: it runs inside the sandbox, since source that nobody trusts can take a parser down. A file that cannot be
parsed counts for nothing (its tests fail anyway). Not promised: every statement that could be left out.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping

MAX_FILE_CHARS = 256 << 10
MAX_FILES = 200

_FLAKES = ("UnusedImport", "UnusedVariable", "UnusedAnnotation", "RedefinedWhileUnused")
_JUMPS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_EFFECTS = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
_NEUTRAL = {ast.Add: 0, ast.Sub: 0, ast.Mult: 1}
"""Operand that an augmented assignment changes nothing with."""

Finding = tuple[str, str]
"""Kind and text of a statement; the same wherever it stands."""


def count_dead_statements(base: Mapping[str, str], result: Mapping[str, str]) -> int:
    """How many dead statements the Python files of `result` have beyond those of `base`."""
    changed = [path for path in sorted(result) if path.endswith(".py") and result[path] != base.get(path)]
    total = 0
    for path in changed[:MAX_FILES]:
        new = Counter(find_dead_statements(path, result[path]))
        new.subtract(find_dead_statements(path, base.get(path, "")))
        total += sum(count for count in new.values() if count > 0)
    return total


def find_dead_statements(path: str, source: str) -> list[Finding]:
    """The dead statements of a file, each once; none if it is too large or does not parse."""
    if len(source) > MAX_FILE_CHARS:
        return []
    try:
        tree = ast.parse(source)
        found = _by_line(_statements(tree))
        for line, kind in _flakes(path, tree):
            if not any(start <= line <= end for start, end in found):
                found[line, line] = (kind, _line_of(source, line))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return list(found.values())


def _by_line(statements: Iterator[tuple[str, ast.stmt]]) -> dict[tuple[int, int], Finding]:
    """Findings by the lines that they cover; what lies inside another is left out."""
    found: dict[tuple[int, int], Finding] = {}
    for kind, node in statements:
        first, last = node.lineno, node.end_lineno or node.lineno
        if not any(start <= first and last <= end for start, end in found):
            found[first, last] = (kind, ast.unparse(node))
    return found


def _line_of(source: str, line: int) -> str:
    return source.split("\n")[line - 1].strip()


def _flakes(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    from pyflakes.checker import Checker

    is_package = path.rpartition("/")[2] == "__init__.py"
    for message in Checker(tree, path).messages:
        kind = type(message).__name__
        # A package imports names for others to use.
        if kind in _FLAKES and not (is_package and kind == "UnusedImport"):
            yield message.lineno, kind


def _statements(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Dead statements, outer ones first."""
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block:
                yield from _of_block(node, field, block)


def _of_block(owner: ast.AST, field: str, block: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    is_over = False
    for position, statement in enumerate(block):
        if is_over:
            yield "unreachable", statement
        elif isinstance(statement, ast.Pass):
            if len(block) > 1 or field != "body":
                yield "pass", statement
        elif isinstance(statement, ast.Expr):
            if _is_idle(owner, field, block, position):
                yield "no effect", statement
        elif _changes_nothing(statement):
            yield "changes nothing", statement
        is_over = is_over or isinstance(statement, _JUMPS)


def _is_idle(owner: ast.AST, field: str, block: list[ast.stmt], position: int) -> bool:
    """Whether an expression statement has no effect and is no docstring, no `...` body and no probe in a `try`."""
    statement = block[position]
    assert isinstance(statement, ast.Expr)
    value = statement.value
    if isinstance(value, ast.Constant) and isinstance(value.value, str) and field == "body":
        return not _is_docstring(owner, block, position)
    if isinstance(value, ast.Constant) and value.value is ...:
        return len(block) > 1
    if isinstance(owner, ast.Try) and field == "body":
        return False
    return not any(isinstance(node, _EFFECTS) for node in ast.walk(value))


def _is_docstring(owner: ast.AST, block: list[ast.stmt], position: int) -> bool:
    has_one = isinstance(owner, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
    if position == 0:
        return has_one
    return isinstance(owner, (ast.Module, ast.ClassDef)) and isinstance(block[position - 1], (ast.Assign, ast.AnnAssign))


def _changes_nothing(statement: ast.stmt) -> bool:
    """`x = x`, `x += 0`, a condition that is a constant."""
    if isinstance(statement, ast.Assign):
        value = statement.value
        is_name = isinstance(value, (ast.Name, ast.Tuple)) and all(
            isinstance(item, ast.Name) for item in getattr(value, "elts", [value])
        )
        return is_name and [ast.unparse(target) for target in statement.targets] == [ast.unparse(value)]
    if isinstance(statement, ast.AugAssign):
        neutral = _NEUTRAL.get(type(statement.op))
        return isinstance(statement.value, ast.Constant) and statement.value.value == neutral
    return isinstance(statement, ast.If) and isinstance(statement.test, ast.Constant)
