"""The run file: one TOML file, a table per stage and a few shared ones; `--set table.key=value` is the only override.

In: a path and overrides. Out: a `Run` (the shared tables, checked) and the stages' tables, still raw; `convert` turns one
into its type. Environment variables hold addresses and secrets only: `GAGAR_KAFKA_BOOTSTRAP_SERVERS`, and the passwords that
`gagar.broker.security` reads. A secret is never a value of the run file, which names the file that holds it instead.
Every fault is a ConfigError that names the key, what was expected and what came, before anything is connected to.
"""

import difflib
import importlib
import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, cast, get_args, get_origin

import msgspec
from msgspec import Meta

from gagar.errors import ConfigError

PACKAGED = "gagar:"
"""Before a path in the data of the installed package."""
MAX_NUMBER = 2**53
"""Of any number in a run file: up to here every integer is exact as a float, and times and products of two stay finite."""
MAX_DURATION_S = 365 * 86_400
"""Clocks and timers refuse or misread what is far beyond a year."""
Seconds = Annotated[float, Meta(gt=0, le=MAX_DURATION_S, description=f"more than 0, at most {MAX_DURATION_S} (a year)")]
"""A time that something may take."""
Count = Annotated[int, Meta(ge=1)]
"""One or more."""


DRAIN_S = 4.0
"""Of a stage whose table does not say otherwise; see WorkTable."""


def require(is_ok: bool, key: str, expected: str, got: object) -> None:
    """Raises ValueError in the one form of configuration errors; for `__post_init__` of tables."""
    if not is_ok:
        raise ValueError(f"{key}: expected {expected}, got {got!r}")


def packaged(path: str) -> Path:
    """Where `gagar:nano/x` lies."""
    return Path(__file__).parent / "data" / path.removeprefix(PACKAGED)


def _is_address(server: str) -> bool:
    """Whether it has the form `host:port`; an IPv6 host stands in brackets."""
    host, _, port = server.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 1 <= int(port) <= 65535


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the run file. `__post_init__` checks ranges with `require`."""


class StreamTable(Table, frozen=True, kw_only=True):
    """[stream]: how much a process of a stage holds and sends at once, whatever the stage."""

    window: Count = 64
    """Deliveries of one partition in work or waiting for their commit."""
    max_input_bytes: Count = 10 << 20
    """Most bytes of inputs in work, encoded and decoded, over all partitions of a process; each may hold one delivery."""
    max_output_bytes: Count = 56 << 20
    """Most bytes of outputs that wait for their commit, over all partitions of a process. Less makes transactions small,
    which costs later stages and the broker."""
    max_transaction_bytes: Count = 32 << 20
    """Bytes of outputs in one transaction; the unit that passes this bound is the last one."""


class WorkTable(Table, frozen=True, kw_only=True):
    """The table of a stage whose work may take long."""

    drain_s: Seconds = DRAIN_S
    """Seconds that work in progress may take to end when the stage is told to stop; then it is abandoned, and done again from
    its start. A second signal ends the wait."""


class Kind(Table, frozen=True, kw_only=True, tag_field="kind"):
    """A table that its key `kind` chooses, that holds the options of its kind and builds it.

    Each port has a table of its own below this one, whose `make` says what is built; the port's `kinds.py` holds the union.
    """


class RunTable(Table, frozen=True, kw_only=True):
    """[run]: what names a run and where its files are."""

    name: str
    """Prefix of topics, consumer groups and transactional ids: `<name>.<topic>`."""
    dir: str = ".gagar"
    """Directory of the local broker's data, policies, checkpoints, logs and reports."""
    seed: int = 0
    """Seeds the order of the tasks and the sampling of every attempt."""
    root: str = ""
    """Directory where relative paths of the run file start; empty: the file's own, or the current one for a packaged file."""

    def __post_init__(self) -> None:
        is_name = self.name.replace("-", "").replace("_", "").isalnum() and self.name.isascii() and len(self.name) <= 80
        require(is_name, "name", "1 to 80 ASCII letters, digits, - and _", self.name)


SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
KAFKA_FILES = ("sasl_password_file", "sasl_token_file", "ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password_file")
"""Keys of [kafka] that name files."""


class KafkaTable(Table, frozen=True, kw_only=True):
    """[kafka]: which cluster, and how its clients prove who they are. It holds no secret, so it may be shown and saved."""

    bootstrap_servers: str = ""
    """`host:port,...`; empty: the local broker under `run.dir`."""
    security_protocol: SecurityProtocol = "PLAINTEXT"
    """What the listener behind `bootstrap_servers` speaks: with SSL it is encrypted, with SASL clients must log in."""
    sasl_mechanism: SaslMechanism = ""
    """How clients log in; needed with SASL, and empty without."""
    sasl_username: str = ""
    """Of PLAIN and SCRAM. The password is in `sasl_password_file` or in GAGAR_KAFKA_SASL_PASSWORD."""
    sasl_password_file: str = ""
    """File that holds the password of `sasl_username`."""
    sasl_token_file: str = ""
    """File that holds the token of OAUTHBEARER; read anew for each connection, so whoever renews the token writes it there."""
    ssl_cafile: str = ""
    """File of the authorities (PEM) that vouch for the brokers; empty: those of the system."""
    ssl_certfile: str = ""
    """File of the client's certificate and its chain (PEM), where brokers ask for one."""
    ssl_keyfile: str = ""
    """File of the private key (PEM) of `ssl_certfile`."""
    ssl_password_file: str = ""
    """File that holds the password of an encrypted `ssl_keyfile`; it may be in GAGAR_KAFKA_SSL_PASSWORD instead."""
    num_partitions: Annotated[int, Meta(ge=1, le=1024)] = 4
    """Partitions of every topic keyed by group_id: the most processes that a stage can use. It cannot change once the run has
    topics, so leave room for the processes that the run may get; each costs its owner a producer and a reader."""
    token_retention_bytes: Annotated[int, Meta(ge=1 << 30, le=1 << 50)] = 16 << 30
    """Bytes of tokens that are kept, over all partitions and before replication; `gagar topics plan` tells the exact bound."""
    replication_factor: Annotated[int, Meta(ge=1, le=9)] = 1
    """Replicas of every topic; 1 with the local broker."""
    transaction_timeout_s: Annotated[float, Meta(ge=1, le=450, description="from 1 to 450")] = 30.0
    """Seconds that one transaction of a stage may take; more on slow links and under small quotas. The brokers abort one after
    twice as many, which their `transaction.max.timeout.ms` has to allow."""
    start_timeout_s: Seconds = 180.0
    """Seconds that the local broker may take to start; a busy machine needs more."""

    def __post_init__(self) -> None:
        are_addresses = all(
            _is_address(server.strip()) for server in self.bootstrap_servers.split(",") if self.bootstrap_servers
        )
        require(are_addresses, "bootstrap_servers", "host:port,... with ports 1 to 65535", self.bootstrap_servers)
        self._check_useless()
        self._check_missing()

    @property
    def servers(self) -> list[str]:
        """Each `host:port` of `bootstrap_servers`."""
        return [server.strip() for server in self.bootstrap_servers.split(",")]

    @property
    def has_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL")

    @property
    def has_ssl(self) -> bool:
        return self.security_protocol.endswith("SSL")

    def below(self, directory: Path) -> "KafkaTable":
        """The same with relative names of files starting at `directory`."""
        paths = {key: str(directory / name) for key in KAFKA_FILES if (name := getattr(self, key))}
        return msgspec.structs.replace(self, **paths)

    @property
    def _login(self) -> str:
        return f"with security_protocol {self.security_protocol} and sasl_mechanism {self.sasl_mechanism}"

    def _check_useless(self) -> None:
        """No key has a value that the protocol and the mechanism do not know."""
        is_token = self.sasl_mechanism == "OAUTHBEARER"
        known = {"sasl_mechanism": self.has_sasl, "sasl_token_file": self.has_sasl and is_token}
        known |= dict.fromkeys(("sasl_username", "sasl_password_file"), self.has_sasl and not is_token)
        known |= {key: self.has_ssl for key in KAFKA_FILES if key.startswith("ssl")}
        for key, is_known in known.items():
            is_login = self.has_sasl and key.startswith("sasl")
            beside = self._login if is_login else f"with security_protocol {self.security_protocol}"
            require(is_known or not getattr(self, key), key, f"no value {beside}", getattr(self, key))

    def _check_missing(self) -> None:
        """Every key that the protocol, the mechanism and the other keys need has a value."""
        mechanisms = f"one of {', '.join(get_args(SaslMechanism)[1:])} with security_protocol {self.security_protocol}"
        needed = [("sasl_mechanism", self.has_sasl, mechanisms)]
        needed.append(("sasl_token_file", self.sasl_mechanism == "OAUTHBEARER", f"a file {self._login}"))
        needed.append(("sasl_username", self.sasl_mechanism not in ("", "OAUTHBEARER"), f"a name {self._login}"))
        needed.append(("ssl_certfile", bool(self.ssl_keyfile), "the certificate of ssl_keyfile"))
        needed.append(("ssl_keyfile", bool(self.ssl_certfile or self.ssl_password_file), "the key of ssl_certfile"))
        for key, is_needed, expected in needed:
            require(not is_needed or bool(getattr(self, key)), key, expected, "")


