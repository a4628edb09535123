"""`make compose-test`: the images built without a registry, the loop as containers to its planned end.

The last line on stdout is one JSON object with what it cost.
"""

import asyncio
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from gagar.cli.run_file import DEFAULT_RUN, open_run
from gagar.config import KafkaTable, Run
from gagar.errors import GagarError
from tests.broker.own_broker import free_ports
from tests.compose import scenes
from tests.compose.base_images import PYTHON_IMAGE, build_images, make_base_images, write_pip_conf
from tests.compose.engine import ROOT, Project, check_tools, docker, until
from tests.compose.figures import Memory, image_bytes, mib
from topology.planned_end import step_of

KAFKA_IMAGE = "apache/kafka:4.2.2"
MAX_LIGHT_BYTES = 300 << 20
"""Of the light image over its base."""
TAG = "test"
FIRST_STEP_S = 900.0
END_S = 3600.0


def tell(text: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)


def build(ca_bundle: Path | None, *, is_anew: bool) -> None:
    """All images that the services need."""
    tell("base images ...")
    make_base_images(KAFKA_IMAGE, is_anew=is_anew)
    with tempfile.TemporaryDirectory() as folder:
        pip_conf = Path(folder) / "pip.conf"
        settings = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
        write_pip_conf(pip_conf, settings.stdout.splitlines(), has_ca_bundle=ca_bundle is not None)
        tell("images of this source ...")
        build_images(TAG, pip_conf, ca_bundle)


class Trial:
    """One project from `up` to `down`."""

    def __init__(self, num_steps: int, *, is_cluster: bool) -> None:
        files = ("compose.yaml", "compose.cluster.yaml") if is_cluster else ("compose.yaml",)
        self._brokers = ("kafka", "kafka-2", "kafka-3") if is_cluster else ("kafka",)
        name, ports = f"gagar-test-{secrets.token_hex(4)}", free_ports(3)
        overrides = (f"training.num_steps={num_steps}", "training.evaluation_group_size=1", "run.name=compose")
        env = {"GAGAR_SET": " ".join(f"--set {override}" for override in overrides)}
        env |= {"GAGAR_TAG": TAG, "GAGAR_KAFKA_PORT": str(ports[0])}
        env |= {"GAGAR_KAFKA_2_PORT": str(ports[1]), "GAGAR_KAFKA_3_PORT": str(ports[2])}
        self.project = Project(name, env, files)
        self.memory = Memory(name)
        self.num_steps = num_steps
        run = open_run(DEFAULT_RUN, overrides)
        self._run: Run = msgspec.structs.replace(run, kafka=KafkaTable(bootstrap_servers=f"127.0.0.1:{ports[0]}"))
        self._ended = threading.Event()

    def step(self) -> int:
        """The newest step on the log; -1 while that cannot be read."""
        try:
            return asyncio.run(step_of(self._run))
        except GagarError:
            return -1

    def play(self) -> dict[str, Any]:
        """Everything; the answer is what it cost."""
        sampling = threading.Thread(target=self._sample, daemon=True)
        started = time.monotonic()
        self.project.compose("up", "--detach", "--no-build")
        sampling.start()
        until("a trained step", lambda: self.step() >= 1, FIRST_STEP_S)
        first_step_s = time.monotonic() - started
        tell(f"first step after {first_step_s:.0f} s")
        killed = self._disturb()
        code = self._audit()
        self._ended.set()
        sampling.join()
        return {"first_step_s": round(first_step_s, 1), "killed": killed, "audit_exit_code": code}

    def _disturb(self) -> list[str]:
        scenes.scale_verifier(self.project)
        tell("verifier 1, 3, 1: the first went on")
        scenes.freeze(self.project, "grader")
        tell("a frozen grader is unhealthy, and healthy again")
        scenes.take_brokers_away(self.project, "gatherer", self._brokers)
        tell("a gatherer without its brokers waits and is healthy")
        killed = scenes.kill_each(self.project, tell, lambda: self.step() >= self.num_steps)
        assert killed == list(scenes.KILLED), f"expected all to be killed before the end, got {killed}; take more --steps"
        return killed

    def _audit(self) -> int:
        def has_ended() -> bool:
            return not self.project.containers("audit")[0]["State"]["Running"]

        until("the audit's end", has_ended, END_S)
        click.echo(self.project.compose("logs", "--no-log-prefix", "audit"))
        return self.project.exit_code("audit")

    def _sample(self) -> None:
        while not self._ended.wait(5.0):
            try:
                self.memory.sample()
            except AssertionError as error:  # a container that has just gone
                tell(f"memory not sampled: {error}")

    def end(self) -> None:
        """Down, without leftovers."""
        self.project.compose("--profile", "*", "down", "--volumes", "--remove-orphans")
        left = self.project.leftovers()
        assert left == [], f"expected nothing to be left, got {left}"


def sizes() -> dict[str, int]:
    """Bytes of the images, and of ours over their base."""
    found = {tag: image_bytes(tag) for tag in (PYTHON_IMAGE, KAFKA_IMAGE, f"gagar-light:{TAG}", f"gagar-torch:{TAG}")}
    return found | {"light_over_base": found[f"gagar-light:{TAG}"] - found[PYTHON_IMAGE]}


@click.command()
@click.option("--steps", default=20, show_default=True, type=click.IntRange(min=2), help="Optimizer steps to the planned end.")
@click.option("--cluster", "is_cluster", is_flag=True, help="Three brokers.")
@click.option("--rebuild", "is_anew", is_flag=True, help="Base images, too.")
@click.option("--ca-bundle", type=click.Path(path_type=Path, exists=True), help="Authorities that pip trusts in the builds.")
def main(steps: int, is_cluster: bool, is_anew: bool, ca_bundle: Path | None) -> None:
    """Builds, starts, scales, freezes, kills and audits the loop as containers of this machine's Docker engine."""
    check_tools()
    build(ca_bundle, is_anew=is_anew)
    trial = Trial(steps, is_cluster=is_cluster)
    try:
        result = trial.play()
    except BaseException:
        logs = ROOT / ".gagar" / "compose-test.log"
        logs.parent.mkdir(exist_ok=True)
        logs.write_text(trial.project.compose("logs", "--timestamps"))
        tell(f"failed; logs of all services in {logs}")
        raise
    finally:
        trial.end()
    images = sizes()
    for tag, size in images.items():
        click.echo(f"image {tag:<28} {mib(size)}")
    for service, used in sorted(trial.memory.peak.items()):
        click.echo(f"memory {service:<27} {mib(used)}")
    is_good = result["audit_exit_code"] == 0 and images["light_over_base"] <= MAX_LIGHT_BYTES
    result |= {"images": images, "memory": dict(trial.memory.peak), "steps": steps, "is_good": is_good}
    result["engine"] = docker("version", "--format", "{{.Server.Version}}")
    click.echo(msgspec.json.encode(result).decode())
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
