"""The local broker: Apache Kafka (KRaft, one node) as a process of this machine.

In: a directory. Out: a broker that answers, and `broker.json` that says where. Kept in the directory: `data`, `broker.log`.
Promised: two starts at once give one broker; a start after a SIGKILL of the broker or of its parent finds the same data, and
takes the same port if that is free. Not promised: any other node, and any safety of the data beyond this disk.
"""

import os
import secrets
import shutil
import signal
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from string import Template

import msgspec
from msgspec.structs import replace

from gagar.broker.address import (
    STATE_FILE,
    BrokerState,
    broker_command,
    broker_dir,
    last_state,
    names_cluster,
    running_state,
)
from gagar.broker.class_archive import keep_archive, link_archive, reading_options, writing_options
from gagar.broker.jars import cache_for, ensure_jars
from gagar.broker.java import find_java
from gagar.broker.meeting import check_cluster
from gagar.broker.probe import free_ports, is_answering
from gagar.config import KafkaTable, Run, packaged
from gagar.errors import ConfigError, UnavailableError
from gagar.processes.identity import identity, is_alive
from gagar.processes.locks import file_lock
from gagar.processes.log_tail import fresh_log, last_words
from gagar.processes.orphan_cleanup import OrphanCleanup, members
from gagar.processes.orphan_cleanup import environment as member_environment

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 20.0
ANSWER_TIMEOUT_S = 5.0
LOCK_TIMEOUT_S = 700.0
"""A start may wait for another one that downloads."""
NUM_ATTEMPTS = 3
"""Starts with new ports, if someone takes a port between the choice and the broker's bind."""
POLL_S = 0.05

LOG = "broker.log"
PROPERTIES = "server.properties"
SCRATCH = "tmp"
JVM_OPTIONS = (
    "-Xms128m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:ErrorFile=jvm-crash.log",
    "-Djava.awt.headless=true",
    f"-Djava.io.tmpdir={SCRATCH}",
)
JVM_LOCALE = {"LC_ALL": "C.UTF-8"}
"""In which Java writes names of files; else those of the user's locale, and in LANG=C no other than ASCII."""
LOG_OPTIONS = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)


def start_broker(
    directory: Path, environment: Mapping[str, str] | None = None, timeout_s: float = START_TIMEOUT_S
) -> BrokerState:
    """The broker of `directory`, started if it does not run, answering within `timeout_s`; a new process has `environment`
    besides this one's. Raises UnavailableError, or ConfigError for a directory that Java cannot name."""
    directory = java_path(directory.resolve())
    with _lock(directory):
        state = running_state(directory)
        if state is not None and _becomes_ready(state, directory, timeout_s):
            return state
        command = _java_command(directory)
        for attempt in range(1, NUM_ATTEMPTS + 1):
            state = _spawn(directory, command, environment or {}, may_keep_ports=attempt == 1)
            if _becomes_ready(state, directory, timeout_s):
                return state
            _end(state)
            if "Address already in use" not in _text(directory / LOG):
                break
        log = directory / LOG
        raise UnavailableError(f"broker in {directory}: expected to start, got its end: {_last_error(log)}; see {log}")


def stop_broker(directory: Path) -> bool:
    """Ends the broker of `directory`: in good order, by force after a bounded wait. False if none ran."""
    directory = directory.resolve()
    if not directory.exists():
        return False
    with _lock(directory):
        state = running_state(directory)
        if state is None:
            return False
        if _end(state):
            keep_archive(directory / SCRATCH)
        return True


@contextmanager
def broker(directory: Path, timeout_s: float = START_TIMEOUT_S) -> Iterator[BrokerState]:
    """The broker of `directory` for the length of a `with`, even if this process is killed in it. One that was started by
    `start_broker` goes on running after it, and one that another process uses as well until that one ends."""
    directory = directory.resolve()
    with OrphanCleanup(directory, is_exclusive=False) as holder:
        state = start_broker(directory, member_environment(directory), timeout_s)
        try:
            yield state
        finally:
            running = running_state(directory)
            if running is not None and running.pid in members(directory) and holder.is_alone():
                stop_broker(directory)


@contextmanager
def cluster_of(run: Run) -> Iterator[KafkaTable]:
    """The cluster that the run file names, or the local broker, which runs for the length of the `with`. Raises
    UnavailableError unless one of its brokers answers: nothing of the run is made or started before."""
    if names_cluster(run):
        check_cluster(run.kafka, ANSWER_TIMEOUT_S)
        yield run.kafka
        return
    with broker(broker_dir(run), run.kafka.start_timeout_s) as state:
        yield replace(run.kafka, bootstrap_servers=state.address)


def _lock(directory: Path) -> AbstractContextManager[None]:
    return file_lock(
        directory / "lock", timeout_s=LOCK_TIMEOUT_S, advice="another gagar starts or stops this broker; wait for it or end it"
    )


def java_path(directory: Path) -> Path:
    """The path as it is; raises ConfigError for one whose bytes are no UTF-8, since Java would make another directory of it."""
    try:
        str(directory).encode()
    except UnicodeEncodeError as error:
        got = os.fsencode(str(directory)[error.start])
        raise ConfigError(f"run.dir {os.fsencode(directory)!r}: expected a path in UTF-8, got the byte {got!r}") from None
    return directory


