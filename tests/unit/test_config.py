"""The run file: every fault names the key, what was expected and what came, and none gets past loading."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from gagar.config import Count, KafkaTable, RunTable, Seconds, Table, TrainingTable, apply_override, convert, load_run, require
from gagar.errors import ConfigError

GOOD = """
[run]
name = "try-1"
[kafka]
num_partitions = 2
[policy]
path = "gagar:nano/policy"
[training]
num_steps = 5
[grader]
kind = "rules"
"""


def write(directory: Path, text: str = GOOD) -> Path:
    path = directory / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_good_file_gives_typed_shared_tables_and_raw_stage_tables(tmp_path: Path) -> None:
    run = load_run(write(tmp_path))
    assert run.run == RunTable(name="try-1")
    assert run.kafka == KafkaTable(num_partitions=2)
    assert run.training == TrainingTable(num_steps=5)
    assert run.tables == {"grader": {"kind": "rules"}}


def test_relative_paths_start_at_the_run_file(tmp_path: Path) -> None:
    run = load_run(write(tmp_path))
    assert run.dir == (tmp_path / ".gagar").resolve()
    assert run.resolve("policy") == (tmp_path / "policy").resolve()


def test_packaged_paths_lie_in_the_package(tmp_path: Path) -> None:
    run = load_run(write(tmp_path))
    assert run.resolve(run.policy.path).parts[-3:] == ("data", "nano", "policy")


def test_topics_bear_the_name_of_the_run(tmp_path: Path) -> None:
    assert load_run(write(tmp_path)).topic("verdicts") == "try-1.verdicts"


def test_a_missing_file_says_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"run file .*none.toml: expected a TOML file, got nothing there; name one with --run"
    ):
        load_run(tmp_path / "none.toml")


@pytest.mark.parametrize("data", [b"[run\nname = 1", b"name = \xff\xfe", b"[run]\nname = 'a'\nname = 'b'"])
def test_broken_toml_is_told_with_its_place(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"run file .*run.toml: expected TOML, got"):
        load_run(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"expected tables, \[run\] among them, got none"),
        (b"# nothing\n", r"expected tables, \[run\] among them, got none"),
        (GOOD.encode("utf-16"), "expected TOML, got text that is not UTF-8; save it as UTF-8$"),
        (GOOD.encode("utf-16-le"), "expected TOML, got text that is not UTF-8; save it as UTF-8$"),
    ],
)
def test_a_file_that_holds_no_tables_is_told_in_a_line(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=message):
        load_run(path)


def test_a_directory_is_no_run_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run file .*: expected TOML, got Is a directory$"):
        load_run(tmp_path)


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(GOOD, encoding="utf-8-sig")
    assert load_run(path) == load_run(write(tmp_path))


def test_a_run_file_may_say_where_its_paths_start(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert load_run(path, ("run.root=/elsewhere",)).dir == Path("/elsewhere/.gagar")
    assert load_run(path, ("run.root=below",)).dir == tmp_path / "below" / ".gagar"


def test_what_the_environment_says_is_not_what_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAGAR_KAFKA_BOOTSTRAP_SERVERS", "kafka:9092")
    run = load_run(write(tmp_path), ("training.num_steps=7",))
    assert (run.kafka.bootstrap_servers, run.given["kafka"]) == ("kafka:9092", {"num_partitions": 2})
    assert run.given["training"] == {"num_steps": 7}


def test_a_value_outside_of_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"grader: expected a table, got 'rules'; write it as \[grader\]"):
        load_run(write(tmp_path, "grader = 'rules'\n" + GOOD.replace('[grader]\nkind = "rules"', "")))


def test_an_unknown_key_is_named_beside_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"kafka.partitions: expected a key of \[kafka\], got partitions; did you mean num_partitions\?$"
    ):
        load_run(write(tmp_path), ("kafka.partitions=3",))


def test_a_wrong_type_names_table_and_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training.num_steps: expected an integer, got 'many'"):
        load_run(write(tmp_path), ("training.num_steps='many'",))


def test_a_missing_key_names_its_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy.path: expected a value, got none"):
        load_run(write(tmp_path, GOOD.replace('path = "gagar:nano/policy"', "")))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.group_size=1", "training.group_size: expected 2 to 1024, got 1"),
        ("training.groups_per_step=0", "training.groups_per_step: expected 1 to 4096, got 0"),
        ("training.max_staleness=-1", "training.max_staleness: expected 0 to 64, got -1"),
        ("training.num_steps=0", "training.num_steps: expected 1 or more, got 0"),
        ("training.evaluate_every=-5", "training.evaluate_every: expected 0 or more, got -5"),
        ("training.evaluation_group_size=0", "training.evaluation_group_size: expected 1 to 1024, got 0"),
        (
            "training.rollout_deadline_s=0",
            r"training.rollout_deadline_s: expected more than 0, at most 31536000 \(a year\), got 0",
        ),
        ("training.rollout_deadline_s=1e9", r"training.rollout_deadline_s: expected more than 0, at most .* got 1000000000.0"),
        (
            "training.rollout_deadline_s=nan",
            r"training.rollout_deadline_s: expected a number from -2\*\*53 to 2\*\*53, got nan",
        ),
        (
            "training.rollout_deadline_s=inf",
            r"training.rollout_deadline_s: expected a number from -2\*\*53 to 2\*\*53, got inf",
        ),
        (
            "training.agent_timeout_s=600",
            r"training.agent_timeout_s: expected less than rollout_deadline_s, 600, got 600",
        ),
        ("training.agent_timeout_s=0", "training.agent_timeout_s: expected more than 0, at most"),
        ("training.evaluation_group_size=1025", "training.evaluation_group_size: expected 1 to 1024, got 1025"),
        ("run.seed=99999999999999999999", r"run.seed: expected a number from -2\*\*53 to 2\*\*53, got 99999999999999999999"),
        ("kafka.bootstrap_servers=kafka", "kafka.bootstrap_servers: expected host:port,... with ports 1 to 65535, got 'kafka'"),
        ("kafka.bootstrap_servers=a:9092,b:99999", "kafka.bootstrap_servers: expected host:port,.* got 'a:9092,b:99999'"),
        ("kafka.bootstrap_servers=127.0.0.1:port", "kafka.bootstrap_servers: expected host:port,.* got '127.0.0.1:port'"),
        ("kafka.bootstrap_servers=a:9092,", "kafka.bootstrap_servers: expected host:port"),
        ("kafka.num_partitions=0", "kafka.num_partitions: expected 1 to 1024, got 0"),
        ("kafka.replication_factor=10", "kafka.replication_factor: expected 1 to 9, got 10"),
        ("run.name=", "run.name: expected 1 to 80 ASCII letters, digits, - and _, got ''"),
        ("run.name=a/b", "run.name: expected 1 to 80 ASCII letters, digits, - and _, got 'a/b'"),
        ("run.name=" + "x" * 81, "run.name: expected 1 to 80 ASCII letters"),
    ],
)
def test_an_impossible_value_names_its_range(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_run(write(tmp_path), (override,))


@pytest.mark.parametrize("override", ["training.num_steps", "num_steps=3", "=3", ".num_steps=3", "training.=3", ""])
def test_an_override_of_another_form_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match=r"expected table.key=value, e.g. --set training.num_steps=20"):
        apply_override({}, override)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("2.5", 2.5),
        ("true", True),
        ("'rules'", "rules"),
        ("rules", "rules"),
        ("[1, 2]", [1, 2]),
        ("{ a = 1 }", {"a": 1}),
        ("host:9092,other:9092", "host:9092,other:9092"),
        ("a=b", "a=b"),
        ("  spaced  ", "spaced"),
        ("/some/path", "/some/path"),
    ],
)
def test_the_value_of_an_override_is_toml_or_else_a_string(text: str, value: object) -> None:
    tables: dict[str, dict[str, object]] = {}
    apply_override(tables, f"stage.key={text}")
    assert tables == {"stage": {"key": value}}


def test_the_last_of_two_overrides_wins(tmp_path: Path) -> None:
    assert load_run(write(tmp_path), ("training.num_steps=7", "training.num_steps=9")).training.num_steps == 9


@given(st.text(max_size=60))
def test_an_override_is_applied_or_refused_and_never_crashes(text: str) -> None:
    tables: dict[str, dict[str, object]] = {}
    with suppress(ConfigError):
        apply_override(tables, text)
        assert [len(table) for table in tables.values()] == [1]


@pytest.mark.parametrize("is_set", [True, False])
def test_the_environment_names_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_set: bool) -> None:
    monkeypatch.delenv("GAGAR_KAFKA_BOOTSTRAP_SERVERS", raising=False)
    if is_set:
        monkeypatch.setenv("GAGAR_KAFKA_BOOTSTRAP_SERVERS", "kafka:9092")
    assert load_run(write(tmp_path)).kafka.bootstrap_servers == ("kafka:9092" if is_set else "")


class Nested(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table with a table inside."""

    share: float = 0.5

    def __post_init__(self) -> None:
        require(0 <= self.share <= 1, "share", "0 to 1", self.share)


