"""What the runs came to: a table for people, one JSON object for programs, and whether everything holds."""

from collections import Counter
from typing import Any

import msgspec

from tests.bench.figures import rounded, table
from tests.chaos.expected_outcomes import Letter
from tests.chaos.judge import differences
from tests.chaos.running import Course
from tests.chaos.schedule import kinds_of

MAX_TOLD = 5
"""Faults of one kind, in words."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Of a seed."""

    calm: Course | None
    """The run undisturbed; none if it was left out."""
    fire: Course
    """The same under fire."""
    duration_s: float
    driver_peak_bytes: int
    """The most memory that the driver and its judgement have held."""

    @property
    def courses(self) -> list[Course]:
        """Those that were."""
        return [course for course in (self.calm, self.fire) if course is not None]

    @property
    def differences(self) -> list[str]:
        """Between the two; none if there was but one."""
        return differences(self.calm.facts, self.fire.facts) if self.calm else []

    @property
    def faults(self) -> dict[str, list[str]]:
        """All that does not hold, by kind; empty if everything holds."""
        found: dict[str, list[str]] = {}
        for course in self.courses:
            found |= {f"{course.plan.name}: {kind}": texts for kind, texts in course.faults.items()}
        found |= {
            "differences": self.differences,
            "events that never came": never_came(self.fire),
            "kept handlers": [] if self.fire.log.num_kept else ["expected some in work while their stage was scaled, got none"],
        }
        return {kind: texts for kind, texts in found.items() if texts}

    @property
    def figures(self) -> dict[str, Any]:
        """The last line."""
        log, facts, judgement = self.fire.log, self.fire.facts, self.fire.judgement
        audits = [finding for course in self.courses for finding in course.judgement.audit]
        beside = {"undisturbed_s": rounded(self.calm.stream_s), "differences": len(self.differences)} if self.calm else {}
        return {
            "seed": self.fire.plan.seed,
            "groups": self.fire.plan.num_groups,
            "brokers": self.fire.plan.num_brokers,
            "lost": len(judgement.lost),
            "doubled": len(judgement.doubled),
            "dead_letters": facts.letters.total(),
            "dead_letters_expected": self.fire.plan.expected.letters.total(),
            "events": dict(sorted(log.events.items())),
            "events_in_vain": log.in_vain.total(),
            "duration_s": rounded(self.duration_s),
            "audit": audits[:MAX_TOLD] or "clean",
            "under_fire_s": rounded(self.fire.stream_s),
            **beside,
            "restarted_handlers": len(log.restarted),
            "kept_handlers": log.num_kept,
            "reran_finished": self.fire.waste.num_reran,
            "begun_after_loss": len(self.fire.waste.begun_after_loss),
            "unexpected_exits": len(log.unexpected_exits),
            "late_stops": len(log.late_stops),
            "learner_runs": facts.num_lineages,
            "superseded_outcomes": facts.num_superseded,
            "memory_growth": {name: rounded(found.ratio) for name, found in self.fire.memory.items()},
            "memory_mib": {
                name: [rounded(found.first_mib), rounded(found.last_mib)] for name, found in self.fire.memory.items()
            },
            "driver_peak_mib": self.driver_peak_bytes >> 20,
            "faults": sorted(self.faults),
        }

    def __str__(self) -> str:
        log, facts = self.fire.log, self.fire.facts
        tables = [
            _counts("events that happened", log.events),
            _counts("events that met nobody", log.in_vain),
            _counts("groups by outcome", Counter(f"{end.kind} {end.reason}" for ends in facts.ends.values() for end in ends)),
            _letters(facts.letters, self.fire.plan.expected.letters),
            _counts("processes that ended, by exit code", Counter(f"{end.stage} {end.code}" for end in log.exits)),
            _memory(self.fire),
            table(
                "durations, s",
                ["", "s"],
                [
                    *([course.plan.name, f"{course.stream_s:.1f}"] for course in self.courses),
                    ["in all", f"{self.duration_s:.1f}"],
                ],
            ),
        ]
        return "\n\n".join([*tables, _told(self.faults)])


def never_came(fire: Course) -> list[str]:
    """Kinds of events that did not happen once; the learner's death is one, as nothing else makes a second lineage."""
    log = fire.log
    deaths = [] if log.hits["kill learner"] else ["kill learner"]
    return [kind.name for kind in kinds_of(fire.plan.num_brokers) if not log.events[kind.name]] + deaths


def _counts(title: str, counts: Counter[str]) -> str:
    return table(title, ["", "number"], [[name, str(count)] for name, count in sorted(counts.items())])


def _letters(found: Counter[Letter], expected: Counter[Letter]) -> str:
    by_stage = [Counter(letter.stage for letter in letters.elements()) for letters in (found, expected)]
    rows = [[stage, *(str(counts[stage]) for counts in by_stage)] for stage in sorted(by_stage[0] | by_stage[1])]
    return table("dead letters by stage", ["", "found", "expected"], rows)


def _memory(fire: Course) -> str:
    rows = [
        [name, f"{found.first_mib:.1f}", f"{found.last_mib:.1f}", f"{found.ratio:.2f}"] for name, found in fire.memory.items()
    ]
    return table("memory under fire, MiB, medians", ["", "first tenth", "last tenth", "ratio"], rows)


def _told(faults: dict[str, list[str]]) -> str:
    lines = ["everything holds" if not faults else "what does not hold"]
    for kind, texts in faults.items():
        lines.append(f"  {kind}: {len(texts)}")
        lines += [f"    {text}" for text in texts[:MAX_TOLD]]
    return "\n".join(lines)
