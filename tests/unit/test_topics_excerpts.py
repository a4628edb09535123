"""`gagar topics export` and `import`, and `reset`, as a user calls them, over logs in memory."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gagar.broker import local
from gagar.cli.run_file import open_run
from gagar.cli.saved_run import run_to_read
from gagar.cli.topics import excerpts as module
from gagar.cli.topics import planning as apply_module
from gagar.cli.topics import reset as reset_module
from gagar.cli.topics.excerpts import imported_run
from gagar.cli.topics.group import topics
from gagar.config import KafkaTable, Run
from gagar.errors import ConfigError, GagarError
from gagar.excerpts.container import ExcerptFile
from gagar.stream.lanes.frontier import AT_START
from gagar.stream.memory.transport import MemoryLog, MemoryTransport, PartitionLog
from gagar.stream.spec import Topic
from gagar.stream.transport import Committed, Partition
from tests.audit_runs import make_run as make_records
from tests.excerpts import audited, records_of
from tests.logs import NUM_PARTITIONS, empty_log, lay
from tests.runs import write_run
from tests.unit.test_excerpts import TERMS
from topology.resources import Resources
from topology.settings import check_settings, read_settings, settings_of, tables_of, write_settings
from topology.topics import ALL_TOPICS

SECRET = """
[kafka]
num_partitions = 3
security_protocol = "SASL_SSL"
bootstrap_servers = "kafka-1.internal:9093"
sasl_mechanism = "PLAIN"
sasl_username = "somebody"
sasl_password_file = "/run/secrets/password"
[training]
num_steps = 4
"""


class FakeAdmin:
    """Of a cluster in memory that holds a log for each run."""

    def __init__(self, logs: Mapping[str, MemoryLog], made: list[Topic]) -> None:
        self.kafka = KafkaTable()
        self._logs = logs
        self._made = made
        self.members = False

    def __enter__(self) -> "FakeAdmin":
        return self

    def __exit__(self, *_: object) -> None: ...

    def apply(self, run: Run, wanted: Sequence[Topic]) -> None:
        self._made += wanted

    def broker_setting(self, key: str) -> str:
        return "60000"

    def delete_before(self, offsets: Mapping[tuple[str, int], int]) -> None:
        for (name, number), offset in offsets.items():
            run, _, topic = name.partition(".")
            self._logs[run].truncate(Partition(topic, number), offset)

    def has_members(self, groups: Sequence[str]) -> bool:
        return self.members

    def describe(self, names: Sequence[str]) -> dict[str, Any]:
        state = type("State", (), {"num_partitions": NUM_PARTITIONS})
        return dict.fromkeys(names, state)

    def start_offsets(self, sizes: Mapping[str, int]) -> dict[tuple[str, int], int]:
        return {place: self._part(*place).start for place in self._places(sizes)}

    def end_offsets(self, sizes: Mapping[str, int], *, is_committed: bool = True) -> dict[tuple[str, int], int]:
        return {place: self._part(*place).end for place in self._places(sizes)}

    def offsets_since(self, sizes: Mapping[str, int], at: float) -> dict[tuple[str, int], int]:
        return {place: -1 if place[1] else 1 for place in self._places(sizes)}

    def positions(self, group: str) -> dict[tuple[str, int], Committed]:
        run, _, stage = group.partition(".")
        offsets = self._logs[run].group(stage).offsets
        return {(f"{run}.{at.topic}", at.number): committed for at, committed in offsets.items()}

    def _part(self, name: str, number: int) -> PartitionLog:
        run, _, topic = name.partition(".")
        return self._logs[run].partitions[Partition(topic, number)]

    def _places(self, sizes: Mapping[str, int]) -> list[tuple[str, int]]:
        return [(name, number) for name, size in sizes.items() for number in range(size)]


class Here:
    """A machine with a run, and a place for another."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.logs = {"test": empty_log(), "test-imported": empty_log(), "other": empty_log()}
        self.made: list[Topic] = []
        self.admin = FakeAdmin(self.logs, self.made)
        (directory / "there").mkdir()
        self.run_file = write_run(directory / "there", SECRET)
        self.directory = directory
        logs = self.logs
        monkeypatch.chdir(directory)
        monkeypatch.setattr(Resources, "_kafka", lambda self: MemoryTransport(logs[self.run.run.name]))
        monkeypatch.setattr(module, "cluster_to_read", nullcontext)
        monkeypatch.setattr("gagar.cli.saved_run.cluster_to_read", nullcontext)
        monkeypatch.setattr(module, "check_coordinators", lambda *_: None)
        monkeypatch.setattr(module, "Admin", lambda kafka: self.admin)
        monkeypatch.setattr(local, "cluster_of", cluster_of)
        monkeypatch.setattr(reset_module, "Admin", lambda kafka: self.admin)
        monkeypatch.setattr(apply_module.goes_on, "__defaults__", (0.0,))

    def call(self, *arguments: str) -> Result:
        return CliRunner().invoke(topics, arguments, catch_exceptions=True)

    def done(self, *arguments: str) -> str:
        """The output of a call that succeeds."""
        result = self.call(*arguments)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    def refused(self, *arguments: str) -> str:
        """The message of one that is refused."""
        result = self.call(*arguments)
        assert isinstance(result.exception, GagarError), result
        return str(result.exception)

    def export(self, *arguments: str) -> str:
        return self.done("export", "part.zip", *arguments, "--run", str(self.run_file))


