"""What happens to the services while they run: scaled, frozen, killed, without their broker; and what must come of it."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil

from tests.compose.engine import Project, until

BACK_S = 120.0
"""From the death of a container to its next life."""
HEALTH_S = 180.0
"""From what befalls a process to the engine's word of its health: two checks, and what has to be old for one."""
KILLED = ("verifier", "gatherer", "grader", "advantage-publisher", "rollout-worker", "learner", "sampler", "kafka")


def identity_of(container: dict[str, Any]) -> tuple[str, str]:
    """Of one life of a container."""
    return container["Id"], container["State"]["StartedAt"]


def scale_verifier(project: Project) -> None:
    """From 1 to 3 and back under load: the one that was there goes on."""
    before = {identity_of(container) for container in project.containers("verifier")}
    project.compose("up", "--detach", "--no-build", "--scale", "verifier=3")
    project.until_healthy("verifier", 3)
    after = {identity_of(container) for container in project.containers("verifier")}
    assert before <= after, f"expected verifiers to go on while others are added, got {before} then {after}"
    project.compose("up", "--detach", "--no-build", "--scale", "verifier=1")
    project.until_healthy("verifier", 1)


@contextmanager
def frozen(project: Project, service: str) -> Iterator[None]:
    """The stage's process below the container's init is stopped meanwhile."""
    [container] = project.containers(service)
    processes = psutil.Process(container["State"]["Pid"]).children(recursive=True)
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)


def freeze(project: Project, service: str) -> None:
    """A process that does nothing is unhealthy, and healthy again when it goes on."""
    with frozen(project, service):
        until(f"an unhealthy {service}", lambda: project.healths(service) == ["unhealthy"], HEALTH_S)
    project.until_healthy(service, timeout_s=HEALTH_S)


def take_brokers_away(project: Project, service: str, brokers: Sequence[str]) -> None:
    """A stage without its brokers waits: it is healthy, in the same life, and fine once they are back."""
    before = [identity_of(container) for container in project.containers(service)]
    project.compose("stop", *brokers)
    until(f"a {service} that waits", lambda: project.state(service) == "waiting", HEALTH_S)
    assert project.health(service)["is_healthy"] is True
    project.compose("start", *brokers)
    for broker in brokers:
        project.until_healthy(broker)
    until(f"a {service} that is fine", lambda: project.state(service) == "fine", HEALTH_S)
    assert [identity_of(container) for container in project.containers(service)] == before


def kill(project: Project, service: str) -> None:
    """SIGKILL from outside of the engine, so that it counts as a death: a container of the service lives again."""
    container = project.containers(service)[0]
    before = identity_of(container)
    os.kill(container["State"]["Pid"], signal.SIGKILL)

    def is_back() -> bool:
        found = project.containers(service)[0]
        return bool(found["State"]["Running"]) and identity_of(found) != before

    until(f"{service} to be back", is_back, BACK_S)


def kill_each(project: Project, tell: Callable[[str], None], is_over: Callable[[], bool]) -> list[str]:
    """One container of every stage, and the broker; the answer is those that were killed before the run was over."""
    killed = []
    for service in KILLED:
        if is_over():
            break
        kill(project, service)
        killed.append(service)
        tell(f"killed {service}: it is back")
        time.sleep(1.0)
    return killed
