"""Patches: what is made can be applied, by us and by git; what is hostile is refused."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagar.errors import BadRecordError
from gagar.tasks.patches import MAX_CELLS, apply_patch, check_path, make_patch, split_lines

LINES = st.sampled_from(
    ["a", "b", "c", "", " x", "+", "-", "\\ No newline at end of file", "@@ -1 +1 @@", "\r", "\u2028", "--- a/x"]
)
ENDS = st.sampled_from(["", "\n", "\r\n", "\r"])
TEXTS = st.builds(lambda lines, end: "\n".join(lines) + end, st.lists(LINES, max_size=12), ENDS) | st.text(
    st.characters(codec="utf-8"), max_size=30
)
PATHS = st.sampled_from(
    ["x.py", "src/y.py", "a b/c d.txt", 'quo"te', "back\\slash", "tab\there", "caf\u00e9.py", "\U0001f600", "a/b b/a"]
)
TREES = st.dictionaries(PATHS, TEXTS, max_size=4)

SIMPLE = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+2\n"


@given(TREES, TREES)
def test_applying_what_was_made_gives_the_result(base: dict[str, str], result: dict[str, str]) -> None:
    assert apply_patch(base, make_patch(base, result)) == result


def test_equal_trees_make_an_empty_patch() -> None:
    assert make_patch({"x": "1\n"}, {"x": "1\n"}) == ""
    assert apply_patch({"x": "1\n"}, "") == {"x": "1\n"}


def test_the_form_is_gits() -> None:
    lines = [f"{number}\n" for number in range(1, 21)]
    changed = [*lines[:9], "ten\n", *lines[10:]]
    patch = make_patch({"x": "".join(lines), "old": "o"}, {"x": "".join(changed), "new": "n\n"})
    assert patch == (
        "diff --git a/new b/new\nnew file mode 100644\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+n\n"
        "diff --git a/old b/old\ndeleted file mode 100644\n--- a/old\n+++ /dev/null\n"
        "@@ -1 +0,0 @@\n-o\n\\ No newline at end of file\n"
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -7,7 +7,7 @@\n 7\n 8\n 9\n-10\n+ten\n 11\n 12\n 13\n"
    )


@pytest.mark.skipif(shutil.which("git") is None and not os.environ.get("CI"), reason="git is not installed")
def test_git_applies_what_was_made(tmp_path: Path) -> None:
    base = {"keep": "k\n", "x y": "1\n2\n", "gone": "", "crlf": "a\r\nb\r\n", "end": "no newline"}
    result = {
        "keep": "k\n",
        "x y": "1\n3\n",
        "empty": "",
        "crlf": "a\r\nc\r\n",
        "end": "no newline\nstill none",
        "caf\u00e9": "\u00e9\n",
    }
    for path, text in base.items():
        (tmp_path / path).write_bytes(text.encode())
    patch = make_patch(base, result).encode()
    subprocess.run(["git", "apply", "--whitespace=nowarn", "-"], input=patch, cwd=tmp_path, check=True)
    assert {file.name: file.read_bytes().decode() for file in tmp_path.iterdir()} == result


def test_two_large_different_files_are_replaced_as_a_whole() -> None:
    size = int(MAX_CELLS**0.5) + 1
    base = {"x": "".join(f"{number}\n" for number in range(size))}
    result = {"x": "".join(f"{number * 2 + 1}\n" for number in range(size))}
    patch = make_patch(base, result)
    assert patch.count("@@ -") == 1
    assert apply_patch(base, patch) == result


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../x", "a/../b", "a//b", "./a", "a/", ".git/config", "sub/.GIT/hooks", "nul\0", "\udc80", "x" * 2000],
)
def test_paths_that_leave_the_tree_are_refused(path: str) -> None:
    with pytest.raises(BadRecordError, match=r"expected a relative, normal path outside [.]git"):
        check_path(path)


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        ("hello\n", "expected `diff --git"),
        (SIMPLE.replace("-1\n", "-7\n"), "expected the old lines of the hunk"),
        (SIMPLE.replace("@@ -1 +1", "@@ -2 +2"), "expected the old lines of the hunk"),
        (SIMPLE.replace("@@ -1 +1", "@@ -1 +5"), "lands on line 5"),
        (SIMPLE + SIMPLE, "one section for each file"),
        (SIMPLE[:-1], "a line of the hunk"),
        (SIMPLE.replace("+1 @@", "+1,2 @@"), "a line of the hunk"),
        (SIMPLE.replace("+++ b/x", "+++ b/y"), "expected b/x"),
        (SIMPLE.replace("b/x\n---", "b/y\n---"), "`a/<path> b/<path>`"),
        (SIMPLE.replace("a/x b/x", "a/x  b/x"), "the same path twice"),
        (SIMPLE.replace("/x", "/../x"), "relative, normal path"),
        (SIMPLE.replace("/x", "//etc/x"), "relative, normal path"),
        (SIMPLE.replace("/x", "/.git/x"), "relative, normal path"),
        (SIMPLE.replace("/x", "/z"), "a file of the base tree"),
        ("diff --git a/x b/x\nnew file mode 100644\n", "a new file"),
        ("diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n", "a regular file"),
        ("diff --git a/m b/m\nnew file mode 160000\n", "a regular file"),
        ("diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", "expected `diff --git"),
        ("diff --git a/x b/x\nrename from x\nrename to y\n", "expected `diff --git"),
        ("diff --git a/x b/x\nGIT binary patch\nliteral 1\n", "expected `diff --git"),
        ("diff --git a/x b/x\ndeleted file mode 100644\n", "a deletion of every line"),
        ("diff --git a/x/y b/x/y\nnew file mode 100644\n", "a file or a folder"),
        ('diff --git "a/\\777" "b/\\777"\nnew file mode 100644\n', "git's escapes"),
        ('diff --git "a/\\377" "b/\\377"\nnew file mode 100644\n', "UTF-8"),
        ("diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n", "a line `[+]{3} `"),
    ],
)
def test_a_patch_that_is_not_exact_is_refused(patch: str, why: str) -> None:
    with pytest.raises(BadRecordError, match=why):
        apply_patch({"x": "1\n"}, patch)


def test_a_line_feed_cannot_be_lost_inside_a_file() -> None:
    patch = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+2\n\\ No newline at end of file\n"
    with pytest.raises(BadRecordError, match="line feeds between lines"):
        apply_patch({"x": "1\n2\n"}, patch)
    assert apply_patch({"x": "1\n"}, patch) == {"x": "2"}


def test_an_index_line_and_an_executable_file_are_fine() -> None:
    patch = "diff --git a/r b/r\nnew file mode 100755\nindex 0000000..1\n--- /dev/null\n+++ b/r\n@@ -0,0 +1 @@\n+#!\n"
    assert apply_patch({}, patch) == {"r": "#!\n"}


def test_a_huge_patch_is_refused_unread() -> None:
    with pytest.raises(BadRecordError, match="at most"):
        apply_patch({}, "x" * (16 << 20 | 1))


@given(st.text(alphabet="ab\n\r\u2028", max_size=20))
def test_lines_join_to_the_text(text: str) -> None:
    assert "".join(split_lines(text)) == text
