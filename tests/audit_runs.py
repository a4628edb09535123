"""Whole runs as records, sound ones and ones with every violation that an audit can find, for a fold and for real topics.

References between the records are symbols until the records have been laid out: `symbol("trajectories", "t-000000", 1)` stands
for wherever the trajectory of that attempt comes to lie.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from consumers.advantage_publisher import Config, assign_advantages
from gagar.audit.findings import Law
from gagar.grading.rules import rank
from gagar.groups.gathering import Gather
from gagar.records import (
    AttemptFacts,
    GradedGroup,
    Group,
    GroupAdvantages,
    LineageEntry,
    LogRef,
    Outcome,
    PatchMeasures,
    PolicyVersion,
    RolloutRequest,
    Trajectory,
    TrajectoryTokens,
    Verdict,
)
from gagar.stream.handlers import Delivery
from tests.builders import (
    CLEAN,
    DEAD_CODE,
    OUTSIDE,
    make_delivery,
    make_outcome,
    make_ref,
    make_request,
    make_verdict,
    make_version,
)
from tests.contract.world import make_tokens, make_trajectory

Records = list[Any]
TOPIC_OF: Mapping[type, str] = {
    RolloutRequest: "rollout-requests",
    TrajectoryTokens: "trajectory-tokens",
    Trajectory: "trajectories",
    Verdict: "verdicts",
    Group: "groups",
    GradedGroup: "graded-groups",
    GroupAdvantages: "advantages",
    PolicyVersion: "policy-versions",
    Outcome: "outcomes",
}
"""Upstream first."""
FAR = 10**6
"""An offset that no log reaches."""
STEPS = [make_version(step, is_last=step == 4) for step in range(5)]
"""Enough for every group below to be trained at."""


def symbol(topic: str, group_id: str, sample_index: int) -> LogRef:
    """Where the first record of an attempt on a topic will lie."""
    return LogRef(topic=f"{topic}:{group_id}/{sample_index}", partition=0, offset=0)


def resolved(record: Any, places: Mapping[str, LogRef]) -> Any:
    """The record with the symbols that are known by now replaced."""
    changes: dict[str, Any] = {}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, LogRef):
            changes[name] = places.get(value.topic, value)
        elif isinstance(value, Group | AttemptFacts):
            changes[name] = resolved(value, places)
        elif name == "members":
            changes[name] = [resolved(member, places) for member in value]
    return replace(record, **changes) if changes else record


def symbols(record: Any) -> list[str]:
    """What later records call the place of this one."""
    if not isinstance(record, RolloutRequest | Trajectory | TrajectoryTokens):
        return []
    return [symbol(TOPIC_OF[type(record)], record.group_id, record.sample_index).topic]


def laid_out(records: Records) -> list[Delivery[Any]]:
    """The records in logs of one partition each, topic by topic, upstream first."""
    places: dict[str, LogRef] = {}
    deliveries = []
    for record_type, topic in TOPIC_OF.items():
        for offset, record in enumerate(record for record in records if type(record) is record_type):
            ref = make_ref(topic, offset)
            places |= {name: ref for name in symbols(record) if name not in places}
            deliveries.append(replace(make_delivery(resolved(record, places), at=1000.0), ref=ref))
    return deliveries


def referring(verdict: Verdict, **refs: LogRef) -> Verdict:
    """The verdict as one of another request, or of other tokens."""
    return replace(verdict, attempt=replace(verdict.attempt, **refs))


def way_of(group_id: str, members: Sequence[PatchMeasures | None] = (CLEAN, DEAD_CODE, None, None)) -> Records:
    """Every record of a group from its requests on, made by the stages' own functions; trained at step 1 of run a."""
    size = len(members)
    requests = [make_request(group_id, i, group_size=size) for i in range(size)]
    places = [[symbol(topic, group_id, i) for topic in list(TOPIC_OF.values())[:3]] for i in range(size)]
    tokens = [make_tokens(request) for request in requests]
    trajectories = [
        make_trajectory(request, request=asked, tokens=tokened)
        for request, (asked, tokened, _) in zip(requests, places, strict=True)
    ]
    verdicts = [
        make_verdict(
            group_id,
            i,
            "passed" if measures else "failed",
            measures=measures or PatchMeasures(),
            request=places[i][0],
            tokens=places[i][1],
            trajectory=places[i][2],
        )
        for i, measures in enumerate(members)
    ]
    gather = Gather(0.0)
    state = gather.start(group_id)
    answers = [gather.apply(state, make_delivery(record), 0.0) for record in (*requests, *verdicts)]
    [end] = answers[-1].outputs
    attempts = [*requests, *tokens, *trajectories, *verdicts, end]
    if not isinstance(end, Group):
        return attempts
    graded = GradedGroup(group=end, grader="rules/1", grades=rank(end, 3))
    [advantages] = assign_advantages(graded, Config())
    return [*attempts, graded, advantages, make_outcome(group_id, "trained")]


