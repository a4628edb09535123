"""Workspaces: what a command can do, what it cannot reach, and that nothing outlives it."""

import asyncio
import os

import pytest

from gagar.errors import BadRecordError
from gagar.sandbox.protocol import CommandResult, WorkspaceError
from gagar.sandbox.warm_sandbox import WarmSandbox
from gagar.sandbox.warm_server import Jail
from tests.sleepers import all_with, num_with, wait_for

pytestmark = [pytest.mark.sandbox, pytest.mark.asyncio(loop_scope="session")]

TIMEOUT_S = 30.0
DEEP = """
import os
for _ in range(200):
    os.mkdir('d' * 100)
    os.chdir('d' * 100)
open('f', 'w').close()
os.chmod('.', 0)
"""
DESCRIPTORS = """
import os
for number in range(1024):
    try:
        os.fstat(number)
        print(number)
    except OSError:
        pass
"""
EVENT_LOOP = """
import asyncio
async def main():
    await (await asyncio.create_subprocess_exec('true')).wait()
asyncio.run(main())
"""


def jail_of(sandbox: WarmSandbox) -> Jail:
    assert sandbox.jail is not None
    return sandbox.jail


def only_in(sandbox: WarmSandbox, kind: str) -> None:
    """Skips what another kind does not promise."""
    if jail_of(sandbox).kind != kind:
        pytest.skip(f"a promise of {kind}")


async def run(sandbox: WarmSandbox, script: str, timeout_s: float = TIMEOUT_S) -> CommandResult:
    async with sandbox.workspace({"a.txt": "1\n"}) as workspace:
        return await workspace.run(script, timeout_s)


async def test_a_command_works_in_the_tree(sandbox: WarmSandbox) -> None:
    async with sandbox.workspace({"a.txt": "1\n", "src/b.py": "x = 1\r\n"}) as workspace:
        result = await workspace.run("cat a.txt && echo 2 >> a.txt && rm src/b.py && echo new > c.txt; exit 3", TIMEOUT_S)
        assert result == CommandResult(exit_code=3, output="1\n")
        assert await workspace.read_tree() == {"a.txt": "1\n2\n", "c.txt": "new\n"}


async def test_texts_come_back_as_they_were(sandbox: WarmSandbox) -> None:
    tree = {"crlf": "a\r\nb", "caf\u00e9 x.py": "\u00e9\n", "empty": "", "deep/er/nul": "a\0b"}
    async with sandbox.workspace(tree) as workspace:
        assert await workspace.read_tree() == tree


async def test_files_stay_between_commands_and_go_with_the_workspace(sandbox: WarmSandbox) -> None:
    async with sandbox.workspace({}) as workspace:
        await workspace.run("echo 1 > x; echo 1 > $TMPDIR/x; mkdir -m 0 $TMPDIR/y", TIMEOUT_S)
        assert (await workspace.run("cat x $TMPDIR/x", TIMEOUT_S)).output == "1\n1\n"
    for _ in range(2):  # whichever server makes it
        assert (await run(sandbox, "ls -A . $TMPDIR | grep -v :")).output.split() == ["a.txt"]


async def test_a_folder_however_deep_goes_with_the_workspace(sandbox: WarmSandbox) -> None:
    async with sandbox.workspace({"deep.py": DEEP}) as workspace:
        assert (await workspace.run("python3 deep.py", TIMEOUT_S)).exit_code == 0
    for _ in range(2):
        assert (await run(sandbox, "ls -A")).output == "a.txt\n"


async def test_only_regular_text_files_are_read(sandbox: WarmSandbox) -> None:
    script = """
        ln -s /etc/passwd link; ln -s / root; mkfifo pipe; printf '\\xff' > binary; touch $'\\xff'
        mkdir -m 000 locked; mkdir __pycache__ .git; touch __pycache__/x .git/y z.pyc; chmod 000 a.txt
    """
    async with sandbox.workspace({"a.txt": "1\n"}) as workspace:
        assert (await workspace.run(script, TIMEOUT_S)).exit_code == 0
        assert await workspace.read_tree() == {"a.txt": "1\n"}


@pytest.mark.parametrize("script", ["for i in $(seq 60); do echo > f$i; done", "head -c 2000000 /dev/zero > big"])
async def test_a_tree_beyond_its_bounds_is_the_attempts_failure(sandbox: WarmSandbox, script: str) -> None:
    async with sandbox.workspace({}) as workspace:
        await workspace.run(script, TIMEOUT_S)
        with pytest.raises(WorkspaceError, match="too many files or bytes"):
            await workspace.read_tree()


@pytest.mark.parametrize("path", ["/etc/x", "../x", ".git/config"])
async def test_a_path_outside_the_tree_is_refused(sandbox: WarmSandbox, path: str) -> None:
    with pytest.raises(BadRecordError, match="expected a relative, normal path"):
        async with sandbox.workspace({path: ""}):
            pass