class Chosen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table with a choice and numbers at depth."""

    kind: Literal["rules", "none"] = "rules"
    level: Literal[0, 1] = 0
    pair: list[float] = []
    inner: dict[str, float] = {}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"kind": "rule"}, "^stage.kind: expected one of rules, none, got 'rule'; did you mean rules"),
        ({"level": 7}, "^stage.level: expected one of 0, 1, got 7$"),
        ({"pair": [0.5, float("inf")]}, "^stage.pair: expected a number from .* got inf$"),
        ({"inner": {"x": float("-inf")}}, "^stage.inner.x: expected a number from .* got -inf$"),
    ],
)
def test_a_choice_names_the_others_and_numbers_are_finite_at_any_depth(raw: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        convert("stage", raw, Chosen)


class Ranges(Table, frozen=True, kw_only=True):
    """Every form of range that a table has."""

    between: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    up_to: Annotated[float, Meta(gt=0, le=10)] = 1
    positive: Annotated[float, Meta(gt=0)] = 1
    span: Annotated[int, Meta(ge=2, le=1 << 20)] = 2
    count: Count = 1
    time_s: Seconds = 1.0
    zero_s: Annotated[float, Meta(ge=0)] = 0.0
    pair: Annotated[tuple[Count, Count], Meta(description="two counts")] = (1, 1)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"between": 1}, "t.between: expected between 0 and 1, got 1"),
        ({"up_to": 11.5}, "t.up_to: expected more than 0, at most 10, got 11.5"),
        ({"positive": 0}, "t.positive: expected more than 0, got 0"),
        ({"span": 1}, "t.span: expected 2 to 1048576, got 1"),
        ({"span": 2.5}, "t.span: expected an integer, got 2.5"),
        ({"span": True}, "t.span: expected an integer, got True"),
        ({"count": 0}, "t.count: expected 1 or more, got 0"),
        ({"count": "x"}, "t.count: expected an integer, got 'x'"),
        ({"time_s": 0}, "t.time_s: expected more than 0, at most 31536000 (a year), got 0"),
        ({"time_s": 1e8}, "t.time_s: expected more than 0, at most 31536000 (a year), got 100000000.0"),
        ({"zero_s": -0.5}, "t.zero_s: expected 0 or more, got -0.5"),
        ({"pair": [1, 0]}, "t.pair: expected two counts, got [1, 0]"),
        ({"pair": [1]}, "t.pair: expected two counts, got [1]"),
    ],
)
def test_a_range_is_told_in_words(raw: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        convert("t", raw, Ranges)
    assert str(caught.value) == message


def test_the_ends_of_a_range_belong_to_it() -> None:
    raw = {"up_to": 10, "span": 1 << 20, "time_s": 365 * 86_400, "zero_s": 0, "pair": [1, 7]}
    assert convert("t", raw, Ranges) == Ranges(up_to=10, span=1 << 20, time_s=31_536_000, pair=(1, 7))


def test_require_is_quiet_when_all_is_well() -> None:
    require(True, "a.b", "anything", None)
    assert convert("stage", {"share": 0.25}, Nested) == Nested(share=0.25)


def test_the_words_of_a_range_reach_the_user_unchanged() -> None:
    with pytest.raises(ConfigError, match=r"^stage.share: expected 0 to 1, got 2.0$"):
        convert("stage", {"share": 2.0}, Nested)
