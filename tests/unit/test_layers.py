"""Who may import whom, what importing a light module may load, and what modules may be called."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.forks import printed_in_forks

ROOT = Path(__file__).parents[2]
PACKAGES = ("gagar", "topology", "producers", "consumers")
HEAVY = ("torch", "transformers", "deepspeed", "aiokafka", "kafka", "docker", "vllm", "matplotlib")
DOORS = {
    "aiokafka": {f"gagar/stream/kafka/{name}.py" for name in ("client", "connecting", "metadata", "offsets", "refusals")},
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
    "gagar.cli": {"gagar", "topology", "gagar.cli"},
}
"""Nothing imports `gagar.cli`; stages are found by name."""
BANNED_NAMES = {"util", "utils", "helper", "helpers", "common", "base", "manager", "misc"}


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "data" not in path.parts)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def dotted(path: Path) -> str:
    """The module in a file. Example: `gagar.stream.spec`."""
    return name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
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


def part_of(module: str) -> str:
    """What a module belongs to: a package, and of `gagar` its top floor apart."""
    return "gagar.cli" if module == "gagar.cli" or module.startswith("gagar.cli.") else module.split(".")[0]


def test_imports_run_in_one_direction() -> None:
    wrong = [
        f"{name_of(path)} imports {module}"
        for path in sources()
        for module, _ in imports(path)
        if part_of(module) in MAY_IMPORT and part_of(module) not in MAY_IMPORT[part_of(dotted(path))]
    ]
    assert wrong == []


def room_of(module: str) -> str:
    """A folder of the library; its modules beside them are the ground that all stand on."""
    parts = module.split(".")
    return parts[1] if parts[0] == "gagar" and len(parts) > 1 and (ROOT / "gagar" / parts[1]).is_dir() else ""


def test_rooms_form_layers() -> None:
    """No circle, late imports included: rooms can be put in an order in which each imports only earlier ones."""
    arrows: dict[str, set[str]] = {}
    for path in sources():
        room = room_of(dotted(path))
        if room:
            arrows.setdefault(room, set()).update(room_of(module) for module, _ in imports(path))
    graph = {room: others - {"", room} for room, others in arrows.items()}
    assert "stream" in list(TopologicalSorter(graph).static_order())


def test_nothing_lies_loose_in_the_library() -> None:
    loose = {path.stem for path in (ROOT / "gagar").glob("*.py")}
    assert loose == {"__init__", "records", "arrays", "config", "errors"}


def test_no_import_is_relative() -> None:
    assert [name_of(path) for path in sources() for module, _ in imports(path) if module.startswith(".")] == []


@pytest.mark.parametrize("library", sorted(DOORS))
def test_a_heavy_library_has_one_door(library: str) -> None:
    users = {name_of(path) for path in sources() for module, _ in imports(path) if module.split(".")[0] == library}
    assert users <= DOORS[library]


def light_modules() -> list[str]:
    """What must be cheap to import: stages, topology, the commands and the contracts."""
    from topology.stages import STAGES

    commands = [dotted(path) for path in sorted((ROOT / "gagar" / "cli").rglob("*.py")) if path.stem != "__init__"]
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