async def test_a_tree_that_does_not_fit_is_the_attempts_failure(sandbox: WarmSandbox) -> None:
    with pytest.raises(WorkspaceError, match="expected an answer to write"):
        async with sandbox.workspace({"big": "x" * (33 << 20)}):
            pass


async def test_a_sleeper_is_killed_in_time(sandbox: WarmSandbox) -> None:
    result = await run(sandbox, "echo before; sleep 1000", 1.0)
    assert result == CommandResult(exit_code=-1, output="before\n", is_timeout=True)


async def test_whoever_left_its_session_is_killed_too(sandbox: WarmSandbox) -> None:
    async with sandbox.workspace({}) as workspace:
        script = "(setsid nohup sleep 31536125 & ) ; setsid --fork sh -c 'sleep 31536125' ; echo started"
        assert "started" in (await workspace.run(script, TIMEOUT_S)).output
        assert num_with("31536125") == 0


async def test_killing_everything_kills_only_its_own(sandbox: WarmSandbox) -> None:
    async with sandbox.workspace({"a.txt": "1\n"}) as other, sandbox.workspace({}) as workspace:
        assert (await workspace.run("kill -9 -1; kill -9 1; echo alive", TIMEOUT_S)).output.endswith("alive\n")
        assert (await workspace.run("echo again", TIMEOUT_S)).output == "again\n"
        assert (await other.run("cat a.txt", TIMEOUT_S)).output == "1\n"


async def test_no_workspace_reaches_another(sandbox: WarmSandbox) -> None:
    async with sandbox.workspace({"a.txt": "1\n"}) as one, sandbox.workspace({}) as other:
        folder = (await one.run("pwd", TIMEOUT_S)).output.strip()
        task = asyncio.create_task(one.run("sleep 31536126; echo over", TIMEOUT_S))
        await wait_for("31536126", 1)
        (process,) = all_with("31536126")
        for attempt in (f"kill -9 {process}", f"cat {folder}/a.txt", f"cat /proc/{process}/environ", f"prlimit -p {process}"):
            assert (await other.run(attempt, TIMEOUT_S)).exit_code != 0
        assert all_with("31536126") == [process]
        task.cancel()


async def test_a_fork_bomb_meets_its_limit(sandbox: WarmSandbox) -> None:
    if "user" in jail_of(sandbox).missing:
        pytest.skip("the kernel bounds no processes of root's")
    async with sandbox.workspace({}) as workspace, sandbox.workspace({}) as other:
        bomb = asyncio.create_task(workspace.run("b() { b | b & }; b; sleep 1000", 1.0))
        assert (await other.run("echo fine", TIMEOUT_S)).output == "fine\n"
        assert (await bomb).exit_code != 0  # killed in time, unless it could not even start its own sleep
        assert (await workspace.run("echo over", TIMEOUT_S)).output == "over\n"


async def test_a_full_disk_is_full_for_one_only(sandbox: WarmSandbox) -> None:
    only_in(sandbox, "bubblewrap")
    async with sandbox.workspace({}) as workspace:
        result = await workspace.run("head -c 1G /dev/zero > a; head -c 1G /dev/zero > b; du -sm . | cut -f 1", TIMEOUT_S)
        assert "No space left" in result.output
        assert int(result.output.split()[-1]) <= 32
        many = await workspace.run("rm a b; for i in $(seq 600); do : > f$i; done", TIMEOUT_S)
        assert "No space left" in many.output


@pytest.mark.parametrize("script", ["head -c 40M /dev/zero > $TMPDIR/a", "for i in $(seq 600); do : > f$i; done"])
async def test_who_fills_the_disk_is_ended_where_the_kernel_does_not_refuse_it(sandbox: WarmSandbox, script: str) -> None:
    only_in(sandbox, "landlock")
    async with sandbox.workspace({"a.txt": "1\n"}) as other, sandbox.workspace({}) as workspace:
        result = await workspace.run(f"{script}; sleep 1000", TIMEOUT_S)
        assert (result.exit_code, result.is_timeout) == (-1, False)
        assert "[killed: No space left" in result.output
        assert (await other.run("cat a.txt", TIMEOUT_S)).output == "1\n"


async def test_memory_is_bounded_for_one_and_for_all_processes(sandbox: WarmSandbox) -> None:
    one = await run(sandbox, "python3 -c 'x = bytearray(1 << 31)'")
    assert "MemoryError" in one.output
    hog = "python3 -c 'import time; x = bytearray(b\"x\") * (300 << 20); time.sleep(1000)' &"
    several = await run(sandbox, f"for i in 1 2 3 4 5; do {hog} done; wait")
    assert several.exit_code == -1
    assert not several.is_timeout
    assert "out of memory" in several.output


async def test_output_keeps_head_and_tail(sandbox: WarmSandbox) -> None:
    result = await run(sandbox, "echo first; head -c 40M /dev/zero | tr '\\0' x; printf '\\xff'; echo last")
    assert result.output.startswith("first\nxxx")
    assert result.output.endswith("\ufffdlast\n")
    assert "bytes left out" in result.output
    assert len(result.output) < 10_000


