"""Reading a run back: one pass for the figures, one for the chosen transcripts, no more read than needed."""

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gagar.cli.report import read_history, topics_read, write_run_report
from gagar.records import AttemptFacts, LogRef, Message, Trajectory, Verdict
from gagar.report.examples import CLEAN, FAILED, KINDS, MAX_PATCH_CHARS, OUT_OF_SCOPE, Examples, kind_of, shortened
from gagar.report.examples import DEAD_CODE as DEAD_CODE_KIND
from gagar.report.summary import summarize
from gagar.stream.handlers import Delivery
from gagar.stream.spec import Topic
from tests import builders
from tests.builders import make_delivery, make_outcome, make_ref, make_request, make_run, make_verdict


class FakeLog:
    """Topics in memory; counts what is read."""

    def __init__(self, **topics: list[Any]) -> None:
        self.topics = {name.replace("_", "-"): records for name, records in topics.items()}
        self.num_read: dict[str, int] = {}

    async def scan(self, topics: Sequence[Topic]) -> AsyncGenerator[Delivery[Any], None]:
        for topic in topics:
            for offset, record in enumerate(self.topics.get(topic.name, [])):
                self.num_read[topic.name] = self.num_read.get(topic.name, 0) + 1
                yield make_delivery(record, topic.name, offset)


def make_trajectory(statement: str = "Add.", patch: str = "+x\n") -> Trajectory:
    messages = [Message(role="system", content="You are."), Message(role="user", content=statement)]
    return Trajectory(
        group_id="t-0",
        sample_index=0,
        attempt=AttemptFacts(request=make_ref("rollout-requests", 0), tokens=None, status="completed"),
        task_id="t",
        purpose="training",
        messages=messages,
        patch=patch,
    )


def verdict_at(offset: int, **fields: Any) -> Verdict:
    return make_verdict(f"t-{offset}", trajectory=make_ref("trajectories", offset), **fields)


async def test_figures_and_examples_come_from_the_topics() -> None:
    log = FakeLog(
        rollout_requests=[make_request("t-0")],
        verdicts=[verdict_at(1, status="failed"), verdict_at(2)],
        outcomes=[make_outcome("e-0", "evaluated")],
        trajectories=[make_trajectory(f"Task {i}.") for i in range(9)],
    )
    history = await read_history(log.scan)
    assert (history.snapshot.num_requested, history.snapshot.num_evaluated) == (1, 1)
    assert [(e.kind, e.statement) for e in history.examples] == [(FAILED, "Task 1."), (CLEAN, "Task 2.")]


async def test_transcripts_are_read_up_to_the_last_chosen_one() -> None:
    log = FakeLog(verdicts=[verdict_at(1)], trajectories=[make_trajectory() for _ in range(50)])
    await read_history(log.scan)
    assert log.num_read["trajectories"] == 2


async def test_without_examples_no_transcript_is_read() -> None:
    log = FakeLog(trajectories=[make_trajectory()])
    history = await read_history(log.scan)
    assert history.examples == []
    assert "trajectories" not in log.num_read


async def test_a_transcript_that_is_gone_is_left_out() -> None:
    log = FakeLog(verdicts=[verdict_at(1), verdict_at(7)], trajectories=[make_trajectory() for _ in range(3)])
    assert len((await read_history(log.scan)).examples) == 1


def test_token_arrays_are_never_read() -> None:
    names = {topic.name for topic in topics_read(with_transcripts=True)}
    assert "trajectories" in names
    assert "trajectory-tokens" not in names
    assert names - {topic.name for topic in topics_read(with_transcripts=False)} == {"trajectories"}


@pytest.mark.slow
async def test_the_report_lies_in_the_directory_of_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    history = await read_history(FakeLog(verdicts=[verdict_at(0)], trajectories=[make_trajectory("<b>")]).scan)
    page = write_run_report(run, history, summarize(history.snapshot, "try", "clean"))
    assert page == run.directory / "report.html"
    text = page.read_text(encoding="utf-8")
    assert "[grader]" in text
    assert "&lt;b&gt;" in text


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"status": "failed"}, FAILED),
        ({"measures": builders.CLEAN}, CLEAN),
        ({"measures": builders.DEAD_CODE}, DEAD_CODE_KIND),
        ({"measures": builders.OUTSIDE}, OUT_OF_SCOPE),
        ({"measures": msgspec.structs.replace(builders.OUTSIDE, num_dead_statements=3)}, OUT_OF_SCOPE),
    ],
)
def test_an_attempt_has_one_kind(fields: dict[str, Any], kind: str) -> None:
    assert kind_of(make_verdict(**fields)) == kind


def test_first_and_last_of_each_kind_are_chosen() -> None:
    examples = Examples()
    for offset in range(40):
        measures = (builders.CLEAN, builders.DEAD_CODE, builders.OUTSIDE)[offset % 3]
        examples.apply(verdict_at(offset, measures=measures, status="failed" if offset % 4 == 3 else "passed"))
    assert len(examples.wanted()) == 2 * len(KINDS)
    built = examples.build({ref: make_trajectory() for ref in examples.wanted()})
    assert [e.kind for e in built] == [kind for kind in KINDS for _ in range(2)]
    assert [e.when for e in built] == ["first", "last"] * len(KINDS)


@pytest.mark.parametrize(
    "verdict",
    [
        make_verdict("e-0"),
        make_verdict(status="invalid"),
        make_verdict(measures=msgspec.structs.replace(builders.CLEAN, num_files=0)),
    ],
    ids=["evaluation", "invalid", "empty patch"],
)
def test_attempts_that_show_nothing_are_not_chosen(verdict: Verdict) -> None:
    examples = Examples()
    examples.apply(verdict)
    assert examples.wanted() == set()


def test_long_texts_are_cut_with_a_note() -> None:
    examples = Examples()
    examples.apply(verdict_at(0))
    ref: LogRef = next(iter(examples.wanted()))
    (example,) = examples.build({ref: make_trajectory(patch="+" * (MAX_PATCH_CHARS + 5))})
    assert example.patch == "+" * MAX_PATCH_CHARS + "\n[5 more characters]"


def test_characters_that_no_page_can_hold_are_replaced() -> None:
    assert shortened("a\0b\ud800c", 10) == "a?b?c"
