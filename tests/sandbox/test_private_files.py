"""The sandbox works from a checkout that was made under `umask 077`, as root: its own user cannot read such files."""

import asyncio
import os
import shutil
import stat
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import gagar
from gagar.sandbox.jail import PACKAGES
from gagar.sandbox.warm_sandbox import WarmSandbox

pytestmark = [pytest.mark.sandbox, pytest.mark.asyncio(loop_scope="session")]

OWNER = """
import asyncio, sys
import gagar
from gagar.sandbox import kinds

async def main():
    sandbox = getattr(kinds, sys.argv[1])().make(1)
    await sandbox.open()
    async with sandbox.workspace({"test_a.py": "def test_a():\\n    assert 2 + 2 == 4\\n"}) as workspace:
        run = await workspace.run_tests(["test_a.py::test_a"], 30.0)
        files = await workspace.run("cd $PYTHONPATH; ls; touch x; python3 -c 'import pygments.lexers.d'", 30.0)
    await sandbox.close()
    print(gagar.__file__, run.passed, files.output)

asyncio.run(main())
"""


def hide(folder: Path) -> None:
    """Takes away what others may do, as `umask 077` would have."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & 0o700)


def copied(folder: Path) -> Path:
    """Our own code and the packages that a sandbox holds, for their owner only."""
    shutil.copytree(Path(gagar.__file__).parent, folder / "gagar", ignore=shutil.ignore_patterns("data"))
    for name in PACKAGES:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        origin = Path(spec.origin)
        if spec.submodule_search_locations:
            shutil.copytree(origin.parent, folder / name)
        else:
            shutil.copy2(origin, folder)
    hide(folder)
    return folder


@pytest.mark.skipif(os.getuid() != 0, reason="whoever is not root owns what the sandbox reads")
async def test_a_checkout_for_root_only_is_handed_to_the_sandbox(sandbox: WarmSandbox, tmp_path: Path) -> None:
    assert sandbox.jail is not None
    checkout = copied(tmp_path / "checkout")
    kind = sandbox.jail.kind.capitalize()
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, kind, stdout=asyncio.subprocess.PIPE, env={"PYTHONPATH": str(checkout)}, cwd="/"
    )
    output, _ = await owner.communicate()
    assert output.decode().splitlines() == [
        f"{checkout}/gagar/__init__.py ('test_a.py::test_a',) _pytest",
        *("gagar", "iniconfig", "packaging", "pluggy", "py.py", "pyflakes", "pygments", "pytest"),
        "touch: cannot touch 'x': Permission denied",
        "",
    ]