@contextmanager
def cluster_of(run: Run) -> Iterator[KafkaTable]:
    yield run.kafka


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    place = Here(tmp_path, monkeypatch)
    lay(place.logs["test"], make_records())
    asyncio.run(write_settings(Resources(open_run(str(place.run_file)))))
    return place


def test_a_part_is_exported_and_imported_with_the_settings_of_its_run(here: Here) -> None:
    told = json.loads(here.export("--group", "t-000001", "--json").splitlines()[-1])
    assert (told["selection"], told["groups"], told["missing"], told["of_run"]) == ("group t-000001", 1, [], "test")
    told = json.loads(here.done("import", "part.zip", "--set", "run.dir=mine", "--json").splitlines()[-1])
    assert (told["run"], told["records"]) == ("test-imported", len(records_of(here.logs["test-imported"])) - 1)
    assert asyncio.run(audited(here.logs["test-imported"], TERMS)).findings == []
    run = run_to_read("gagar:nano/run.toml", ["run.dir=mine"], is_file_given=False)
    assert (run.run.name, run.training.num_steps, run.kafka.num_partitions) == ("test-imported", 4, 3)
    assert run.kafka.security_protocol == "PLAINTEXT"
    recorded = asyncio.run(read_settings(Resources(run)))
    assert recorded is not None
    assert recorded.imported_from == "part.zip (group t-000001 of run test)"
    assert recorded.directory == str(here.directory / "there/.gagar/runs/test")
    assert recorded.settings == settings_of(run)
    assert {topic.name for topic in here.made} == {topic.name for topic in ALL_TOPICS}
    assert {topic.settings["message.timestamp.type"] for topic in here.made} == {"CreateTime"}


def test_no_stage_works_on_a_run_that_was_imported(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.export("--group", "t-000001")
    here.done("import", "part.zip", "--set", "run.dir=mine")
    run = run_to_read("gagar:nano/run.toml", ["run.dir=mine"], is_file_given=False)
    said = (
        r"^run test-imported: expected a run to work on, got one that was imported from part.zip \(group t-000001 of run test\)"
    )
    with pytest.raises(ConfigError, match=said):
        asyncio.run(check_settings(Resources(run)))
    monkeypatch.setattr(apply_module, "Admin", lambda kafka: here.admin)
    monkeypatch.setattr(apply_module, "cluster_now", lambda run: run.kafka)
    with pytest.raises(ConfigError, match=said):
        apply_module.apply_topology(run)


def test_a_file_holds_no_address_and_no_secret(here: Here) -> None:
    here.export("--since", "1970-01-01T00:00:01")
    with_secrets = (b"kafka-1", b"somebody", b"password", b"SASL")
    file = ExcerptFile(Path("part.zip"))
    assert file.manifest.num_groups == 4
    data = b"".join(file._zip.read(name) for name in file._zip.namelist())
    file.close()
    assert [word for word in with_secrets if word in data] == []
    assert b"training.num_steps" in data


def test_groups_of_a_step_and_of_a_time_are_exported(here: Here) -> None:
    lay(here.logs["test"], [record for record in make_records() if getattr(record, "group_id", "") == "t-000001"], at=5000.0)
    assert "part.zip: step 1: 2 groups, " in here.export("--step", "1")
    assert "part.zip: expected a name for a new file, got one that is there" in here.refused(
        "export", "part.zip", "--step", "1"
    )
    Path("part.zip").unlink()
    assert "requested from 1970-01-01T00:33:20Z: 1 group, " in here.export("--since", "1970-01-01T00:33:20")
    Path("part.zip").unlink()
    told = here.export("--since", "1970-01-01T00:00:01", "--until", "1970-01-01T00:33:20")
    assert "requested from 1970-01-01T00:00:01Z to 1970-01-01T00:33:20Z: 4 groups, " in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected one of --group, --step and --since, got none"),
        (("--group", "a", "--step", "1"), "expected one of --group, --step and --since, got 2"),
        (("--group", "t-000077"), "group t-000077: expected groups that were requested, got none in run test"),
        (("--group", "t-000077", "--group", "t-000001"), "expected groups that were requested, got 1 of 2 in run test"),
        (("--step", "9"), "step 9: expected groups that were requested, got none in run test"),
        (("--until", "1h", "--step", "1"), "--until: expected a time after --since"),
    ],
)
def test_what_cannot_be_exported_is_told_and_leaves_no_file(here: Here, arguments: tuple[str, ...], message: str) -> None:
    assert message in here.refused("export", "part.zip", *arguments, "--run", str(here.run_file))
    assert not Path("part.zip").exists()


