"""Poison in the stream: what a stage writes is spoilt on its way out, for the groups that the seed has chosen.

`Router.encode` is the one place that every output of every stage passes, so it is wrapped there, in the stage's own process.
"""

import random
import string

import msgspec

from gagar.arrays import Tensor
from gagar.records import (
    SENTINEL_LOGPROB,
    GradedGroup,
    Group,
    GroupAdvantages,
    Record,
    RolloutRequest,
    Trajectory,
    TrajectoryTokens,
    Verdict,
)
from gagar.stream.routing import Router
from gagar.stream.transport import Send
from tests.chaos.expected_outcomes import ExpectedOutcomes
from tests.chaos.plan import OVERSIZED_BYTES, REFUSED_BYTES

NO_RECORD = b"\xc1"
"""A byte that MessagePack never uses."""
TOPIC_OF: dict[type, str] = {
    RolloutRequest: "rollout-requests",
    Trajectory: "trajectories",
    TrajectoryTokens: "trajectory-tokens",
    Verdict: "verdicts",
    Group: "groups",
    GradedGroup: "graded-groups",
    GroupAdvantages: "advantages",
}
ROOMY_FIELD: dict[type, str] = {
    Trajectory: "patch",
    Verdict: "reason",
    Group: "task_id",
    GradedGroup: "fallback",
    GroupAdvantages: "fallback",
}
"""A text that may be as long as one likes."""


class HandlerBug(Exception):
    """What a handler raises that has a bug."""


def install(expected: ExpectedOutcomes) -> None:
    """Spoils what this process writes from now on."""
    original = Router.encode

    def encode(router: Router, record: Record) -> Send:
        act = act_on(expected, record)
        if act == "garbage":
            send = original(router, record)
            return msgspec.structs.replace(send, value=garbage(record))
        if act == "sentinel":
            record = with_sentinels(record)
        if act in ("oversized", "refused"):
            record = swollen(record, OVERSIZED_BYTES if act == "oversized" else REFUSED_BYTES)
        return original(router, record)

    Router.encode = encode  # type: ignore[method-assign, assignment]


def act_on(expected: ExpectedOutcomes, record: Record) -> str:
    """What is done to a record on its way out; empty: nothing."""
    topic = TOPIC_OF.get(type(record))
    if topic is None:
        return ""
    poison = expected.of(record.group_id).poison  # type: ignore[union-attr]
    is_hit = poison is not None and poison.kind.place == topic and poison.sample_index == sample_of(record)
    return poison.kind.act if poison is not None and is_hit else ""


def sample_of(record: Record) -> int:
    """Which member a record is of; -1: a whole group."""
    return getattr(record, "sample_index", -1)


def garbage(record: Record) -> bytes:
    """No record, but whoever finds it can tell whose place it took."""
    return NO_RECORD + f"{record.group_id}/{sample_of(record)}".encode()  # type: ignore[union-attr]


def with_sentinels(record: Record) -> Record:
    """Tokens as an engine leaves them that has no log-probabilities to tell."""
    assert isinstance(record, TrajectoryTokens)
    import numpy as np

    logprobs = np.full(record.behaviour_logprobs.length, SENTINEL_LOGPROB, dtype="<f4")
    return msgspec.structs.replace(record, behaviour_logprobs=Tensor.of(logprobs))


def swollen(record: Record, num_bytes: int) -> Record:
    """The record with so many bytes more, such as hardly compress."""
    chance = random.Random(num_bytes)
    if isinstance(record, TrajectoryTokens):
        data = memoryview(chance.randbytes(num_bytes))
        return msgspec.structs.replace(record, token_ids=Tensor(dtype="u1", length=num_bytes, data=data))
    text = "".join(chance.choices(string.printable, k=num_bytes))
    return msgspec.structs.replace(record, **{ROOMY_FIELD[type(record)]: text})


def check_bug(expected: ExpectedOutcomes, stage: str, group_id: str, sample_index: int = -1) -> None:
    """Raises HandlerBug if the stage's handler has a bug with this record."""
    poison = expected.of(group_id).poison
    if poison is not None and str(poison.kind) == f"bug {stage}" and poison.sample_index == sample_index:
        raise HandlerBug(f"{stage}: expected to handle {group_id}/{sample_index}, got a bug")