def make_run() -> Records:
    """Two trained groups (one capped), one dropped, one evaluated; ended as planned at step 1."""
    return [
        make_version(0),
        *way_of("t-000000"),
        *way_of("t-000001", [CLEAN, OUTSIDE, OUTSIDE, None]),
        *way_of("t-000002", [None, None, None, None]),
        *way_of("e-000001-0000", [CLEAN, CLEAN, OUTSIDE, None]),
        make_version(1, is_last=True),
    ]


def changed(record_type: type, change: Callable[[Any], Any], place: int = 0) -> Callable[[Records], Records]:
    """Replaces one record of a type by what `change` makes of it (a list: by all of these)."""

    def apply(records: Records) -> Records:
        index = [i for i, record in enumerate(records) if isinstance(record, record_type)][place]
        made = change(records[index])
        return [*records[:index], *(made if isinstance(made, list) else [made]), *records[index + 1 :]]

    return apply


def edited(record_type: type, place: int = 0, **fields: Any) -> Callable[[Records], Records]:
    """Sets fields of one record of a type."""
    return changed(record_type, lambda record: replace(record, **fields), place)


def member(place: int, **fields: Any) -> Callable[[Records], Records]:
    """Sets fields of one member of the advantages."""

    def change(group: GroupAdvantages) -> GroupAdvantages:
        members = list(group.members)
        members[place] = replace(members[place], **fields)
        return replace(group, members=members)

    return changed(GroupAdvantages, change)


def twice(record_type: type) -> Callable[[Records], Records]:
    return changed(record_type, lambda record: [record, record])


def without(record_type: type) -> Callable[[Records], Records]:
    return changed(record_type, lambda record: [])


def until(record_type: type) -> Callable[[Records], Records]:
    """The way up to the topic of a type."""
    kept = list(TOPIC_OF)[: list(TOPIC_OF).index(record_type) + 1]
    return lambda records: [record for record in records if type(record) in kept]


def ended(kind: str, **fields: Any) -> Callable[[Records], Records]:
    """Another end."""
    return changed(Outcome, lambda outcome: make_outcome(outcome.group_id, kind, **fields))


