"""What it does to a run when a stopped stage is moved to other offsets: per stage, in words, and whether it may be.

A reset is no transaction with what was done before: what the stage does again it writes again. These lines say what the stages
downstream make of that; they are facts of the code, and whoever changes that changes them.
"""

from collections.abc import AsyncIterable, Sequence
from typing import NamedTuple

from gagar.errors import ConfigError
from gagar.records import DeadLetter
from gagar.stream.handlers import Delivery
from gagar.stream.resets import Move
from gagar.stream.spec import Stage
from gagar.stream.transport import Partition

REPLAY = "`gagar replay` does it again beside the run and changes nothing"
NO_LEARNER = (
    "its offsets are for lag alone: the learner reads from the positions in its checkpoint; to go back, let it start from an "
    "older checkpoint, or from the initial policy with --set learner.start_over=true"
)
NO_SAMPLER = (
    "it has no input: its offset counts its units, and its cursor lies beside it; moved, it would ask for groups a second "
    "time, under the same ids"
)
NO_GATHERER = (
    "it would end groups a second time, and not always as before: verdicts that came too late may be in time now, and those "
    "that retention has taken are missing. A second outcome takes the place of the first in the compacted topic, and with it "
    f"what the learner knows of the groups that it has trained; {REPLAY}"
)
DOUBLES = (
    "the gatherer counts the second verdicts and drops them: as late where the group has ended, as doubles where it has not. "
    "The first verdict of a member to come counts"
)
LEFT_OUT = "their groups end at their deadline by the members that are left, as `lost` if none is"
TRAINED_ONCE = "the learner trains each group once: it passes over the second record on advantages, with a warning"
FAILS_NOW = "a group that ends as a dead letter this time gets a second outcome, which replaces its first one"
TOPIC_ONCE = f"`gagar audit` will name each doubled record (topic once); {REPLAY}"
NEVER_END = "the groups between would never end: nobody else ends them, and the sampler's places for them would stay taken"


class Effects(NamedTuple):
    """What a reset of one stage means."""

    back: tuple[str, ...] = ()
    """Of doing records again."""
    ahead: tuple[str, ...] = ()
    """Of leaving records out."""
    refused: str = ""
    """Why the stage cannot be moved at all."""
    refused_ahead: str = ""
    """Why it cannot be moved past records."""


EFFECTS: dict[str, Effects] = {
    "sampler": Effects(refused=NO_SAMPLER),
    "rollout-worker": Effects(
        back=(
            "attempts are made a second time, with the policy of now: second records on trajectory-tokens and trajectories",
            "a request whose deadline has passed ends at once, as an invalid attempt without tokens",
            f"the verifier tests the second trajectories too; {DOUBLES}",
            "`gagar audit` will name each doubled record (trajectory once, verdict once, trajectory reference)",
        ),
        ahead=(
            f"requests in between are never attempted: {LEFT_OUT}",
            "`gagar audit` will name them (request answered)",
        ),
    ),
    "verifier": Effects(
        back=(
            "trajectories are tested a second time: second records on verdicts",
            f"{DOUBLES}, so no group that has ended ends otherwise",
            f"`gagar audit` will name each doubled record (verdict once); {REPLAY}",
        ),
        ahead=(f"trajectories in between get no verdict: {LEFT_OUT}",),
    ),
    "gatherer": Effects(refused=NO_GATHERER),
    "grader": Effects(
        back=(
            "groups are graded a second time: second records on graded-groups and, of the advantage publisher, on advantages",
            TRAINED_ONCE,
            FAILS_NOW,
            TOPIC_ONCE,
        ),
        refused_ahead=NEVER_END,
    ),
    "advantage-publisher": Effects(
        back=(
            "advantages are computed a second time: second records on advantages, equal unless [advantage_publisher] differs",
            TRAINED_ONCE,
            FAILS_NOW,
            TOPIC_ONCE,
        ),
        refused_ahead=NEVER_END,
    ),
    "learner": Effects(refused=NO_LEARNER),
}
"""By stage."""


def check_movable(stage: Stage) -> None:
    """Raises ConfigError for a stage to which a reset can only do harm, or nothing."""
    if refused := EFFECTS[stage.name].refused:
        raise ConfigError(f"stage {stage.name}: expected one that can be moved, got one that cannot: {refused}")


def check_moves(stage: Stage, planned: Sequence[Move]) -> None:
    """Raises ConfigError for moves past records that the stage must not leave out."""
    skipping = [one for one in planned if one.num_skipped]
    if skipping and (refused := EFFECTS[stage.name].refused_ahead):
        one = skipping[0]
        stands = one.before.offset if one.before else 0
        raise ConfigError(
            f"stage {stage.name}: expected {one.at} to go back from {stands}, or to stay, got {one.after.offset}: {refused}"
        )


async def check_letters(stage: Stage, planned: Sequence[Move], letters: AsyncIterable[Delivery[DeadLetter]]) -> None:
    """Raises ConfigError if a stage that holds whole groups has dead-lettered one that it is to do again: that group has ended,
    and the learner knows only of the ends that it has written itself, so it would train the group after its end."""
    begins = {one.at: one.after.offset for one in planned}
    async for delivery in letters:
        letter, source = delivery.record, delivery.record.source
        begin = begins.get(Partition(source.topic, source.partition))
        if stage.holds_groups and letter.stage == stage.name and begin is not None and source.offset >= begin:
            later = f"{source.topic}[{source.partition}]@{source.offset + 1}"
            raise ConfigError(
                f"stage {stage.name}: expected no group to do again that it has dead-lettered, got {source}: the group has "
                f"ended, and would be trained after its end; go to {later} or beyond"
            )


def effects_of(stage: Stage, planned: Sequence[Move]) -> list[str]:
    """What these moves mean for the run."""
    effects = EFFECTS[stage.name]
    back = effects.back if any(one.num_again or one.before is None for one in planned) else ()
    ahead = effects.ahead if any(one.num_skipped for one in planned) else ()
    return [*back, *ahead]
