"""What a signal does to a command that has something to stop."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEARS_HANG_UPS = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)"
"""Whoever runs the tests may have told them to ignore these."""
WAITS = """
import asyncio, sys
from gagar.processes.shutdown import interruption

async def main():
    interrupted = interruption()
    print("up", flush=True)
    await interrupted.wait()
    print("summary", flush=True)
    with open(sys.argv[1], "w") as file:
        file.write("written")

asyncio.run(main())
"""


@contextmanager
def killed_at_the_end(process: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_a_closed_terminal_asks_and_takes_no_more_output(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    command = [sys.executable, "-c", HEARS_HANG_UPS + WAITS, str(tmp_path / "report")]
    with killed_at_the_end(
        subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, cwd=ROOT, start_new_session=True)
    ) as process:
        os.close(terminal)
        seen = b""
        while not seen.endswith(b"\n"):
            seen += os.read(controller, 100)
        assert seen == b"up\r\n"
        os.close(controller)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGHUP)
        assert process.wait(20) == 0
    assert (tmp_path / "report").read_text() == "written"


def test_a_command_under_nohup_goes_on_after_a_hang_up(tmp_path: Path) -> None:
    command = ["nohup", sys.executable, "-c", WAITS, str(tmp_path / "report")]
    with killed_at_the_end(
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT)
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == b"summary\n"
        assert process.wait(20) == 0


HURRIES = """
import asyncio
from gagar.processes.shutdown import interruption

async def main():
    hurried = asyncio.Event()
    interrupted = interruption(hurried.set)
    print("up", flush=True)
    await interrupted.wait()
    print("stopping", flush=True)
    await hurried.wait()
    print("hurrying", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_the_second_signal_hurries_a_stop_and_the_third_ends_it() -> None:
    command = [sys.executable, "-c", HURRIES]
    with killed_at_the_end(subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)) as process:
        assert process.stdout is not None
        for line in (b"up\n", b"stopping\n", b"hurrying\n"):
            assert process.stdout.readline() == line
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) == -signal.SIGTERM
