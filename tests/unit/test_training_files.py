"""Batches, checkpoints on disk, policies on disk, and the background loop."""

import asyncio
import hashlib
import os
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from gagar.arrays import Tensor
from gagar.errors import BadRecordError, ConfigError, UnavailableError
from gagar.policies.model_directory import check_directory, weights_checksum
from gagar.policies.weights import match_weights, read_weights
from gagar.records import LineageEntry, TrajectoryTokens
from gagar.training.background import Background
from gagar.training.batch import Sample, check_trainable, collate
from gagar.training.checkpoint import CheckpointState, check_fits, complete, old_policies, read_latest, remove_policy
from gagar.training.model import describe, load_model, save_policy
from tests.learner import VOCAB, make_model_directory, make_tokens

pytestmark = pytest.mark.slow


def make_record(length: int = 8, **fields: object) -> TrajectoryTokens:
    return make_tokens(np.random.default_rng(0), length=length, **fields)  # type: ignore[arg-type]


def test_a_batch_points_each_sampled_token_at_the_logit_before_it() -> None:
    samples = [Sample(make_record(8), 1.0), Sample(make_record(12), -2.0)]
    batch = collate(samples)
    assert batch.input_ids.shape == (2, 12)
    assert batch.input_ids[0, 8:].tolist() == [0] * 4
    number = 0
    for row, sample in enumerate(samples):
        ids, logprobs = sample.tokens.token_ids.view(), sample.tokens.behaviour_logprobs.view()
        for position in np.flatnonzero(sample.tokens.loss_mask.view()):
            assert batch.rows[number] == row
            assert batch.columns[batch.places[number]] == position - 1
            assert batch.targets[number] == ids[position]
            assert batch.behaviour_logprobs[number] == logprobs[position]
            assert batch.advantages[number] == sample.advantage
            number += 1
    assert number == len(batch.targets)


def test_only_columns_that_predict_a_sampled_token_are_asked_for() -> None:
    batch = collate([Sample(make_record(8), 1.0)])
    assert batch.columns.tolist() == [2, 3, 4, 6]


def test_an_empty_batch_is_one_token_without_a_target() -> None:
    batch = collate([])
    assert batch.input_ids.shape == (1, 1)
    assert len(batch.targets) == 0


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (make_record(9), "expected 8 tokens, 4 sampled, got 9, 5"),
        (make_record(8, loss_mask=Tensor.of(np.ones(8, "u1"))), "expected token ids and versions|expected 8 tokens, 4 sampled"),
        (make_record(8, token_ids=Tensor.of(np.full(8, VOCAB, "<i4"))), f"expected token ids below {VOCAB}, got {VOCAB}"),
        (make_record(8, token_ids=Tensor.of(np.zeros(7, "<i4"))), "expected arrays of one length"),
    ],
)
def test_tokens_that_cannot_be_trained_are_bad_records(record: TrajectoryTokens, message: str) -> None:
    with pytest.raises(BadRecordError, match=message):
        check_trainable(record, VOCAB, 8, 4)


def test_a_sampled_first_token_has_nothing_to_predict_it() -> None:
    mask = np.array([1, 0, 0, 1, 1, 1, 0, 0], "u1")
    record = make_record(8, loss_mask=Tensor.of(mask), policy_versions=Tensor.of(np.zeros(8, "<i4")))
    with pytest.raises(BadRecordError, match="expected a prompt before the first sampled token, got none"):
        check_trainable(record, VOCAB, 8, 4)


STATE = CheckpointState(
    run_id="a",
    step=7,
    lineage=[LineageEntry(run_id="z", last_step=3)],
    positions={0: 5, 1: 9},
    finished={0: [6, 8]},
    model="Llama 1",
)


def write_checkpoint(root: Path, name: str, state: CheckpointState = STATE, keep: int = 2) -> Path:
    directory = root / name
    (directory / "engine").mkdir(parents=True)
    (directory / "engine" / "weights").write_bytes(b"w")
    complete(directory, state, keep)
    return directory


def test_a_checkpoint_comes_back_as_it_was_and_only_the_newest_stay(tmp_path: Path) -> None:
    assert read_latest(tmp_path) is None
    for step in (1, 2, 3):
        directory = write_checkpoint(tmp_path, f"a-{step}", msgspec.structs.replace(STATE, step=step))
        os.utime(directory, ns=(step, step))
    found = read_latest(tmp_path)
    assert found == (tmp_path / "a-3", msgspec.structs.replace(STATE, step=3))
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a-2", "a-3", "latest"]


def test_one_that_was_not_completed_is_not_seen(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "a-1")
    (tmp_path / "a-2" / "engine").mkdir(parents=True)
    found = read_latest(tmp_path)
    assert found is not None
    assert found[0].name == "a-1"


def test_a_pointer_to_nothing_is_an_error_that_names_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "latest").write_text("a-9\n")
    with pytest.raises(ConfigError, match=r"latest: expected the name of a complete checkpoint, got 'a-9' .*; write another"):
        read_latest(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "Llama 2"}, r"expected the model at policy\.path, Llama 1, got Llama 2; set it back"),
        ({"dtype": "bfloat16"}, r"expected learner\.dtype 'float32', got 'bfloat16'"),
        ({"zero_stage": 2}, r"expected learner\.zero_stage 0, got 2"),
    ],
)
def test_a_checkpoint_that_cannot_be_loaded_is_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        check_fits(tmp_path, msgspec.structs.replace(STATE, **change), STATE)


