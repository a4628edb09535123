"""A Kafka of a test's own, where the local broker will not do: the same program with other settings."""

import random
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gagar.broker import local
from gagar.broker.probe import PORTS, is_answering, is_free

START_S = 120.0


@contextmanager
def own_broker(directory: Path, settings: Mapping[str, str]) -> Iterator[str]:
    """A local broker but for these settings, for the length of a `with`: its address. Raises UnavailableError without Java or
    jars."""
    port, controller_port = free_ports(2)
    lines = [local.server_properties(port, controller_port), *(f"{key}={value}" for key, value in settings.items())]
    with broker_process(directory, "\n".join(lines), f"127.0.0.1:{port}"):
        yield f"127.0.0.1:{port}"


@contextmanager
def broker_process(directory: Path, properties: str, address: str, *format_options: str) -> Iterator[None]:
    """A broker with all of these properties, which answers at an address of its listeners, for the length of a `with`."""
    directory.mkdir(parents=True, exist_ok=True)
    command = local._java_command(directory)
    (directory / "server.properties").write_text(properties)
    tool = ["kafka.tools.StorageTool", "format", "--standalone", "-t", "gAAAAAAAAAAAAAAAAAAAAA", "-c", "server.properties"]
    with (directory / "broker.log").open("wb") as log:
        subprocess.run([*command, *tool, *format_options], cwd=directory, stdout=log, stderr=log, check=True)
        process = subprocess.Popen([*command, "kafka.Kafka", "server.properties"], cwd=directory, stdout=log, stderr=log)
    try:
        until_ready(process, address, directory / "broker.log")
        yield
    finally:
        process.kill()
        process.wait()


def until_ready(process: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while not (is_answering(address) and "Kafka Server started" in log.read_text()):
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"no broker\n{log.read_text()[-3000:]}")
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on now."""
    ports = filter(is_free, random.sample(PORTS, len(PORTS)))
    return [next(ports) for _ in range(count)]