def _java_command(directory: Path) -> list[str]:
    """Java with everything up to the main class, to be run in `directory`; the scratch folder starts empty, as a killed broker
    leaves libraries there.

    Paths are relative, and those of jars the same for every directory: Java and Kafka read commas, colons, backslashes and
    percent signs in their own ways, and an archive of classes is for one class path.
    """
    scratch = directory / SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    jars, java = ensure_jars(cache_for(directory.parent / "cache")), find_java()
    (scratch / "jars").symlink_to(jars[0].parent.absolute())
    link_archive(scratch, java, jars)
    class_path = os.pathsep.join(f"{SCRATCH}/jars/{jar.name}" for jar in jars)
    return [str(java), *JVM_OPTIONS, *LOG_OPTIONS, *reading_options(scratch), "-cp", class_path]


def _spawn(directory: Path, command: list[str], environment: Mapping[str, str], *, may_keep_ports: bool) -> BrokerState:
    """Starts the process and records it at once."""
    port, controller_port = free_ports(_last_ports(directory) if may_keep_ports else ())
    (directory / PROPERTIES).write_text(server_properties(port, controller_port), encoding="ascii")
    log = fresh_log(directory / LOG)
    if not (directory / "data" / "meta.properties").exists():
        _format(directory, command, log, "--standalone")
    return _launch(directory, command, environment, port, controller_port)


def _launch(
    directory: Path, command: list[str], environment: Mapping[str, str], port: int, controller_port: int
) -> BrokerState:
    """Starts the process with the settings that lie in `directory`, and records it."""
    command = [*command, *writing_options(directory / SCRATCH), "kafka.Kafka", PROPERTIES]
    pid = _detached(command, directory / LOG, environment)
    state = BrokerState(
        address=f"127.0.0.1:{port}",
        controller_address=f"127.0.0.1:{controller_port}",
        pid=pid,
        identity=identity(pid) or "",
    )
    part = directory / f"{STATE_FILE}.part"
    part.write_bytes(msgspec.json.encode(state))
    part.replace(directory / STATE_FILE)
    return state


def server_properties(port: int, controller_port: int) -> str:
    """The settings of a broker that listens on these ports; what and why is told in the packaged file."""
    template = Template(packaged(f"kafka/{PROPERTIES}").read_text(encoding="ascii"))
    return template.substitute(port=port, controller_port=controller_port)


def _last_ports(directory: Path) -> tuple[int, ...]:
    state = last_state(directory)
    if state is None:
        return ()
    return tuple(int(address.rpartition(":")[2]) for address in (state.address, state.controller_address))


def _format(directory: Path, command: list[str], log: Path, *quorum: str, cluster_id: str = "") -> None:
    """Writes the empty metadata log, for the quorum that the arguments name; its last step is `meta.properties`, so one that
    was cut short is done again."""
    new_id = "g" + urlsafe_b64encode(secrets.token_bytes(16)).decode("ascii").rstrip("=")[1:]
    tool = ["kafka.tools.StorageTool", "format", *quorum, "--ignore-formatted", "-t", cluster_id or new_id, "-c", PROPERTIES]
    pid = _detached([*command, *tool], log, {})
    _, status = os.waitpid(pid, 0)
    if status != 0:
        raise UnavailableError(
            f"broker in {directory}: expected its storage to be formatted, got exit code "
            f"{os.waitstatus_to_exitcode(status)}: {_last_error(log)}; see {log}"
        )


def _detached(command: list[str], log: Path, environment: Mapping[str, str]) -> int:
    """Starts a process in the folder of `log`, in a session of its own that outlives this one, and with `log` as its output;
    its pid."""
    return os.posix_spawn(
        "/bin/sh",
        ["/bin/sh", "-c", 'cd "$0" && exec "$@"', str(log.parent), *command],
        {**os.environ, **JVM_LOCALE, **environment},
        setsid=True,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )


def _becomes_ready(state: BrokerState, directory: Path, timeout_s: float) -> bool:
    """Waits until the broker answers: false if its process ends first. Raises UnavailableError if it hangs.

    The log is asked too: the answer could come from a stranger who took the port before our broker's bind.
    """
    log, deadline = directory / LOG, time.monotonic() + timeout_s
    while not (is_answering(state.address) and "Kafka Server started" in _text(log)):
        if not is_alive(state.pid, state.identity):
            return False
        if time.monotonic() >= deadline:
            raise UnavailableError(
                f"broker in {directory}: expected an answer at {state.address} within {timeout_s:g} s, got one that is still "
                f"starting: {last_words(log)}; try again, set kafka.start_timeout_s, see {log}, "
                f"or end it with {broker_command('stop', directory)}"
            )
        time.sleep(POLL_S)
    return True


def _end(state: BrokerState) -> bool:
    """SIGTERM, and SIGKILL after a bounded wait. True if SIGTERM was enough."""
    is_in_order = _ends_on(signal.SIGTERM, state)
    if not is_in_order:
        _ends_on(signal.SIGKILL, state)
    with suppress(ChildProcessError):
        os.waitpid(state.pid, os.WNOHANG)
    return is_in_order


def _ends_on(number: signal.Signals, state: BrokerState) -> bool:
    """Whether the process is gone a bounded while after the signal."""
    if is_alive(state.pid, state.identity):
        os.kill(state.pid, number)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while is_alive(state.pid, state.identity) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return not is_alive(state.pid, state.identity)


def _last_error(log: Path) -> str:
    """The last line of the log that tells of a fault, shortened."""
    lines = _text(log).splitlines()
    telling = [line for line in lines if "Exception" in line or "ERROR" in line or "Error" in line] or lines
    return telling[-1].strip()[:300] if telling else "an empty log"


def _text(log: Path) -> str:
    """What the log holds; nothing if it is not there."""
    try:
        return log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
