"""The one place that knows which sandboxes exist: a kind from the run file in, a sandbox out, not yet opened."""

from typing import Literal

from gagar.sandbox.limits import Limits
from gagar.sandbox.protocol import Sandbox

SandboxKind = Literal["bubblewrap"]


def make_sandbox(kind: SandboxKind, *, concurrency: int, limits: Limits | None = None) -> Sandbox:
    """A sandbox of that kind with at most `concurrency` workspaces at a time; `open` starts and tests it."""
    from gagar.sandbox.bubblewrap import BubblewrapSandbox

    return {"bubblewrap": BubblewrapSandbox}[kind](concurrency=concurrency, limits=limits or Limits())