def test_divided_state_needs_as_many_ranks_and_whole_state_does_not(tmp_path: Path) -> None:
    check_fits(tmp_path, msgspec.structs.replace(STATE, num_ranks=2), STATE)
    mine = msgspec.structs.replace(STATE, zero_stage=2)
    with pytest.raises(ConfigError, match=r"expected learner\.num_ranks 1, got 2"):
        check_fits(tmp_path, msgspec.structs.replace(mine, num_ranks=2), mine)


def test_old_policies_of_all_runs_go_and_the_newest_never(tmp_path: Path) -> None:
    for number, name in enumerate(["a/0", "a/1", "b/1", "b/2"]):
        (tmp_path / name).mkdir(parents=True)
        os.utime(tmp_path / name, ns=(100 - number, 100 - number) if name == "b/2" else (number, number))
    old = old_policies(tmp_path, tmp_path / "b/2", 2)
    assert {str(item.relative_to(tmp_path)) for item in old} == {"a/0", "a/1"}
    for directory in old:
        remove_policy(directory)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["b"]


def test_a_policy_is_saved_whole_and_loads_as_the_same_model(tmp_path: Path) -> None:
    source = make_model_directory(tmp_path / "source")
    (source / "notes.bin").write_text("not for the public")
    model = load_model(source, "float32")
    checksum = save_policy(model, dict(model.state_dict()), source, tmp_path / "policies" / "7")
    assert checksum == hashlib.sha256((tmp_path / "policies/7/model.safetensors").read_bytes()).hexdigest()
    assert sorted(item.name for item in (tmp_path / "policies").iterdir()) == ["7"]
    assert not (tmp_path / "policies/7/notes.bin").exists()
    again = load_model(tmp_path / "policies/7", "float32")
    assert describe(again) == describe(model)
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
    assert save_policy(model, dict(model.state_dict()), source, tmp_path / "policies" / "7") == checksum


def test_a_policy_in_shards_is_read_published_and_loaded_as_the_same_model(tmp_path: Path) -> None:
    """What the learner starts from, what it writes, and what an engine makes of it."""
    whole = load_model(make_model_directory(tmp_path / "whole"), "float32")
    source = make_model_directory(tmp_path / "source", max_shard_size="4KB")
    shards = sorted(path.name for path in source.glob("*.safetensors"))
    assert len(shards) > 2
    check_directory(source)
    model = load_model(source, "float32")
    destination = tmp_path / "policies" / "7"
    checksum = save_policy(model, dict(model.state_dict()), source, destination, max_shard_size="8KB")
    written = sorted(destination.glob("model*"))
    assert 2 < len(written) < len(shards) + 1, "fewer shards than the source has, and an index"
    assert {path.stat().st_mode & 0o777 for path in written} == {0o644}
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in written)
    assert checksum == weights_checksum(destination) == hashlib.sha256(sums.encode()).hexdigest()
    check_directory(destination)
    for name, tensor in load_model(destination, "float32").state_dict().items():
        assert torch.equal(whole.state_dict()[name], tensor)
    pairs = match_weights(dict(whole.state_dict()), read_weights(destination), "7")
    assert all(torch.equal(live, new) for live, new in pairs)
    written[1].write_bytes(b"torn")
    assert weights_checksum(destination) != checksum


def test_models_of_other_shapes_or_config_have_other_descriptions(tmp_path: Path) -> None:
    small = load_model(make_model_directory(tmp_path / "small"), "float32")
    large = load_model(make_model_directory(tmp_path / "large", hidden_size=32), "float32")
    assert describe(small) != describe(large)
    config = tmp_path / "small" / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'))
    assert describe(load_model(tmp_path / "small", "float32")) != describe(small)


def test_a_directory_without_a_model_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"policy\.path .*: expected a Hugging Face model directory, got no config\.json there"
    ):
        load_model(tmp_path, "float32")
    (tmp_path / "config.json").write_text('{"model_type": "no such"}')
    with pytest.raises(ConfigError, match=r"policy\.path .*: expected the config of a language model, got"):
        load_model(tmp_path, "float32")


def test_weights_that_are_broken_or_of_another_model_are_refused(tmp_path: Path) -> None:
    source = make_model_directory(tmp_path / "source")
    config = (source / "config.json").read_text()
    (source / "config.json").write_text(config.replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    with pytest.raises(
        ConfigError, match=r"policy\.path .*: expected weights for the whole model, got none for \['model.layers.2"
    ):
        load_model(source, "float32")
    (source / "config.json").write_text(config.replace('"hidden_size": 16', '"hidden_size": 32'))
    with pytest.raises(ConfigError, match=r"policy\.path .*: expected a causal language model, got"):
        load_model(source, "float32")
    (source / "config.json").write_text(config)
    (source / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ConfigError, match=r"policy\.path .*: expected a causal language model, got"):
        load_model(source, "float32")


async def answer(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def fail() -> None:
    raise ConfigError("x: expected y, got z")


def test_the_background_answers_fails_and_times_out_in_the_callers_thread() -> None:
    background = Background("test")
    assert background.call(answer(3), timeout_s=5.0, what="answer") == 3
    with pytest.raises(ConfigError, match="x: expected y"):
        background.call(fail(), timeout_s=5.0, what="fail")
    with pytest.raises(UnavailableError, match=r"sleeper: expected an answer within 0\.01 s, got none"):
        background.call(asyncio.sleep(60), timeout_s=0.01, what="sleeper")
    began = time.monotonic()
    threading.Timer(0.1, background.end_by, [0.3]).start()
    with pytest.raises(UnavailableError, match="sleeper: expected an answer before the stop, got none"):
        background.call(asyncio.sleep(60), timeout_s=60.0, what="sleeper")
    assert time.monotonic() - began < 10
    hanging = background.submit(asyncio.sleep(60))
    background.close()
    assert hanging.cancelled()
    assert "test" not in [thread.name for thread in threading.enumerate()]
