"""Who may import whom, what importing a light module may load, and what modules may be called."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forks import printed_in_forks

ROOT = Path(__file__).parents[2]
PACKAGES = ("gagar", "topology", "producers", "consumers")
HEAVY = ("torch", "transformers", "deepspeed", "aiokafka", "kafka", "docker", "vllm", "matplotlib")
DOORS = {
    "aiokafka": {"gagar/stream/kafka/client.py"},
    "kafka": {"gagar/stream/kafka/admin.py"},
    "docker": {"gagar/sandbox/docker.py"},
    "vllm": {"gagar/engine/vllm.py"},
    "deepspeed": {"gagar/training/deepspeed.py"},
}
MAY_IMPORT = {
    "gagar": {"gagar"},
    "topology": {"gagar", "topology"},
    "producers": {"gagar", "topology", "producers"},
    "consumers": {"gagar", "topology", "consumers"},
}
BANNED_NAMES = {"util", "utils", "helper", "helpers", "common", "base", "manager", "misc"}


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "data" not in path.parts)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Every module that a file imports, and whether it is imported late: inside a function or for type checkers only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    late = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (isinstance(node, ast.If) and is_for_types(node))
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), id(node) in late


def is_for_types(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def test_imports_run_in_one_direction() -> None:
    wrong = []
    for path in sources():
        package = name_of(path).split("/")[0]
        is_command = name_of(path).startswith("gagar/cli/")
        for module, is_late in imports(path):
            target = module.split(".")[0]
            if (
                target in PACKAGES
                and target not in MAY_IMPORT[package]
                and not (is_command and target == "topology" and is_late)
            ):
                wrong.append(f"{name_of(path)} imports {module}")
    assert wrong == []


def test_core_modules_know_no_command() -> None:
    wrong = [
        f"{name_of(path)} imports {module}"
        for path in sources()
        if name_of(path).startswith("gagar/") and not name_of(path).startswith("gagar/cli/")
        for module, _ in imports(path)
        if module.startswith("gagar.cli")
    ]
    assert wrong == []


def test_no_import_is_relative() -> None:
    assert [name_of(path) for path in sources() for module, _ in imports(path) if module.startswith(".")] == []


@pytest.mark.parametrize("library", sorted(DOORS))
def test_a_heavy_library_has_one_door(library: str) -> None:
    users = {name_of(path) for path in sources() for module, _ in imports(path) if module.split(".")[0] == library}
    assert users <= DOORS[library]


def light_modules() -> list[str]:
    """What must be cheap to import: stages, topology, the commands and the contracts."""
    from topology.stages import STAGES

    commands = [f"gagar.cli.{path.stem}" for path in sorted((ROOT / "gagar" / "cli").glob("*.py")) if path.stem != "__init__"]
    core = ["gagar.config", "gagar.records", "gagar.stream.spec", "gagar.stream.handlers", "gagar.sandbox.protocol"]
    return [*core, "topology.stages", "topology.graph", *(stage.module for stage in STAGES), *commands]


@pytest.fixture(scope="module")
def loaded() -> dict[str, str]:
    """Heavy modules that the import of each light one has loaded, as text."""
    body = (
        f"import importlib, sys\nimportlib.import_module(name)\nprint(*[heavy for heavy in {HEAVY!r} if heavy in sys.modules])"
    )
    return printed_in_forks(body, light_modules())


@pytest.mark.parametrize("module", light_modules())
def test_a_light_module_loads_nothing_heavy_in_a_fresh_interpreter(loaded: dict[str, str], module: str) -> None:
    assert loaded[module].strip() == ""


def test_modules_are_named_for_what_they_hold() -> None:
    assert [name_of(path) for path in sources() if path.stem in BANNED_NAMES or path.parent.name in BANNED_NAMES] == []


def test_a_package_s_init_holds_a_docstring_only() -> None:
    for path in sources():
        if path.name == "__init__.py":
            body = ast.parse(path.read_text(encoding="utf-8")).body
            assert len(body) == 1, name_of(path)
            assert isinstance(body[0], ast.Expr), name_of(path)


def test_every_module_says_what_it_is_for() -> None:
    assert [name_of(path) for path in sources() if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))] == []


def test_source_is_ascii() -> None:
    assert [name_of(path) for path in sources() if not path.read_bytes().isascii()] == []
