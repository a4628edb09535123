"""The kinds of sandboxes. A new one is a SandboxTable and a place in the union."""

from gagar.sandbox.protocol import Sandbox
from gagar.sandbox.table import SandboxTable


class Bubblewrap(SandboxTable, frozen=True, kw_only=True, tag="bubblewrap"):
    """Linux namespaces by bubblewrap, as root or not."""

    def make(self, concurrency: int) -> Sandbox:
        from gagar.sandbox.bubblewrap import BubblewrapSandbox

        return BubblewrapSandbox(self, concurrency=concurrency)


SandboxKinds = Bubblewrap
