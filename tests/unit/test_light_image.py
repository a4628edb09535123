"""What the light image serves loads with the packages of that image alone."""

import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
SERVED = (
    "producers.sampler",
    "consumers.verifier",
    "consumers.gatherer",
    "consumers.grader",
    "consumers.advantage_publisher",
    "gagar.cli.run",
    "gagar.cli.topics.planning",
    "gagar.cli.audit",
    "gagar.cli.report",
    "gagar.cli.health",
    "gagar.broker.local",
    "gagar.sandbox.jails",
    "gagar.sandbox.self_test",
    "gagar.sandbox.warm_sandbox",
    "gagar.stream.kafka.client",
    "gagar.stream.kafka.admin",
    "gagar.stream.kafka.preflight",
    "gagar.report.curves",
)
BODY = """
import importlib, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"{name} is not in the image", name=name)
sys.meta_path.insert(0, Absent())
for name in served:
    importlib.import_module(name)
"""


def pinned(name: str) -> set[str]:
    """Names of the packages in a requirements file."""
    text = (ROOT / "requirements" / name).read_text()
    return {normal(match) for match in re.findall(r"^([A-Za-z0-9_.-]+)==", text, re.MULTILINE)}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_light_image_has_what_it_serves() -> None:
    missing = pinned("dev.txt") - pinned("light.txt")
    assert "torch" in missing
    absent = {module for module, names in packages_distributions().items() if {normal(name) for name in names} <= missing}
    assert {"torch", "transformers", "psutil", "rich"} <= absent
    body = f"absent = {absent!r}\nserved = {SERVED!r}\n{BODY}"
    result = subprocess.run([sys.executable, "-P", "-c", body], capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.stderr == ""
    assert result.returncode == 0