async def test_input_is_closed(sandbox: WarmSandbox) -> None:
    assert await run(sandbox, "cat; echo done") == CommandResult(exit_code=0, output="done\n")


async def test_a_script_longer_than_an_argument_runs(sandbox: WarmSandbox) -> None:
    script = "cat > x <<'E'\n" + "y" * 200_000 + "\nE\nwc -c < x; exit 4\n"
    assert await run(sandbox, script) == CommandResult(exit_code=4, output="200001\n")


async def test_nothing_of_the_host_is_there(sandbox: WarmSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    result = await run(sandbox, "env; cat /proc/*/environ | tr '\\0' '\\n'; ls -A / /etc; ls -A ~; cat /etc/passwd; hostname")
    assert "s3cret" not in result.output
    assert "SECRET" not in result.output
    for path in (os.path.expanduser("~/.ssh"), "/etc/shadow", os.path.dirname(__file__), "/var", "/run", "/sys", "/dev/vda"):
        assert (await run(sandbox, f"ls {path}/ || head -c 1 {path}")).exit_code != 0


async def test_not_even_names_of_the_host_are_there(sandbox: WarmSandbox) -> None:
    only_in(sandbox, "bubblewrap")
    result = await run(sandbox, "cat /etc/passwd; hostname")
    assert os.uname().nodename not in result.output.split()
    assert "root:x:0:0:root:/:/usr/sbin/nologin" in result.output
    for path in (os.path.expanduser("~/.ssh"), "/etc/shadow", os.path.dirname(__file__), "/var", "/run", "/sys", "/dev/vda"):
        assert f"{path}\n" not in (await run(sandbox, f"ls -d {path} 2>/dev/null")).output


async def test_no_descriptor_is_inherited(sandbox: WarmSandbox) -> None:
    assert (await run(sandbox, f"python3 -c '{DESCRIPTORS}'")).output.split() == ["0", "1", "2"]


async def test_there_is_no_network_but_its_own(sandbox: WarmSandbox) -> None:
    only_in(sandbox, "bubblewrap")
    server = (
        "import socket, threading\ns = socket.create_server(('127.0.0.1', 8000))\n"
        "threading.Thread(target=lambda: s.accept()[0].send(b'hello')).start()\n"
        "print(socket.create_connection(('127.0.0.1', 8000)).recv(5))\n"
    )
    results = await asyncio.gather(*(run(sandbox, f'python3 -c "{server}"') for _ in range(2)))
    assert [result.output for result in results] == ["b'hello'\n"] * 2
    outside = await run(sandbox, "(echo > /dev/tcp/1.1.1.1/80) 2>&1; tail -n +3 /proc/net/dev | wc -l")
    assert "Network is unreachable" in outside.output
    assert outside.output.endswith("\n1\n")


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK", "AF_PACKET", "AF_VSOCK"])
async def test_no_socket_can_be_made_where_all_would_share_one_network(sandbox: WarmSandbox, family: str) -> None:
    only_in(sandbox, "landlock")
    for kind in ("SOCK_STREAM", "SOCK_DGRAM", "SOCK_RAW"):
        result = await run(sandbox, f"python3 -c 'import socket; socket.socket(socket.{family}, socket.{kind})'")
        assert "PermissionError" in result.output


async def test_pairs_of_sockets_work_and_so_does_an_event_loop(sandbox: WarmSandbox) -> None:
    assert await run(sandbox, f'python3 -c "{EVENT_LOOP}"') == CommandResult(exit_code=0, output="")


@pytest.mark.parametrize(
    "script",
    [
        "unshare --user --map-root-user true",
        "mount -t tmpfs none /usr",
        "umount /workspace",
        "chown 12345 a.txt",
        "echo x > /usr/x",
        "echo x > /proc/sys/kernel/hostname",
        "cat /proc/1/mem",
        "ls /proc/1/root/",
        "su -c true",
        "hostname other",
    ],
)
async def test_no_right_can_be_gained(sandbox: WarmSandbox, script: str) -> None:
    result = await run(sandbox, script)
    assert result.exit_code > 0
    assert not result.is_timeout


async def test_a_server_that_died_is_started_anew(sandbox: WarmSandbox) -> None:
    servers = [keeper.server for keeper in sandbox._keepers if keeper.server is not None]
    assert servers
    for server in servers:
        server._process.kill()
        await server._process.wait()
    assert (await run(sandbox, "cat a.txt")).output == "1\n"


async def test_what_it_cost_is_counted(sandbox: WarmSandbox) -> None:
    before, number = sandbox.core_s, sandbox.num_workspaces
    await run(sandbox, "python3 -c 'import time\nwhile time.process_time() < 0.3: pass'")
    assert sandbox.num_workspaces == number + 1
    assert 0.3 < sandbox.core_s - before < 3.0
