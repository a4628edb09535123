"""The run file is checked whole before anything starts."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gagar.cli.run_file import DEFAULT_RUN, check_dir, check_run, open_run, run_arguments, run_options
from gagar.config import Run
from gagar.errors import ConfigError
from tests.runs import write_run, write_tasks, write_weights
from topology.composition import find_stage, stage_config
from topology.stages import GATHERER


def refused(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_run(open_run(str(path), overrides))
    return str(caught.value)


def test_a_sound_run_passes(tmp_path: Path) -> None:
    check_run(open_run(str(write_run(tmp_path))))


def test_an_unknown_table_is_refused_beside_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    path = write_run(tmp_path, "[verifyer]\nx=1\n")
    message = refused(path)
    assert message == "[verifyer]: expected a known table, got verifyer; did you mean verifier?"
    assert "known are run, kafka, policy, " in refused(write_run(tmp_path / "x", "[zzz]\nx=1\n"))


def test_a_stage_s_table_is_checked_by_its_own_type(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    assert refused(path, "gatherer.grace_s=-1") == "gatherer.grace_s: expected 0 or more, at most 31536000 (a year), got -1"
    assert refused(path, "gatherer.grace=1").startswith(
        "gatherer.grace: expected a key of [gatherer], got grace; did you mean grace_s?"
    )
    assert refused(path, "gatherer.grace_s='soon'").startswith("gatherer.grace_s: expected a number, got 'soon'")


@pytest.mark.parametrize(
    ("name", "expected", "advice"),
    [
        ("config.json", "a Hugging Face model directory", "name one, or make one with `gagar sft policy`"),
        ("tokenizer.json", "a model with tokenizer.json", "save its fast tokenizer"),
        ("model.safetensors", "weights in model.safetensors, or in shards listed by .*", "save the model as safetensors"),
    ],
)
def test_a_policy_that_lacks_a_file_is_refused(tmp_path: Path, name: str, expected: str, advice: str) -> None:
    path = write_run(tmp_path)
    (tmp_path / "policy" / name).unlink()
    assert re.fullmatch(rf"policy.path: expected {expected}, got .*policy without {name}; {advice}", refused(path))


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (lambda data: data[:-1], r"expected \d+ bytes, got \d+; copy or make the model anew"),
        (lambda data: data + b"x", r"expected \d+ bytes, got \d+; copy or make the model anew"),
        (lambda data: data[:20], "expected safetensors, got another file; copy or make the model anew"),
        (lambda data: b"", "expected safetensors, got another file"),
        (lambda data: b"\xff" * 64, "expected safetensors, got another file"),
        (lambda data: (2).to_bytes(8, "little") + b"[]", "expected safetensors, got another file"),
    ],
)
def test_a_broken_weights_file_is_refused_before_anything_starts(
    tmp_path: Path, cut: Callable[[bytes], bytes], message: str
) -> None:
    path = write_run(tmp_path)
    weights = tmp_path / "policy" / "model.safetensors"
    weights.write_bytes(cut(weights.read_bytes()))
    assert re.search(rf"policy.path .*model.safetensors: {message}", refused(path))


def shard(policy: Path) -> dict[str, str]:
    """Puts two shards and their index in the place of the weights; the index."""
    (policy / "model.safetensors").unlink()
    index = {name: f"model-0000{number}-of-00002.safetensors" for number, name in enumerate("xy", 1)}
    for name, file in index.items():
        write_weights(policy / file, name=name)
    (policy / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return index


def test_a_policy_in_shards_is_taken(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    shard(tmp_path / "policy")
    check_run(open_run(str(path)))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda index: index.update(x="gone.safetensors"), r"gone\.safetensors: expected a readable file, got No such file"),
        (lambda index: index.update(z=index["x"]), r"00001-of-00002\.safetensors: expected the tensor z that model\.\S* says"),
        (lambda index: index.update(x="../x"), r"index\.json: expected names of files beside it, got '\.\./x'"),
        (lambda index: index.clear(), r"index\.json: expected names of files beside it, got none"),
        (lambda index: index.update(x=1), r"index\.json: expected an index of shards, got Expected `str`, got `int`"),
    ],
)
def test_a_broken_index_of_shards_is_refused(tmp_path: Path, damage: Callable[[dict[str, Any]], None], message: str) -> None:
    path = write_run(tmp_path)
    index: dict[str, Any] = dict(shard(tmp_path / "policy"))
    damage(index)
    (tmp_path / "policy" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert re.search(rf"policy.path.* .*{message}", refused(path))


def test_a_shard_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    file = tmp_path / "policy" / shard(tmp_path / "policy")["y"]
    file.write_bytes(file.read_bytes()[:-1])
    assert re.search(rf"policy.path .*{file.name}: expected \d+ bytes, got \d+; copy or make the model anew", refused(path))


def test_a_broken_config_of_the_model_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    (tmp_path / "policy" / "config.json").write_text("{")
    assert re.search(r"policy.path .*config.json: expected a JSON object, got ", refused(path))


def test_a_run_dir_that_cannot_be_written_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(write_run(tmp_path))
    check_dir(open_run(path))
    with pytest.raises(ConfigError, match=r"run.dir .*: expected a directory to write to, got a file at .*run.toml; name"):
        check_dir(open_run(path, ("run.dir=run.toml/x",)))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match=r"run.dir .*: expected a directory to write to, got no permission at"):
        check_dir(open_run(path))


def test_a_broken_line_of_a_task_file_is_named(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    with (tmp_path / "heldout.jsonl").open("a") as file:
        file.write("\n{broken\n")
    assert f"{tmp_path / 'heldout.jsonl'}:2: expected a task as JSON" in refused(path)


def test_a_missing_task_file_is_named(tmp_path: Path) -> None:
    message = refused(write_run(tmp_path), "tasks.train.path=nowhere.jsonl")
    assert "nowhere.jsonl: expected a readable JSON Lines file" in message


def test_held_out_tasks_must_not_be_trained_on(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    write_tasks(tmp_path / "heldout.jsonl", "b", "a")
    assert refused(path).startswith("tasks.heldout: expected tasks that are not in tasks.train, got 1 of both, 'a' among them")


def test_the_local_broker_has_one_replica_only(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    assert refused(path, "kafka.replication_factor=3").startswith("kafka.replication_factor: expected 1 with the local broker")
    check_run(open_run(str(path), ("kafka.replication_factor=3", "kafka.bootstrap_servers=k:9092")))


def test_a_stage_s_table_has_its_own_type(tmp_path: Path) -> None:
    run = open_run(str(write_run(tmp_path)), ("gatherer.grace_s=2.5",))
    assert stage_config(GATHERER, run).grace_s == 2.5


def test_the_packaged_run_writes_below_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = open_run(DEFAULT_RUN)
    assert run.dir == tmp_path / ".gagar"
    assert run.resolve(run.policy.path).is_relative_to(Path(__file__).parents[2])


def test_a_stage_is_found_by_name_or_the_names_are_told() -> None:
    assert find_stage("gatherer") is GATHERER
    with pytest.raises(
        ConfigError, match=r"stage: expected one of sampler, rollout-worker, .*, got 'gather'; did you mean gatherer\?$"
    ):
        find_stage("gather")


@click.command()
@run_options
@click.pass_context
def probe(context: click.Context, run: Run) -> None:
    click.echo(f"{run.run.seed} {run_arguments(context)}")


def test_the_options_reach_the_command_and_are_handed_on(tmp_path: Path) -> None:
    path = str(write_run(tmp_path))
    result = CliRunner().invoke(probe, ["--set", "run.seed=7", "--run", path, "--set", "run.dir=x"], catch_exceptions=False)
    assert result.output.strip() == f"7 {['--run', path, '--set', 'run.seed=7', '--set', 'run.dir=x']}"