class PolicyTable(Table, frozen=True, kw_only=True):
    """[policy]: what is trained."""

    path: str
    """Directory of a Hugging Face causal language model: config, tokenizer with chat template, safetensors."""


class TrainingTable(Table, frozen=True, kw_only=True):
    """[training]: the quantities that sampler, gatherer and learner share."""

    group_size: Annotated[int, Meta(ge=2, le=1024)] = 8
    """Attempts at each training task."""
    groups_per_step: Annotated[int, Meta(ge=1, le=4096)] = 8
    """Groups that one optimizer step trains on."""
    max_staleness: Annotated[int, Meta(ge=0, le=64)] = 2
    """Steps; a group is dropped as stale if its oldest token is older than this when it would be trained."""
    num_steps: Count = 60
    """Optimizer steps until the planned end."""
    evaluate_every: Annotated[int, Meta(ge=0)] = 0
    """Steps between evaluations; 0: only at the start and at the end."""
    evaluation_group_size: Annotated[int, Meta(ge=1, le=1024)] = 4
    """Attempts at each held-out task in an evaluation."""
    temperature: Annotated[float, Meta(gt=0, le=10)] = 1.0
    """Temperature of training rollouts; the learner computes its probabilities at the same temperature."""
    rollout_deadline_s: Seconds = 600.0
    """Seconds from the request to the end of an attempt, waiting included. One that has not ended by then is left out: it had
    to wait for too long."""
    agent_timeout_s: Seconds = 300.0
    """Seconds that the agent's own work may take in an attempt, sampling and commands; longer is a failure. What is left of
    `rollout_deadline_s` is there to wait in: for a worker, a policy, a place, the engine and the sandbox."""

    def __post_init__(self) -> None:
        expected = f"less than rollout_deadline_s, {self.rollout_deadline_s:g}"
        require(self.agent_timeout_s < self.rollout_deadline_s, "agent_timeout_s", expected, self.agent_timeout_s)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The shared tables, typed, and the others as they came."""

    run: RunTable
    kafka: KafkaTable
    policy: PolicyTable
    training: TrainingTable
    stream: StreamTable = StreamTable()
    tables: dict[str, dict[str, Any]]
    """The other tables as they came: `tasks` and those of the stages. `topology.composition` types them."""
    root: str
    """Where relative paths start, absolute; see RunTable."""
    given: dict[str, dict[str, Any]] = {}
    """All tables as the run file and `--set` give them, nothing of the environment among them."""

    @property
    def dir(self) -> Path:
        """`run.dir`, absolute."""
        return self.resolve(self.run.dir)

    @property
    def directory(self) -> Path:
        """Where logs, policies, checkpoints and the report of this run lie: `<run.dir>/runs/<run.name>`."""
        return self.dir / "runs" / self.run.name

    def resolve(self, path: str) -> Path:
        """A path of the run file, absolute. `gagar:nano/x` lies in the installed package's data."""
        if path.startswith(PACKAGED):
            return packaged(path)
        return (Path(self.root) / path).resolve()

    def topic(self, name: str) -> str:
        """The topic's name on the cluster."""
        return f"{self.run.name}.{name}"


