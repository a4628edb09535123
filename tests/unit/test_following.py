"""Keeping an engine on the newest policy version."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gagar.errors import ConfigError, UnavailableError
from gagar.policies.follower import PolicyFollower
from gagar.records import PolicyVersion
from tests.rollouts import FakeEngine, publish


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def follower(engine: FakeEngine) -> AsyncIterator[PolicyFollower]:
    started = PolicyFollower(engine, retry_s=0.01)
    started.start()
    yield started
    await started.close()


def make_files(path: Path, version: int, run_id: str = "a") -> PolicyVersion:
    directory = path / f"{run_id}-{version}"
    directory.mkdir()
    (directory / "model.safetensors").write_bytes(f"{run_id} {version}".encode())
    return publish(directory, version, run_id)


async def until_loaded(engine: FakeEngine, version: int) -> None:
    async with asyncio.timeout(5):
        while engine.policy_version != version:
            await asyncio.sleep(0.001)


async def test_nothing_is_ready_before_a_version_is_loaded(follower: PolicyFollower, tmp_path: Path) -> None:
    waiting = asyncio.create_task(follower.ready())
    await asyncio.sleep(0)
    assert not waiting.done()
    follower.offer(make_files(tmp_path, 0))
    await waiting


async def test_of_the_past_versions_only_the_last_is_loaded(
    follower: PolicyFollower, engine: FakeEngine, tmp_path: Path
) -> None:
    for version in range(4):
        follower.offer(make_files(tmp_path, version))
    await follower.ready()
    assert [version for _, version in engine.loads] == [3]


async def test_the_last_record_wins_even_with_a_lower_version(
    follower: PolicyFollower, engine: FakeEngine, tmp_path: Path
) -> None:
    follower.offer(make_files(tmp_path, 9))
    await until_loaded(engine, 9)
    follower.offer(make_files(tmp_path, 5, run_id="b"))
    await until_loaded(engine, 5)


async def test_a_wrong_checksum_is_refused_and_the_old_policy_stays(
    follower: PolicyFollower, engine: FakeEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    follower.offer(make_files(tmp_path, 0))
    await until_loaded(engine, 0)
    bad = make_files(tmp_path, 1)
    (Path(bad.location) / "model.safetensors").write_bytes(b"torn")
    follower.offer(bad)
    with caplog.at_level(logging.WARNING):
        while not caplog.records:
            await asyncio.sleep(0.001)
    assert "policy version refused run=a version=1" in caplog.text
    assert "expected sha256" in caplog.text
    await follower.ready()
    assert engine.policy_version == 0


async def test_a_version_whose_files_are_gone_gives_way_to_a_newer_one(
    follower: PolicyFollower, engine: FakeEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = make_files(tmp_path, 1)
    (Path(gone.location) / "model.safetensors").unlink()
    follower.offer(gone)
    with pytest.raises(UnavailableError, match=r"expected model\.safetensors or .*, got neither"):
        await follower.ready()
    follower.offer(make_files(tmp_path, 2))
    await until_loaded(engine, 2)
    assert "version refused run=a version=1" in caplog.text


async def test_files_that_come_late_are_found(follower: PolicyFollower, engine: FakeEngine, tmp_path: Path) -> None:
    late = make_files(tmp_path, 1)
    file = Path(late.location) / "model.safetensors"
    content = file.read_bytes()
    file.unlink()
    follower.offer(late)
    with pytest.raises(UnavailableError):
        await follower.ready()
    file.write_bytes(content)
    await until_loaded(engine, 1)


async def test_another_models_weights_are_refused(follower: PolicyFollower, engine: FakeEngine, tmp_path: Path) -> None:
    engine.load_error = ConfigError("policy weights: expected the tensors of the loaded model, got others")
    follower.offer(make_files(tmp_path, 1))
    with pytest.raises(UnavailableError, match="expected the tensors of the loaded model"):
        await follower.ready()


async def test_a_bug_in_loading_is_not_hidden(follower: PolicyFollower, engine: FakeEngine, tmp_path: Path) -> None:
    engine.load_error = TypeError("bug")
    follower.offer(make_files(tmp_path, 1))
    with pytest.raises(TypeError, match="bug"):
        await follower.ready()
