"""Jars are fetched once, verified always, and never half written."""

import hashlib
import threading
from pathlib import Path

import pytest

from gagar.broker import jars
from gagar.broker.jars import Jar, cache_dir, cache_for, ensure_jars, listed_jars
from gagar.errors import UnavailableError


def content(coordinate: str) -> bytes:
    return f"bytes of {coordinate}".encode()


def make_jar(name: str) -> Jar:
    coordinate = f"org.example:{name}:1.0"
    return Jar(coordinate=coordinate, sha256=hashlib.sha256(content(coordinate)).hexdigest())


class FakeRepository:
    """Serves right bytes, after as many wrong answers as it is told."""

    def __init__(self, wrong: tuple[bytes | OSError, ...] = ()) -> None:
        self.wrong = list(wrong)
        self.served: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, coordinate: str, into: Path) -> None:
        with self._lock:
            self.served.append(coordinate)
            answer = self.wrong.pop(0) if self.wrong else content(coordinate)
        if isinstance(answer, OSError):
            into.write_bytes(b"half")
            raise answer
        into.write_bytes(answer)


def test_the_committed_list_names_kafka_and_a_logger_once_each() -> None:
    listed = listed_jars()
    names = [jar.coordinate.split(":")[1] for jar in listed]
    assert len(names) == len(set(names)) == 46
    assert {"kafka_2.13", "kafka-clients", "slf4j-simple"} <= set(names)
    assert all(len(jar.sha256) == 64 for jar in listed)


def test_the_logger_has_the_version_of_its_interface() -> None:
    versions = {jar.coordinate.split(":")[1]: jar.coordinate.split(":")[2] for jar in listed_jars()}
    assert versions["slf4j-simple"] == versions["slf4j-api"]


def test_missing_jars_are_fetched_and_present_ones_are_not(tmp_path: Path) -> None:
    repository, wanted = FakeRepository(), [make_jar("a"), make_jar("b")]
    assert ensure_jars(tmp_path, wanted, repository) == [tmp_path / "a-1.0.jar", tmp_path / "b-1.0.jar"]
    ensure_jars(tmp_path, wanted, repository)
    assert sorted(repository.served) == ["org.example:a:1.0", "org.example:b:1.0"]
    assert (tmp_path / "a-1.0.jar").read_bytes() == content("org.example:a:1.0")


def test_a_jar_that_was_damaged_on_disk_is_fetched_again(tmp_path: Path) -> None:
    repository, wanted = FakeRepository(), [make_jar("a")]
    ensure_jars(tmp_path, wanted, repository)
    (tmp_path / "a-1.0.jar").write_bytes(b"damaged")
    ensure_jars(tmp_path, wanted, repository)
    assert (tmp_path / "a-1.0.jar").read_bytes() == content("org.example:a:1.0")
    assert len(repository.served) == 2


@pytest.mark.parametrize("wrong", [b"truncat", b"", ConnectionResetError("reset by peer")])
def test_a_broken_download_is_tried_again(tmp_path: Path, wrong: bytes | OSError) -> None:
    repository = FakeRepository((wrong, wrong))
    ensure_jars(tmp_path, [make_jar("a")], repository)
    assert len(repository.served) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "a-1.0.jar"]


def test_a_jar_that_stays_wrong_is_a_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    repository = FakeRepository((b"evil", b"evil", b"evil"))
    with pytest.raises(UnavailableError, match=r"jar org.example:a:1.0: expected sha256 .*, got 4 bytes with another sum in 3"):
        ensure_jars(tmp_path, [make_jar("a")], repository)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_repository_out_of_reach_names_the_way_out(tmp_path: Path) -> None:
    repository = FakeRepository((OSError("no route"),) * 3)
    with pytest.raises(UnavailableError, match=r"OSError: no route in 3 attempts; .*GAGAR_MAVEN_REPOSITORY.*bootstrap_servers"):
        ensure_jars(tmp_path, [make_jar("a")], repository)


def test_leftovers_of_a_killed_download_are_removed(tmp_path: Path) -> None:
    (tmp_path / "a-1.0.jar.part").write_bytes(b"half")
    ensure_jars(tmp_path, [make_jar("a")], FakeRepository())
    assert not list(tmp_path.glob("*.part"))


def test_two_starts_at_once_fetch_once(tmp_path: Path) -> None:
    repository, wanted = FakeRepository(), [make_jar(name) for name in "abcdef"]
    found: list[list[Path]] = []
    threads = [threading.Thread(target=lambda: found.append(ensure_jars(tmp_path, wanted, repository))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert len(repository.served) == len(wanted)


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "gagar" / "kafka"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "gagar" / "kafka"


def test_a_home_that_cannot_be_written_gives_way_to_another_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert cache_for(tmp_path / "spare") == tmp_path / "home" / "gagar" / "kafka"
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    assert cache_for(tmp_path / "spare") == tmp_path / "spare"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", classmethod(lambda cls: (_ for _ in ()).throw(RuntimeError("no home"))))
    assert cache_for(tmp_path / "spare") == tmp_path / "spare"


def test_a_cache_to_be_read_only_is_used_if_it_holds_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wanted = [make_jar("a")]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(jars, "listed_jars", lambda: wanted)
    monkeypatch.setattr(jars, "_is_writable", lambda directory: False)
    cache = tmp_path / "home" / "gagar" / "kafka"
    assert cache_for(tmp_path / "spare") == tmp_path / "spare"
    (cache / "a-1.0.jar").write_bytes(content("org.example:a:1.0"))
    assert cache_for(tmp_path / "spare") == cache
    assert ensure_jars(cache, wanted, FakeRepository()) == [cache / "a-1.0.jar"]
    assert [path.name for path in cache.iterdir()] == ["a-1.0.jar"]


def test_a_missing_library_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "maven_artifact", None)
    with pytest.raises(UnavailableError, match=r"maven-artifact: expected the package, got none; install gagar-rl\[local\]"):
        jars.maven_fetch()
