"""A group as files: what is there, and that no text of an attempt leads out of the directory or over a file."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from gagar.errors import BadRecordError, ConfigError
from gagar.history.group import GroupHistory, read_group
from gagar.history.workspace import write_workspace
from gagar.records import Message
from gagar.tasks.task import Task
from tests.builders import make_request
from tests.contract.world import make_trajectory
from tests.logs import append, empty_log, transport_of
from topology.topics import TOPICS

TASK = Task(
    task_id="task",
    statement="Mend it.",
    tree={"src/x.py": "def f(): ...\n", "README": "r\r\n"},
    tests={"tests/test_x.py": "def test_f(): ...\n"},
    fail_to_pass=["tests/test_x.py::test_f"],
)
HOSTILE = [
    "../../escape",
    "/etc/passwd",
    "a\x00b",
    "candidates/../../x",
    "--- a/../../x\n+++ b/../../x\n@@ -0,0 +1 @@\n+x\n",
    "\x1b]0;title\x07",
    "x" * 5000,
]


async def history_of(patch: str = "", content: str = "", group_id: str = "t-000000", task_id: str = "task") -> GroupHistory:
    log = empty_log()
    request = make_request(group_id, group_size=1, task_id=task_id)
    append(log, request)
    append(log, make_trajectory(request, patch=patch, messages=[Message(role="assistant", content=content)], failure=content))
    return await read_group(transport_of(log), TOPICS, group_id)


def files_below(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir()}


async def test_task_base_tests_patch_transcript_and_verdict_are_files(tmp_path: Path) -> None:
    write_workspace(tmp_path / "left", await history_of(patch="--- a/x\r\n", content="hello"), TASK)
    left = tmp_path / "left"
    assert files_below(left) == {
        "task.md",
        "task.json",
        "base/src/x.py",
        "base/README",
        "tests/tests/test_x.py",
        "candidates/0/patch.diff",
        "candidates/0/transcript.md",
        "candidates/0/verdict.json",
        "group.json",
    }
    assert (left / "base/README").read_bytes() == b"r\r\n"
    assert (left / "candidates/0/patch.diff").read_bytes() == b"--- a/x\r\n"
    assert "hello" in (left / "candidates/0/transcript.md").read_text()
    assert json.loads((left / "group.json").read_text())["group_id"] == "t-000000"
    assert json.loads((left / "task.json").read_text())["fail_to_pass"] == TASK.fail_to_pass


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_no_text_of_an_attempt_becomes_a_path(tmp_path: Path, text: str) -> None:
    (tmp_path / "outside").write_text("mine")
    history = await history_of(patch=text, content=text, group_id=text[:900], task_id=text)
    write_workspace(tmp_path / "in" / "left", history, None)
    assert files_below(tmp_path) == {
        "outside",
        "in/left/candidates/0/patch.diff",
        "in/left/candidates/0/transcript.md",
        "in/left/candidates/0/verdict.json",
        "in/left/group.json",
    }
    assert "\x1b" not in (tmp_path / "in/left/candidates/0/transcript.md").read_text()


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "a//b", ".", ".git/config", "a\0b"])
async def test_a_task_whose_path_leads_out_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(BadRecordError, match=r"expected a relative, normal path outside \.git"):
        write_workspace(tmp_path / "left", await history_of(), replace(TASK, tree={path: "x"}))
    assert {Path(name).parts[0] for name in files_below(tmp_path)} <= {"left"}


async def test_a_directory_that_is_not_empty_a_file_and_a_dead_link_are_refused(tmp_path: Path) -> None:
    history = await history_of()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("full", "file", "link"):
        with pytest.raises(ConfigError, match="expected a directory that is new or empty"):
            write_workspace(tmp_path / name, history, TASK)


async def test_one_attempt_alone_is_left_of_a_group(tmp_path: Path) -> None:
    log = empty_log()
    for sample in range(3):
        request = make_request(sample_index=sample, group_size=3)
        append(log, request)
        append(log, make_trajectory(request))
    history = await read_group(transport_of(log), TOPICS, "t-000000")
    write_workspace(tmp_path / "left", history, None, only=history.attempts[1])
    assert [path.name for path in (tmp_path / "left" / "candidates").iterdir()] == ["1"]