Plant = tuple[Callable[[Records], Records], str]
IN_WAY: dict[Law, Plant] = {
    Law.REQUESTED: (
        lambda way: [record for record in way if not isinstance(record, RolloutRequest)],
        "group {id}: expected a request, got records of a group that nobody asked for",
    ),
    Law.REQUESTED_ONCE: (twice(RolloutRequest), "group {id}: expected one request of sample 0, got two"),
    Law.REQUESTED_IN_ONE_SIZE: (
        edited(RolloutRequest, 1, group_size=2),
        "group {id}: expected requests of one size, got sample 1 of 2",
    ),
    Law.REQUESTED_WHOLE: (without(RolloutRequest), "group {id}: expected 4 requests, got 3"),
    Law.REQUEST_ANSWERED: (
        without(Trajectory),
        "group {id}: expected a trajectory of each request by now, got none of samples [0]",
    ),
    Law.TRAJECTORY_ONCE: (twice(Trajectory), "group {id}: expected one trajectory of sample 0, got two"),
    Law.TRAJECTORY_REQUESTED: (
        edited(Trajectory, sample_index=7),
        "group {id}: expected trajectories of requested samples only, got samples [7]",
    ),
    Law.TRAJECTORY_TOKENS: (
        changed(Trajectory, lambda it: replace(it, attempt=replace(it.attempt, tokens=None, num_sampled_tokens=40))),
        "group {id}: expected a reference to the 40 tokens of sample 0, got none",
    ),
    Law.TIMES_ADD_UP: (
        edited(Trajectory, duration_s=5.0),
        "group {id}: sample 0: expected times of 0 or more that add up to 5.000 s, got",
    ),
    Law.TIMEOUT_BY_OWN_CLOCK: (
        changed(Trajectory, lambda it: replace(it, attempt=replace(it.attempt, status="timeout"))),
        "group {id}: sample 0: expected a time-out after 300 s of own work, got one after 0.000 s",
    ),
    Law.VERDICT_ONCE: (twice(Verdict), "group {id}: expected one verdict of sample 0, got two"),
    Law.VERDICT_TRAJECTORY: (
        without(Trajectory),
        "group {id}: expected a trajectory of each verdict, got none of samples [0]",
    ),
    Law.VERDICT_INVALID: (
        edited(Trajectory, infrastructure=True),
        "group {id}: expected sample 0, which the infrastructure ended, invalid, got it passed",
    ),
    Law.VERDICT_REQUESTED: (
        edited(Verdict, sample_index=7),
        "group {id}: expected verdicts of requested samples only, got samples [7]",
    ),
    Law.MEMBER_VERDICT: (
        without(Verdict),
        "group {id}: expected a verdict of each member on groups, got none of samples [0]",
    ),
    Law.REQUEST_REFERENCE: (
        changed(Verdict, lambda verdict: referring(verdict, request=symbol("rollout-requests", verdict.group_id, 1))),
        "expected the request of sample 0 of group {id} at offset",
    ),
    Law.TRAJECTORY_REFERENCE: (
        member(0, trajectory=make_ref("trajectories", FAR + 1)),
        "expected the trajectory of sample 0 of group {id} at offset",
    ),
    Law.TOKENS_REFERENCE: (
        changed(Verdict, lambda verdict: referring(verdict, tokens=symbol("trajectory-tokens", verdict.group_id, 1))),
        "expected the tokens of sample 0 of group {id} at offset",
    ),
    Law.REFERENCE_IN_LOG: (
        edited(Verdict, trajectory=make_ref("trajectories", FAR)),
        f"expected a reference into the log [0, {{end}}), got trajectories[0]@{FAR}",
    ),
    Law.TOPIC_ONCE: (twice(Group), "group {id}: expected it once on groups, got it 2 times"),
    Law.TOPIC_ORDER: (
        without(GradedGroup),
        "group {id}: expected it on graded-groups before advantages, got it on the later one only",
    ),
    Law.ONE_OUTCOME: (
        twice(Outcome),
        "group {id}: expected one outcome, got 2: trained by a at step 1, trained by a at step 1",
    ),
    Law.OUTCOME_OF_PURPOSE: (
        ended("evaluated"),
        "group {id}: expected an end that fits its purpose, got evaluated of a group for training",
    ),
    Law.OUTCOME_OF_WAY: (
        ended("dropped", reason="all_failed"),
        "group {id}: expected dropped all_failed to be its end, got it on groups as well",
    ),
    Law.OUTCOME_REASON: (
        ended("dropped"),
        "outcome of {id}: expected a reason of dropped groups only, got dropped ''",
    ),
    Law.OUTCOME_STEP: (
        edited(Outcome, run_id=""),
        "outcome of {id}: expected run and step of a trained group, got '' and 1",
    ),
    Law.OUTCOME_COUNTS: (
        edited(Outcome, num_passed=9),
        "outcome of {id}: expected clean <= passed <= valid <= requested attempts, got (1, 9, 4, 4)",
    ),
    Law.TRAINED_ON_ADVANTAGES: (
        without(GroupAdvantages),
        "group {id}: expected advantages of a trained group, got none",
    ),
    Law.TRAINED_INTO_VERSION: (
        edited(Outcome, step=9, staleness=8),
        "group {id}: expected a policy version of that run and step, got none: trained by a at step 9",
    ),
    Law.STALENESS_TOLD: (
        edited(Outcome, staleness=1),
        "group {id}: expected a staleness of 0, got 1: trained by a at step 1 from version 0",
    ),
    Law.STALENESS_BOUND: (
        edited(Outcome, step=4, staleness=3),
        "group {id}: expected a staleness of at most 2, got 3: trained by a at step 4",
    ),
    Law.OVERDUE: (until(GradedGroup), "group {id}: expected an end"),
    Law.ADVANTAGES_FINITE: (member(0, advantage=float("nan")), "advantages of {id}: expected finite numbers, got another"),
    Law.ADVANTAGES_MEMBERS: (
        changed(GroupAdvantages, lambda group: replace(group, members=[group.members[0], *group.members])),
        "advantages of {id}: expected members once each, by sample_index, got [0, 0, 1, 2, 3]",
    ),
    Law.ADVANTAGES_MIXED: (
        changed(GroupAdvantages, lambda group: replace(group, members=group.members[:2], num_valid=2)),
        "advantages of {id}: expected passing and failing members, got 2 passing of 2 valid",
    ),
    Law.ADVANTAGES_BASELINE: (
        member(2, grpo_advantage=-0.4),
        "advantages of {id}: member 2: expected grpo_advantage -0.500000000, got -0.400000000",
    ),
    Law.ADVANTAGES_WEIGHT: (member(3, weight=0.5), "advantages of {id}: member 3: expected weight 1, got 0.5"),
    Law.ADVANTAGES_SHIFT: (
        edited(GroupAdvantages, shift=0.1),
        "advantages of {id}: expected no shift of a group that was not capped, got 0.1",
    ),
    Law.ADVANTAGES_CAP: (
        edited(GroupAdvantages, was_capped=True, rescale=2.0),
        "advantages of {id}: expected the rescale of a capped group to keep at most the passing sum 1.000000000, got",
    ),
    Law.ADVANTAGES_FAILING: (
        member(2, advantage=-0.4),
        "advantages of {id}: failing member 2: expected advantage -0.500000000, got -0.400000000",
    ),
    Law.ADVANTAGES_SUM: (member(0, advantage=0.6), "advantages of {id}: expected a passing sum of 1.000000000, got"),
    Law.ADVANTAGES_CENTRE: (
        lambda way: member(3, advantage=-0.4)(edited(GroupAdvantages, was_capped=True)(way)),
        "advantages of {id}: expected a sum of 0 after recentring, got 0.100000000",
    ),
    Law.ADVANTAGES_RATIO: (
        lambda way: member(1, advantage=0.5)(member(0, advantage=0.5)(way)),
        "advantages of {id}: passing member 0: expected advantage",
    ),
}
"""What is done to the records of one sound group, and how it is told; `{id}` is the group's."""


