"""The self-test of a sandbox: tries to get out, and fails closed if it can.

In: an open sandbox. Out: nothing, or UnavailableError that says which wall is missing.
"""

import asyncio
import tempfile

from gagar.errors import UnavailableError
from gagar.sandbox.protocol import Sandbox, SlowStartError

TESTS = "def test_true():\n    assert 1 + 1 == 2\n\n\ndef test_false():\n    assert 1 + 1 == 3\n"
SCRIPT = """
fail() {{ echo "WALL $*"; }}
(echo > /dev/tcp/127.0.0.1/{port}) 2>/dev/null && fail "network: the host's port answers"
while read -r name _; do
  case $name in lo:|Inter-*|face*) ;; *) fail "network: $name";; esac
done < /proc/net/dev
[ -e {secret} ] && fail "files: {secret} is visible"
for folder in / /usr /etc /dev /gagar /gagar/lib /proc/sys/kernel; do
  (echo x > $folder/.probe) 2>/dev/null && fail "files: $folder can be written to"
done
for name in $(compgen -e); do
  case $name in PATH|HOME|LANG|PYTHON*|PYTEST_*|PWD|OLDPWD|SHLVL|_) ;; *) fail "environment: $name";; esac
done
while read -r name value _; do
  case $name in
    CapInh:|CapPrm:|CapEff:|CapBnd:) [ $((16#$value)) = 0 ] || fail "capabilities: $name $value";;
    NoNewPrivs:) [ "$value" = 1 ] || fail "new privileges can be gained";;
    Uid:) [ "$value" = 1000 ] || fail "user: $value";;
  esac
done < /proc/self/status
echo walls-tried
kill -9 -1
"""


async def check_isolation(sandbox: Sandbox, timeout_s: float) -> None:
    """Raises UnavailableError unless every wall stands and the tests of a workspace are told apart, each within `timeout_s`."""
    with tempfile.NamedTemporaryFile() as secret:
        listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with listener:
            port = listener.sockets[0].getsockname()[1]
            async with sandbox.workspace({"test_probe.py": TESTS}) as workspace:
                result = await workspace.run(SCRIPT.format(port=port, secret=secret.name), timeout_s)
                run = await workspace.run_tests(["test_probe.py::test_true", "test_probe.py::test_false"], timeout_s)
    if "WALL" not in result.output and (result.is_timeout or run.is_timeout):
        raise SlowStartError(f"sandbox self-test: expected its end within {timeout_s:g} s, got none yet")
    if "WALL" in result.output or "walls-tried" not in result.output:
        raise UnavailableError(f"sandbox self-test: expected closed walls, got {result.output[-500:]!r}")
    facts = (run.passed, run.failed, run.is_complete, run.alarms)
    if facts != (("test_probe.py::test_true",), ("test_probe.py::test_false",), True, ()):
        raise UnavailableError(f"sandbox self-test: expected one passed and one failed test, got {facts} {run.output[-500:]!r}")
