"""Breaks one function of the source: finds it by its name wherever it lives, and replaces a snippet of it by another.

Compared is what Python parses, so that formatting and comments do not matter, nor the file that the function is in.
"""

import ast
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SOURCE_FOLDERS = ("gagar", "topology", "producers", "consumers")
Function = ast.FunctionDef | ast.AsyncFunctionDef


class StaleMutantError(Exception):
    """The source has changed and the table of mutants has not."""


class Mutant(NamedTuple):
    """A rule of the runtime, and the change that breaks it."""

    rule: str
    function: str
    """Its name, with that of its class (`Lane._take_over`); with the module's before it where it means several."""
    old: str
    """Statements or an expression that the function holds exactly once."""
    new: str
    killer: str = ""
    """The test that is run first, by its name: most likely to fail."""


class Broken(NamedTuple):
    """A mutant's file, relative to the root of the source, and the text that breaks it."""

    path: Path
    text: str


class Source:
    """The functions of the source below `root`, by name; what is not mutated is parsed only once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._paths: defaultdict[str, list[Path]] = defaultdict(list)
        for path in sorted(path for folder in SOURCE_FOLDERS for path in (root / folder).rglob("*.py")):
            for name, _ in _functions(_parsed_file(path)):
                self._paths[name].append(path)
                self._paths[f"{path.stem}.{name}"].append(path)

    def broken(self, mutant: Mutant) -> Broken:
        """Raises StaleMutantError unless the mutant's function and its snippet are found exactly once."""
        paths = self._paths.get(mutant.function, [])
        if len(paths) != 1:
            found = ", ".join(str(path.relative_to(self._root)) for path in paths)
            raise StaleMutantError(f"mutant {mutant.rule!r}: expected one function {mutant.function}, got {found or 'none'}")
        tree = _parsed_file(paths[0])
        (function,) = (node for name, node in _functions(tree) if mutant.function in (name, f"{paths[0].stem}.{name}"))
        count = replace(function, mutant.old, mutant.new)
        if count != 1:
            raise StaleMutantError(
                f"mutant {mutant.rule!r}: expected once in {mutant.function}, got {count} times: {mutant.old.strip()}"
            )
        return Broken(paths[0].relative_to(self._root), ast.unparse(ast.fix_missing_locations(tree)))


def replace(function: Function, old: str, new: str) -> int:
    """Replaces every place in a function that parses as `old` does; how many there were."""
    old_statements, new_statements = _parsed(old), _parsed(new)
    if _is_expression(old_statements) and _is_expression(new_statements):
        return _replace_nodes(function, old_statements[0].value, new_statements[0].value)
    return _replace_statements(function, old_statements, new_statements)


def _parsed(snippet: str) -> list[Any]:
    return ast.parse(textwrap.dedent(snippet)).body


def _is_expression(statements: list[Any]) -> bool:
    return len(statements) == 1 and isinstance(statements[0], ast.Expr)


def _replace_nodes(function: Function, old: ast.expr, new: ast.expr) -> int:
    sought, count = ast.dump(old), 0
    for parent in ast.walk(function):
        for name, value in ast.iter_fields(parent):
            if isinstance(value, ast.expr) and ast.dump(value) == sought:
                setattr(parent, name, new)
                count += 1
            for index, item in enumerate(value if isinstance(value, list) else ()):
                if isinstance(item, ast.expr) and ast.dump(item) == sought:
                    value[index] = new
                    count += 1
    return count


def _replace_statements(function: Function, old: list[ast.stmt], new: list[ast.stmt]) -> int:
    sought, count = [ast.dump(statement) for statement in old], 0
    blocks = [value for parent in ast.walk(function) for _, value in ast.iter_fields(parent) if isinstance(value, list)]
    for block in blocks:
        dumped = [ast.dump(item) if isinstance(item, ast.stmt) else "" for item in block]
        for start in reversed(range(len(block) - len(sought) + 1)):
            if dumped[start : start + len(sought)] == sought:
                block[start : start + len(sought)] = new or [ast.Pass()]
                count += 1
    return count


def _parsed_file(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _functions(parent: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Functions of a module and methods of its classes."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, Function):
            yield f"{prefix}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