SHARED: dict[str, type[msgspec.Struct]] = {
    "run": RunTable,
    "kafka": KafkaTable,
    "policy": PolicyTable,
    "training": TrainingTable,
    "stream": StreamTable,
}


def convert(key: str, raw: dict[str, Any], into: Any) -> Any:
    """A table as its type: a Table, or a union of Kinds of which `raw["kind"]` chooses one (the first if it is left out).

    `key` is the path of the table in the run file. `kind = "package.module:Table"` names a kind that is installed elsewhere.
    Raises ConfigError that names the key on an unknown key or kind, a wrong type, or an impossible value.
    """
    values = dict(raw)
    table = _chosen(key, values, into) if _is_table(into) else into
    fields = {field.name: field for field in msgspec.structs.fields(table)}
    for name in values:
        if name not in fields:
            known = [*(["kind"] if issubclass(table, Kind) else []), *fields]
            raise ConfigError(f"{key}.{name}: expected a key of [{key}], got {name}{did_you_mean(name, known)}")
    for name, field in fields.items():
        if name in values:
            values[name] = _value(f"{key}.{name}", values[name], field.type)
        elif field.required:
            raise ConfigError(f"{key}.{name}: expected a value, got none")
    try:
        return table(**values)
    except ValueError as error:
        raise ConfigError(f"{key}.{error}") from error


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a message about a word that is not known: the nearest known one, if there is one."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about a word that is not known: the nearest known one, or else all of them."""
    names = list(known)
    return nearest(word, names) or f"; known are {', '.join(names)}"


def _kinds(into: Any) -> tuple[type["Table"], ...]:
    """The tables of a union of kinds, or one table alone; none for any other type."""
    members = get_args(into) if isinstance(into, UnionType) else (into,)
    return members if all(isinstance(member, type) and issubclass(member, Table) for member in members) else ()


def _is_table(into: Any) -> bool:
    return bool(_kinds(into))


def _chosen(key: str, values: dict[str, Any], into: Any) -> type["Table"]:
    """The table that `kind` chooses; takes `kind` out of `values`."""
    kinds = _kinds(into)
    if not issubclass(kinds[0], Kind):
        return kinds[0]
    by_name = {str(kind.__struct_config__.tag): kind for kind in kinds}
    chosen = values.pop("kind", next(iter(by_name)))
    if not isinstance(chosen, str):
        raise ConfigError(f"{key}.kind: expected a name, got {chosen!r}")
    if ":" in chosen:
        return _from_outside(f"{key}.kind", chosen, kinds[0])
    if chosen not in by_name:
        expected = f"one of {', '.join(by_name)}, or package.module:Table"
        raise ConfigError(f"{key}.kind: expected {expected}, got {chosen!r}{nearest(chosen, by_name)}")
    return by_name[chosen]


def _from_outside(key: str, chosen: str, sibling: type["Table"]) -> type["Table"]:
    """The kind `package.module:Table`; it must derive from the port's table, as `sibling` does."""
    port: Any = next(base for base in sibling.__mro__ if Kind in base.__bases__)
    module, _, name = chosen.partition(":")
    try:
        table: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{key}: expected package.module:Table that can be imported, got {chosen!r}: {error}") from error
    if not (isinstance(table, type) and issubclass(table, port)) or getattr(table, "make", None) is port.make:
        raise ConfigError(f"{key}: expected a table derived from {port.__module__}.{port.__name__}, got {chosen!r}")
    return cast("type[Table]", table)


def _value(key: str, value: Any, kind: Any) -> Any:
    """A value as its field's type."""
    if _is_table(kind):
        if not isinstance(value, dict):
            raise ConfigError(f"{key}: expected a table, got {value!r}; write it as [{key}]")
        return convert(key, value, kind)
    _check_numbers(key, value)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        choices = [str(choice) for choice in get_args(kind)] if get_origin(kind) is Literal else []
        hint = nearest(value, choices) if choices and isinstance(value, str) else ""
        raise ConfigError(f"{key}: expected {_expected(kind, value)}, got {value!r}{hint}") from error