def astray(verdict: Verdict) -> Verdict:
    """Refers to the trajectory of another attempt."""
    return replace(verdict, trajectory=symbol("trajectories", verdict.group_id, 1))


IN_PLACES: dict[Law, str] = {
    Law.REFERENCE_TO_OWN: "expected a record of sample 0 of group {id}, got one of sample 1 of group {id}",
    Law.REFERENCE_TO_RECORD: "expected a record, got none there",
}
"""Seen only where references point: one that is `astray`, and one to a place where no record lies."""


def back_to(run_id: str, step: int, *earlier: LineageEntry) -> list[LineageEntry]:
    return [*earlier, LineageEntry(run_id=run_id, last_step=step)]


A1, A2 = LineageEntry(run_id="a", last_step=1), LineageEntry(run_id="a", last_step=2)
IN_VERSIONS: dict[Law, tuple[Records, str]] = {
    Law.VERSION_SUCCESSION: (
        [make_version(4)],
        "policy version a/4: expected one after version 2 of step 2, got step 4",
    ),
    Law.LINEAGE_KEPT: (
        [make_version(3, lineage=back_to("z", 0))],
        "policy version a/3: expected its run's lineage [], got ['z@0']",
    ),
    Law.VERSION_AFTER_LAST: (
        [make_version(3, is_last=True), make_version(4)],
        "policy version a/4: expected none after version 3, the planned end of its run, got one",
    ),
    Law.VERSION_BASE: (
        [make_version(2, "b", lineage=[A1])],
        "policy version b/2: expected its run to begin with version 1, where it goes on from, got this one",
    ),
    Law.LINEAGE_ROOT: (
        [make_version(0, "b")],
        "policy version b/0: expected a lineage that goes back to run a or one before, got none",
    ),
    Law.LINEAGE_STEPS: (
        [make_version(1, "b", lineage=[A2])],
        "policy version b/1: expected a lineage of ascending steps up to 1, got [2]",
    ),
    Law.LINEAGE_RUNS: (
        [make_version(1, "b", lineage=[A1, A1])],
        "policy version b/1: expected each run once in its lineage, got ['a@1', 'a@1']",
    ),
    Law.LINEAGE_RESOLVES: (
        [make_version(7, "b", lineage=back_to("a", 7))],
        "policy version b/7: expected a lineage of versions that exist, got a@7",
    ),
    Law.LINEAGE_CONTINUES: (
        [make_version(1, "b", lineage=[A1]), make_version(1, "c", lineage=back_to("b", 1))],
        "policy version c/1: expected the lineage of the run before, ['a@1'], and that run, got ['b@1']",
    ),
    Law.ONE_LEARNER: (
        [make_version(1, "b", lineage=[A1]), make_version(3)],
        "policy version a/3: expected none after the first of run b, got one",
    ),
}
"""Versions that follow 0, 1 and 2 of run a, and how that is told."""
IN_RUN: dict[Law, str] = {
    Law.CONSERVATION: "conservation: expected",
    Law.ENDED_AT_END: "in flight: expected no group at the planned end, got",
}
"""Told of a run as a whole; they follow from what is done to its groups."""
IN_TOPICS: dict[Law, str] = {
    Law.PARTITIONS: "topic rollout-requests: expected 4 partitions, as kafka.num_partitions says, got 8; start anew under",
}
"""Told of topics that somebody has grown."""


def violated() -> tuple[Records, dict[Law, str]]:
    """A run in which every law of a group is broken by a group of its own, and how that is told (`{end}`: of trajectories)."""
    records, told = [*STEPS, *way_of("t-000000")], dict(IN_RUN)
    for number, (law, (plant, text)) in enumerate(IN_WAY.items(), 1):
        group_id = f"t-{number:06d}"
        records += plant(way_of(group_id))
        told[law] = text.replace("{id}", group_id)
    return records, told