def test_a_run_with_records_is_not_imported_into(here: Here) -> None:
    here.export("--group", "t-000001")
    here.done("import", "part.zip", "--set", "run.dir=mine")
    assert "expected a run without records, got one with " in here.refused("import", "part.zip", "--set", "run.dir=mine")
    assert "set another run.name" in here.refused("import", "part.zip", "--set", "run.name=test")
    before = len(here.made)
    assert "run other: group t-000001: 1 group, " in here.done("import", "part.zip", "--set", "run.name=other")
    assert len(here.made) == 2 * before


def test_where_this_machine_differs_is_said_with_set(here: Here) -> None:
    here.export("--group", "t-000001")
    file = ExcerptFile(Path("part.zip"))
    file.close()
    given = open_run(str(here.run_file), ("policy.path=elsewhere", "kafka.bootstrap_servers=near:1"))
    run = imported_run(file.manifest, given, ("policy.path=elsewhere",), is_file_given=True)
    assert (run.policy.path, run.run.name, run.kafka.sasl_username) == ("elsewhere", "test", "somebody")
    with pytest.raises(ConfigError, match=r"^kafka.num_partitions: expected none with an import"):
        imported_run(file.manifest, given, ("kafka.num_partitions=9",), is_file_given=True)


def test_settings_and_tables_say_the_same(here: Here) -> None:
    settings = settings_of(open_run(str(here.run_file)))
    tables = tables_of(settings)
    assert tables["training"]["num_steps"] == 4
    assert tables["verifier"]["sandbox"]["kind"] == "auto"
    with pytest.raises(ConfigError, match=r"^a.b.c: expected b to be a table, got 1"):
        tables_of({"a.b": 1, "a.b.c": 2})


@pytest.fixture
def verified(here: Here) -> Here:
    """All trajectories have been verified."""
    offsets = here.logs["test"].group("verifier").offsets
    for number in range(NUM_PARTITIONS):
        at = Partition("trajectories", number)
        offsets[at] = Committed(offset=here.logs["test"].partitions[at].end, metadata=AT_START)
    return here


def test_a_stage_is_moved_after_a_plan_and_a_yes(verified: Here) -> None:
    run = ("--run", str(verified.run_file))
    offsets = verified.logs["test"].group("verifier").offsets
    before = dict(offsets)
    declined = CliRunner().invoke(topics, ["reset", "verifier", "--to", "earliest", *run], input="n\n")
    assert declined.exit_code == 1
    assert "trajectories are tested a second time" in declined.output
    assert offsets == before
    told = json.loads(verified.done("reset", "verifier", "--to", "earliest", "--yes", "--json", *run).splitlines()[-1])
    assert told["moved"]
    assert sum(one["again"] for one in told["partitions"]) == 16
    assert {committed.offset for committed in offsets.values()} == {0}
    assert "nothing to move" in verified.done("reset", "verifier", "--to", "earliest", *run)


def test_a_place_and_a_time_move_what_they_name(verified: Here) -> None:
    run = ("--run", str(verified.run_file), "--yes", "--json")
    told = json.loads(verified.done("reset", "verifier", "--to", "trajectories[1]@0", *run).splitlines()[-1])
    assert [one["partition"] for one in told["partitions"]] == ["trajectories[1]"]
    told = json.loads(verified.done("reset", "verifier", "--to", "1h", *run).splitlines()[-1])
    end = verified.logs["test"].partitions[Partition("trajectories", 1)].end
    assert {one["partition"]: one["to"] for one in told["partitions"]} == {"trajectories[0]": 1, "trajectories[1]": end}


def test_a_stage_at_work_is_not_moved(verified: Here) -> None:
    verified.admin.members = True
    run = ("--run", str(verified.run_file), "--yes")
    assert "stage verifier: expected no process of it, got one" in verified.refused(
        "reset", "verifier", "--to", "earliest", *run
    )