def _expected(kind: Any, value: Any) -> str:
    """What a type takes, in words; of a number in `value` only the range is told."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(str(choice) for choice in get_args(kind))}"
    if get_origin(kind) is Annotated:
        base, meta = get_args(kind)[:2]
        is_number = isinstance(value, int if base is int else int | float) and not isinstance(value, bool)
        if is_number or base not in (int, float):
            return meta.description or _range(meta)
        return _expected(base, value)
    names = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
    return names.get(kind) or str(kind).replace("typing.", "")


def _range(meta: Meta) -> str:
    """The bounds of a number, in words."""
    if meta.ge is not None:
        return f"{meta.ge} or more" if meta.le is None else f"{meta.ge} to {meta.le}"
    if meta.lt is not None:
        return f"between {meta.gt} and {meta.lt}"
    return f"more than {meta.gt}" + ("" if meta.le is None else f", at most {meta.le}")


def _check_numbers(key: str, value: object) -> None:
    """Raises ConfigError for a number, at any depth, that no table has a use for: infinite, or not one, or too large."""
    if isinstance(value, dict):
        for name, item in value.items():
            _check_numbers(f"{key}.{name}", item)
    elif isinstance(value, list):
        for item in value:
            _check_numbers(key, item)
    elif isinstance(value, int | float) and not abs(value) <= MAX_NUMBER:
        raise ConfigError(f"{key}: expected a number from -2**53 to 2**53, got {value!r}")


def apply_override(tables: dict[str, Any], override: str) -> None:
    """Sets one `table.key=value` in place, at any depth; the value is TOML, or else a string. Raises ConfigError if it has
    another form."""
    path, is_given, text = override.partition("=")
    *outer, key = (part.strip() for part in path.split("."))
    if not (is_given and outer and key and all(outer)):
        raise ConfigError(f"--set {override}: expected table.key=value, e.g. --set training.num_steps=20")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    values = tables
    for depth, name in enumerate(outer, start=1):
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            where = ".".join(outer[:depth])
            raise ConfigError(f"--set {override}: expected {where} to be a table, got {values!r}")
    values[key] = value


def load_run(path: Path, overrides: tuple[str, ...] = (), root: Path | None = None) -> Run:
    """The run file at `path` with `overrides` applied; raises ConfigError. Relative paths start at `root`, or else where the
    file lies, unless it says so itself."""
    return run_of(_read_tables(path), overrides, root or path.parent)


def run_of(given: dict[str, Any], overrides: tuple[str, ...], root: Path) -> Run:
    """The tables of a run file with `overrides` applied to them, as `load_run`."""
    for override in overrides:
        apply_override(given, override)
    for name, value in given.items():
        if not isinstance(value, dict):
            raise ConfigError(f"{name}: expected a table, got {value!r}; write it as [{name}]")
    tables = dict(given)
    servers = os.environ.get("GAGAR_KAFKA_BOOTSTRAP_SERVERS")
    if servers:
        tables["kafka"] = {**tables.get("kafka", {}), "bootstrap_servers": servers}
    shared: dict[str, Any] = {name: convert(name, tables.pop(name, {}), kind) for name, kind in SHARED.items()}
    start = root / shared["run"].root
    shared["kafka"] = shared["kafka"].below(start.resolve())
    return Run(**shared, tables=tables, root=str(start.resolve()), given=given)


def _read_tables(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        tables = tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError(f"run file {path}: expected a TOML file, got nothing there; name one with --run") from None
    except OSError as error:
        raise ConfigError(f"run file {path}: expected TOML, got {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"run file {path}: expected TOML, got text that is not UTF-8; save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        got = "text that is not UTF-8; save it as UTF-8" if "\0" in text else error
        raise ConfigError(f"run file {path}: expected TOML, got {got}") from error
    if not tables:
        raise ConfigError(f"run file {path}: expected tables, [run] among them, got none")
    return tables
