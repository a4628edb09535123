"""Measures of a patch."""

from hypothesis import given
from hypothesis import strategies as st

from gagar.records import PatchMeasures
from gagar.tasks.patches import apply_patch, changed_files, make_patch
from gagar.verification.measures import is_in_scope, measure_patch, patch_digest

TEXTS = st.lists(st.sampled_from(["a", "b", "-- c", "++ d", "@@ -1 +1 @@"]), max_size=8).map(
    lambda lines: "".join(f"{x}\n" for x in lines)
)
TREES = st.dictionaries(st.sampled_from(["x.py", "src/y.py", "z.md"]), TEXTS, max_size=3)


def test_lines_and_files_are_counted() -> None:
    base = {"src/x.py": "1\n2\n3\n", "util.py": "u\n", "gone": "a\nb\n"}
    result = {"src/x.py": "1\ntwo\n2.5\n3\n", "util.py": "u\n# x\n", "new.txt": ""}
    assert measure_patch(base, result, ["src"]) == PatchMeasures(
        num_added_lines=3, num_removed_lines=3, num_files=4, num_files_out_of_scope=3
    )
    assert changed_files(base, result) == ["gone", "new.txt", "src/x.py", "util.py"]


def test_the_scope_names_files_and_folders() -> None:
    assert is_in_scope("anything", [])
    assert is_in_scope("src/x.py", ["src/"])
    assert is_in_scope("src/x.py", ["src/x.py"])
    assert not is_in_scope("src2/x.py", ["src"])


def test_a_clean_patch_is_clean() -> None:
    assert measure_patch({"x": "1\n"}, {"x": "2\n"}, ["x"]).is_clean
    assert not measure_patch({}, {"y": "2\n"}, ["x"]).is_clean


@given(TREES, TREES)
def test_counts_explain_the_length(base: dict[str, str], result: dict[str, str]) -> None:
    measures = measure_patch(base, result, [])
    lines = [sum(text.count("\n") for text in tree.values()) for tree in (base, result)]
    assert measures.num_added_lines - measures.num_removed_lines == lines[1] - lines[0]
    assert measures.num_files == len(changed_files(base, result))


def test_the_digest_tells_changes_apart_and_not_their_spelling() -> None:
    base, result = {"x": "1\n2\n"}, {"x": "1\n3\n"}
    spelled = "diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -2 +2 @@\n-2\n+3\n"
    canonical = make_patch(base, result)
    assert patch_digest(make_patch(base, apply_patch(base, spelled))) == patch_digest(canonical)
    assert patch_digest(canonical) != patch_digest(make_patch(base, {"x": "1\n4\n"}))
    assert len(patch_digest("")) == 64
