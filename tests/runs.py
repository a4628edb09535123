"""Builders of runs and run files for tests."""

import json
from pathlib import Path
from typing import Any

import msgspec

from gagar.config import KafkaTable, PolicyTable, Run, RunTable, TrainingTable
from gagar.tasks.task import Task


def make_run(root: Path, servers: str = "", **kafka: int) -> Run:
    """A run with every value at its default; nothing of it exists on disk."""
    kafka_fields: dict[str, Any] = {"bootstrap_servers": servers, **kafka}
    return Run(
        run=RunTable(name="test"),
        kafka=KafkaTable(**kafka_fields),
        policy=PolicyTable(path="policy"),
        training=TrainingTable(),
        tables={"tasks": {"train": {"path": "train.jsonl"}, "heldout": {"path": "heldout.jsonl"}}},
        root=str(root),
    )


def write_tasks(path: Path, *task_ids: str) -> None:
    """A task file with the smallest tasks there can be."""
    tasks = [Task(task_id=name, statement="s", tree={}, tests={"t": ""}, fail_to_pass=["t::t"]) for name in task_ids]
    path.write_bytes(b"\n".join(msgspec.json.encode(task) for task in tasks))


def write_weights(path: Path, num_bytes: int = 4, name: str = "x") -> None:
    """A safetensors file of one tensor."""
    header = json.dumps({name: {"dtype": "U8", "shape": [num_bytes], "data_offsets": [0, num_bytes]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(num_bytes))


def write_run(directory: Path, extra: str = "") -> Path:
    """A run file with all that it names: a policy that nobody can load, a task of each set."""
    policy = directory / "policy"
    policy.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (policy / name).write_text("{}")
    write_weights(policy / "model.safetensors")
    write_tasks(directory / "train.jsonl", "a")
    write_tasks(directory / "heldout.jsonl", "b")
    path = directory / "run.toml"
    tables = '[run]\nname="test"\n[policy]\npath="policy"\n[tasks]\ntrain.path="train.jsonl"\nheldout.path="heldout.jsonl"\n'
    path.write_text(tables + extra)
    return path
