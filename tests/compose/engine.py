"""The Docker engine by its command line, as much of it as the test needs."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gagar.errors import UnavailableError

ROOT = Path(__file__).parents[2]
PROJECT_LABEL = "com.docker.compose.project"
POLL_S = 1.0


def docker(*arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = 600.0) -> str:
    """Stdout of a command; raises AssertionError with what it said if it failed."""
    result = _run(arguments, env, timeout_s)
    if result.returncode:
        raise AssertionError(f"docker {' '.join(arguments)}: exit code {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout.strip()


def _run(arguments: Sequence[str], env: Mapping[str, str] | None, timeout_s: float) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, **(env or {})}
    return subprocess.run(
        ["docker", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def check_tools() -> None:
    """Raises UnavailableError unless all that the test needs is there."""
    for program in ("docker", "debootstrap"):
        if shutil.which(program) is None:
            raise UnavailableError(f"{program}: expected the program, got none; install it")
    if os.geteuid():
        raise UnavailableError("make compose-test: expected root, which kills processes of containers, got another user")
    for plugin, why in (("compose", "2.24 or newer"), ("buildx", "any version, for BuildKit's mounts")):
        if _run([plugin, "version"], None, 60.0).returncode:
            raise UnavailableError(f"docker {plugin}: expected the plugin, {why}, got none; install it")
    if _run(["info"], None, 60.0).returncode:
        raise UnavailableError("docker: expected an engine that answers, got none; start dockerd")


def has_image(tag: str) -> bool:
    return _run(["image", "inspect", tag], None, 60.0).returncode == 0


def until(what: str, condition: Callable[[], Any], timeout_s: float) -> None:
    """Until the condition holds; raises AssertionError after the time-out."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"expected {what} within {timeout_s:g} s, got none")
        time.sleep(POLL_S)


class Project:
    """The services of the compose files under a project name of their own."""

    def __init__(self, name: str, env: Mapping[str, str], files: Sequence[str] = ("compose.yaml",)) -> None:
        self.name = name
        self._env = env
        self._files = [word for file in files for word in ("--file", file)]

    def compose(self, *arguments: str, timeout_s: float = 600.0) -> str:
        return docker("compose", *self._files, "--project-name", self.name, *arguments, env=self._env, timeout_s=timeout_s)

    def containers(self, service: str) -> list[dict[str, Any]]:
        """What the engine tells of each container of a service, those that have ended included."""
        ids = self.compose("ps", "--all", "--quiet", service).split()
        found: list[dict[str, Any]] = json.loads(docker("inspect", *ids)) if ids else []
        return found

    def healths(self, service: str) -> list[str]:
        """`healthy`, `unhealthy` or `starting`, for each container that runs."""
        running = [found["State"] for found in self.containers(service) if found["State"]["Running"]]
        return [state.get("Health", {}).get("Status", "none") for state in running]

    def until_healthy(self, service: str, count: int = 1, timeout_s: float = 300.0) -> None:
        until(f"{count} healthy {service}", lambda: self.healths(service) == ["healthy"] * count, timeout_s)

    def health(self, service: str) -> dict[str, Any]:
        """What `gagar health` tells of the one process in a service's container."""
        command = ("exec", "-T", service, "python", "-P", "-m", "gagar.cli.main", "health", "--json")
        result = _run(["compose", *self._files, "--project-name", self.name, *command], self._env, 60.0)
        found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
        return found

    def state(self, service: str) -> str:
        processes = self.health(service)["processes"]
        return str(processes[0]["state"]) if processes else "none"

    def exit_code(self, service: str) -> int:
        [container] = self.containers(service)
        return int(container["State"]["ExitCode"])

    def leftovers(self) -> list[str]:
        """Containers, volumes and networks of the project."""
        label = f"label={PROJECT_LABEL}={self.name}"
        kinds = (("ps", "--all", "--quiet"), ("volume", "ls", "--quiet"), ("network", "ls", "--quiet"))
        return [name for kind in kinds for name in docker(*kind, "--filter", label).split()]
