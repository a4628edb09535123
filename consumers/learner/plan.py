"""What rank 0 tells the ranks, and what they answer: references and decisions, never tokens."""

from typing import Literal

import msgspec

from gagar.records import GroupAdvantages, LogRef

Kind = Literal["wait", "train", "stop"]


class MemberLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One trajectory of a batch and the rank that reads and trains it."""

    sample_index: int
    tokens: LogRef
    """Its `TrajectoryTokens`."""
    advantage: float
    """After redistribution."""
    length: int
    """Tokens, prompt included."""
    num_sampled: int
    """Tokens that are trained on."""
    rank: int
    """That reads and trains it."""


class GroupLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One group, all or nothing."""

    group_id: str
    members: list[MemberLoad]
    """Those with sampled tokens."""

    @property
    def num_sampled(self) -> int:
        return sum(member.num_sampled for member in self.members)


class Directive(msgspec.Struct, frozen=True, kw_only=True):
    """One round of all ranks: start to read `load`, let go of `forget`, then do what `kind` says."""

    kind: Kind
    """What is done after the reads have been begun."""
    load: list[GroupLoad] = []
    """Groups whose tokens are to be read."""
    forget: list[str] = []
    """Groups that will not be trained."""
    train: list[str] = []
    """Groups of the batch; all have been reported as loaded by every rank that owns a part."""
    step: int = 0
    """The step to make, from 1."""
    checkpoint: str = ""
    """Directory below the checkpoints to save to after the step (or at the stop); empty: none."""


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's answer to a round."""

    loaded: list[str] = []
    """Groups whose part of this rank is here, checked."""
    bad: dict[str, str] = {}
    """Groups with a token record that is gone or wrong -> why."""


def trainable(group: GroupAdvantages) -> bool:
    """Whether training on the group can move a weight: some member has sampled tokens and an advantage."""
    return any(member.attempt.num_sampled_tokens > 0 and member.advantage != 0 for member in group.members)


def oldest_version(group: GroupAdvantages) -> int:
    """Version that sampled the oldest token of the group."""
    return min(
        (member.attempt.policy_version_min for member in group.members if member.attempt.num_sampled_tokens > 0), default=-1
    )
