"""A log in memory for the learner's tests, and builders of what it reads."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from consumers.learner.config import Config, Settings
from gagar.arrays import Tensor
from gagar.config import SHARED, Run, convert
from gagar.errors import BadRecordError, FencedError
from gagar.records import AttemptFacts, GroupAdvantages, LogRef, MemberAdvantage, Outcome, PolicyVersion, TrajectoryTokens
from gagar.stream.handlers import Delivery, Output, RecordT, References
from gagar.stream.spec import Topic

VOCAB = 64
NUM_PARTITIONS = 2


class FakeLog:
    """Topics that outlive a learner: advantages, token records, and what has been committed."""

    def __init__(self) -> None:
        self.advantages: dict[int, list[GroupAdvantages]] = {partition: [] for partition in range(NUM_PARTITIONS)}
        self.tokens: dict[LogRef, TrajectoryTokens] = {}
        self.transactions: list[list[Any]] = []
        self.offsets: dict[int, int] = {}
        self.epoch = 0

    def records(self, kind: type) -> list[Any]:
        return [record for transaction in self.transactions for record in transaction if isinstance(record, kind)]

    @property
    def outcomes(self) -> list[Outcome]:
        return self.records(Outcome)

    @property
    def versions(self) -> list[PolicyVersion]:
        return self.records(PolicyVersion)

    def add_group(
        self, number: int, *, version: int = 0, advantages: Sequence[float] = (0.5, -0.5), seed: int | None = None, **bad: Any
    ) -> GroupAdvantages:
        """A group `g<number>` with its token records. `bad`: fields of the first member's record replaced."""
        rng = np.random.default_rng(number if seed is None else seed)
        members = []
        for index, advantage in enumerate(advantages):
            record = make_tokens(rng, f"g{number}", index, version=version, **(bad if index == 0 else {}))
            ref = LogRef(topic="trajectory-tokens", partition=number % NUM_PARTITIONS, offset=number * 100 + index)
            self.tokens[ref] = record
            members.append(make_member(index, ref, record, advantage, version))
        group = make_advantages(f"g{number}", members)
        self.advantages[number % NUM_PARTITIONS].append(group)
        return group


class FakeJournal:
    """The Journal over a FakeLog; `self.references` is itself. Calls `on_commit` after each commit."""

    def __init__(self, log: FakeLog) -> None:
        self.log = log
        self.references: References = self
        self.on_commit: Any = None
        self.positions: dict[int, int] = {}
        self.sought: dict[int, int] = {}
        self.epoch = 0
        self.input_id = "first"

    async def connect(self) -> None: ...

    async def open(self) -> None:
        self.log.epoch += 1
        self.epoch = self.log.epoch

    async def seek(self, positions: Mapping[int, int]) -> None:
        self.sought = dict(positions)
        self.positions = {partition: positions.get(partition, 0) for partition in self.log.advantages}

    async def poll(self, timeout_s: float) -> list[Delivery[Any]]:
        deliveries = []
        for partition, groups in self.log.advantages.items():
            for offset in range(self.positions[partition], len(groups)):
                ref = LogRef(topic="advantages", partition=partition, offset=offset)
                group = groups[offset]
                deliveries.append(Delivery(ref=ref, key=group.group_id, record=group, at=float(group.group_id.lstrip("gt-"))))
            self.positions[partition] = len(groups)
        return deliveries

    async def commit(self, outputs: Sequence[Output], positions: Mapping[int, int]) -> None:
        if self.epoch != self.log.epoch:
            raise FencedError("learner journal: expected to be the only learner, got a successor")
        self.log.transactions.append(list(outputs))
        self.log.offsets = dict(positions)
        if self.on_commit:
            self.on_commit(list(outputs))

    async def read(self, refs: Sequence[LogRef], record_type: type[RecordT], /) -> list[RecordT]:
        missing = [ref for ref in refs if ref not in self.log.tokens]
        if missing:
            raise BadRecordError(f"{missing[0]}: expected a record, got none; it has been retired")
        return [self.log.tokens[ref] for ref in refs]  # type: ignore[misc]

    async def read_table(self, topic: Topic, observe: Callable[[Any], None]) -> None:
        for record in self.log.records(topic.record):
            observe(record)

    async def close(self) -> None: ...


def make_tokens(
    rng: np.random.Generator,
    group_id: str = "g0",
    index: int = 0,
    *,
    length: int | None = None,
    version: int = 0,
    **fields: Any,
) -> TrajectoryTokens:
    """Random tokens: a prompt of 3, then sampled ones with one unsampled in between."""
    size = length or int(rng.integers(6, 20))
    mask = np.ones(size, "u1")
    mask[:3] = 0
    mask[size - 2] = 0
    logprobs = (-np.log(VOCAB) + rng.normal(0, 0.2, size)).astype("<f4") * mask
    arrays = {
        "token_ids": Tensor.of(rng.integers(0, VOCAB, size).astype("<i4")),
        "loss_mask": Tensor.of(mask),
        "behaviour_logprobs": Tensor.of(logprobs.astype("<f4")),
        "policy_versions": Tensor.of(np.where(mask == 1, version, -1).astype("<i4")),
    }
    return TrajectoryTokens(group_id=group_id, sample_index=index, **{**arrays, **fields})


def make_member(index: int, ref: LogRef, record: TrajectoryTokens, advantage: float, version: int) -> MemberAdvantage:
    num_sampled = record.loss_mask.length - 4
    return MemberAdvantage(
        sample_index=index,
        trajectory=LogRef(topic="trajectories", partition=ref.partition, offset=ref.offset),
        attempt=AttemptFacts(
            tokens=ref,
            num_prompt_tokens=4,
            num_sampled_tokens=num_sampled,
            policy_version_min=version,
            policy_version_max=version,
            status="completed",
            request=LogRef(topic="rollout-requests", partition=0, offset=0),
        ),
        reward=float(advantage > 0),
        grpo_advantage=advantage,
        weight=1.0,
        advantage=advantage,
    )


def make_advantages(group_id: str, members: list[MemberAdvantage], **fields: Any) -> GroupAdvantages:
    return GroupAdvantages(
        group_id=group_id,
        task_id="task",
        members=members,
        **{"grader": "none", "fallback": "", "rescale": 1.0, "was_capped": False, **fields},
    )


def make_model_directory(path: Path, hidden_size: int = 16, seed: int = 0, max_shard_size: str = "5GB") -> Path:
    """A tiny Llama in Hugging Face format."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=hidden_size,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=32,
        vocab_size=VOCAB,
        tie_word_embeddings=True,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(path, max_shard_size=max_shard_size)
    (path / "tokenizer.json").write_text("{}")
    return path


def make_settings(root: Path, training: dict[str, Any] | None = None, **config: Any) -> Settings:
    """Settings of a learner below `root`, whose initial policy is `root/policy`."""
    tables: dict[str, Any] = {
        "run": {"name": "test", "dir": "data"},
        "kafka": {"num_partitions": NUM_PARTITIONS},
        "policy": {"path": "policy"},
        "training": {"groups_per_step": 2, "num_steps": 4, "max_staleness": 8, **(training or {})},
    }
    shared: dict[str, Any] = {name: convert(name, table, SHARED[name]) for name, table in tables.items()}
    return Settings(config=Config(**config), run=Run(**shared, tables={}, root=str(root)))
