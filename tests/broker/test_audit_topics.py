"""`run_audit` on a real broker: a sound run is clean, and every kind of violation that lies in the topics is found."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from gagar.audit.findings import Law
from gagar.audit.fold import OVERDUE_MARGIN_S
from gagar.cli.audit import CLOCK_SKEW_S, run_audit
from gagar.config import KafkaTable, Run
from gagar.errors import ConfigError
from gagar.records import LogRef, RolloutRequest, Trajectory, Verdict, encode
from gagar.stream.kafka.admin import Admin
from gagar.stream.routing import key_of
from gagar.stream.transport import Send
from tests.audit_runs import (
    IN_PLACES,
    IN_RUN,
    IN_TOPICS,
    IN_VERSIONS,
    IN_WAY,
    TOPIC_OF,
    Records,
    astray,
    changed,
    edited,
    make_run,
    resolved,
    symbol,
    symbols,
    until,
    violated,
    way_of,
)
from tests.builders import make_ref, make_version
from tests.contract.world import NUM_PARTITIONS, KafkaWorld, joined, opened
from tests.contract.world import make_run as make_run_file
from topology import topics
from topology.composition import stage_config
from topology.stages import GATHERER, VERIFIER

pytestmark = pytest.mark.broker


class Pipeline(KafkaWorld):
    """A broker with all topics of the pipeline."""

    def create_topics(self) -> None:
        with Admin(KafkaTable(bootstrap_servers=self.servers)) as admin:
            admin.apply(self.run, topics.TOPICS)

    @property
    def run(self) -> Run:
        return make_run_file(self.name, self.servers)

    def ends(self, topic: str) -> list[int]:
        """End offsets of a topic by partition."""
        name = f"{self.name}.{topic}"
        with Admin(KafkaTable(bootstrap_servers=self.servers)) as admin:
            ends = admin.end_offsets({name: NUM_PARTITIONS})
        return [ends[name, number] for number in range(NUM_PARTITIONS)]

    def retire(self, topic: str) -> None:
        """Takes all that there is of a topic, as retention would."""
        from kafka import TopicPartition  # noqa: TID251  no command of ours takes records away

        name = f"{self.name}.{topic}"
        with Admin(KafkaTable(bootstrap_servers=self.servers)) as admin:
            ends = admin.end_offsets({name: NUM_PARTITIONS})
            admin._client.delete_records({TopicPartition(*at): end for at, end in ends.items()})


def overdue(record: Any) -> Any:
    """A request is as if its deadline had long passed."""
    return replace(record, deadline_s=-3600.0) if isinstance(record, RolloutRequest) else record


async def make_pipeline(servers: str, records: Records) -> Pipeline:
    """The records on their topics."""
    world = Pipeline(servers)
    await asyncio.to_thread(world.create_topics)
    await write(world, records, {})
    return world


async def write(world: Pipeline, records: Records, places: dict[str, LogRef]) -> None:
    """A transaction for each topic, upstream first; what refers to a record refers to its place, which is added to `places`."""
    async with opened(world) as transport:
        producer = await transport.start_producer("writer", topics.TOPICS)
        for record_type, topic in TOPIC_OF.items():
            chosen = [record for record in records if type(record) is record_type]
            refs = await write_all(producer, topic, [resolved(record, places) for record in chosen])
            for record, ref in zip(chosen, refs, strict=True):
                places |= {name: ref for name in symbols(record) if name not in places}
        await producer.close()


async def write_all(producer: Any, topic: str, records: Sequence[Any]) -> list[LogRef]:
    """Where the records came to lie."""
    if not records:
        return []
    await producer.begin()
    sends = [Send(topic=topic, key=key_of(record).encode(), value=encode(record)) for record in records]
    answers = [await producer.send(send) for send in sends]
    refs = [await answer for answer in answers]
    await producer.commit("writer", {})
    return refs


async def test_a_sound_run_is_clean(kafka_servers: str) -> None:
    world = await make_pipeline(kafka_servers, make_run())
    report = await run_audit(world.run)
    assert report.findings == []
    assert (report.num_requested, report.num_trained, report.num_evaluated, report.dropped) == (4, 2, 1, {"all_failed": 1})
    assert (report.num_references, report.num_retired_references, report.num_followed) == (152, 0, 32)


def test_what_is_planted_here_is_all_that_an_audit_can_find() -> None:
    assert {*IN_WAY, *IN_RUN, *IN_PLACES, *IN_VERSIONS, *IN_TOPICS} == set(Law)


async def test_every_violation_of_a_group_is_found(kafka_servers: str) -> None:
    """One run, with a group for each law."""
    records, told = violated()
    world = await make_pipeline(kafka_servers, [overdue(record) for record in records])
    end = (await asyncio.to_thread(world.ends, "trajectories"))[0]
    report = await run_audit(world.run)
    for law, text in told.items():
        expected = text.replace("{end}", str(end))
        assert [finding for finding in report.findings if expected in finding], law
    told_too = {Law.REFERENCE_TO_OWN}  # of the verdict that says it is of another attempt
    assert set(report.broken) == {law.value for law in {*told, *told_too}}
    assert not [finding for finding in report.findings if "t-000000" in finding]


@pytest.mark.parametrize("is_last", [True, False])
async def test_references_that_lead_astray_or_to_no_record_are_found(kafka_servers: str, is_last: bool) -> None:
    """`is_last`: nothing follows the place where no record is."""
    group_id, places = "t-000001", dict[str, LogRef]()
    way = changed(Verdict, astray)(way_of(group_id))
    world = await make_pipeline(kafka_servers, [make_version(0), make_version(1)])
    await write(world, until(Trajectory)(way), places)
    ends = await asyncio.to_thread(world.ends, "trajectories")
    number, end = next((number, end) for number, end in enumerate(ends) if end)
    marker = make_ref("trajectories", end - 1, number)
    rest = [record for record in way if record not in until(Trajectory)(way)]
    again = [] if is_last else [record for record in way if isinstance(record, Trajectory)]
    await write(world, [*again, *edited(Verdict, 1, trajectory=marker)(rest)], places)
    report = await run_audit(world.run)
    astray_at = places[symbol("trajectories", group_id, 1).topic]
    told = [text.replace("{id}", group_id) for text in IN_PLACES.values()]
    assert [text for text in report.findings if text.startswith(f"sample 1 of group {group_id}: {marker}: {told[1]}")]
    assert [text for text in report.findings if text == f"{astray_at}: {told[0]}"]
    laws = {*IN_PLACES, Law.TRAJECTORY_REFERENCE, *([] if is_last else [Law.TRAJECTORY_ONCE])}
    assert set(report.broken) == {law.value for law in laws}


async def test_only_groups_requested_since_then_are_audited(kafka_servers: str) -> None:
    """Whatever was wrong before does not count, and is not read."""
    world = await make_pipeline(kafka_servers, violated()[0])
    await asyncio.sleep(0.01)
    since = time.time()
    await write(world, way_of("t-900000"), {})
    report = await run_audit(world.run, since=since)
    assert (report.findings, report.num_requested, report.num_trained, report.num_references) == ([], 1, 1, 56)
    report = await run_audit(world.run, since=since + 2 * CLOCK_SKEW_S)
    assert (report.findings, report.num_requested, report.policy_version) == ([], 0, 4)


async def test_groups_whose_requests_retention_has_taken_are_told_so(kafka_servers: str) -> None:
    world = await make_pipeline(kafka_servers, make_run())
    await asyncio.to_thread(world.retire, "rollout-requests")
    report = await run_audit(world.run)
    assert (report.findings, report.num_retired, report.num_requested) == ([], 4, 0)
    assert report.num_retired_references == 56


async def test_a_run_that_has_stalled_is_overdue_while_a_stage_is_at_work(kafka_servers: str) -> None:
    """Due two seconds after its newest record; nobody writes any more."""
    deadline_s = 2.0 - OVERDUE_MARGIN_S - stage_config(GATHERER, make_run_file("t", kafka_servers)).grace_s
    asked = [replace(r, deadline_s=deadline_s) for r in way_of("t-000001") if isinstance(r, RolloutRequest)]
    world = await make_pipeline(kafka_servers, asked)
    await asyncio.sleep(3.0)
    paused = await run_audit(world.run)
    assert (paused.findings, paused.num_in_flight, paused.is_at_work) == ([], 1, False)
    async with opened(world) as transport, joined(transport, VERIFIER):
        stalled = await run_audit(world.run)
    assert (list(stalled.broken), stalled.overdue, stalled.is_at_work) == ([Law.OVERDUE], {"rollout-requests": 1}, True)


async def test_a_run_without_records_is_clean(kafka_servers: str) -> None:
    world = await make_pipeline(kafka_servers, [])
    report = await run_audit(world.run)
    assert report.is_clean
    assert report.num_requested == 0


async def test_a_topic_that_has_grown_is_found_and_another_run_name_is_a_way_out(kafka_servers: str) -> None:
    world = await make_pipeline(kafka_servers, make_run())
    await world.grow(topics.ROLLOUT_REQUESTS.name, 2 * NUM_PARTITIONS)
    report = await run_audit(world.run)
    assert not report.is_clean
    assert list(report.broken) == list(IN_TOPICS)
    assert all(text in finding for text, finding in zip(IN_TOPICS.values(), report.findings, strict=True))
    with pytest.raises(ConfigError, match=r"rollout-requests: expected 4 partitions, got 8; .*: take another run\.name$"):
        await asyncio.to_thread(world.create_topics)
    again = await make_pipeline(kafka_servers, make_run())
    assert again.name != world.name
    assert (await run_audit(again.run)).is_clean


async def test_topics_that_agree_with_each_other_and_not_with_the_run_file_are_found(kafka_servers: str) -> None:
    world = await make_pipeline(kafka_servers, [])
    given = replace(world.run, kafka=replace(world.run.kafka, num_partitions=6))
    report = await run_audit(given)
    assert report.broken == {Law.PARTITIONS: len(topics.TOPICS) - 1}
    assert "got 4; set kafka.num_partitions=4 if the run was made with it, else" in report.findings[0]


async def test_a_run_that_has_no_topics_is_not_called_clean(kafka_servers: str) -> None:
    with pytest.raises(ConfigError, match=r"run.name: expected a run with topics, got 'nowhere' without; name one with --set"):
        await run_audit(make_run_file("nowhere", kafka_servers))


@pytest.mark.parametrize("law", IN_VERSIONS)
async def test_every_violation_of_versions_is_found(kafka_servers: str, law: Law) -> None:
    versions, text = IN_VERSIONS[law]
    world = await make_pipeline(kafka_servers, [make_version(0), make_version(1), make_version(2), *versions])
    report = await run_audit(world.run)
    assert text in report.findings
    assert law in report.broken
