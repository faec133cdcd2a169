"""A whole run in one word, and the exit code that goes with it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from pdguard.probe.interface import Kind, ProbeResult, Release, StepResult, Verdict

EXPOSED = 20
"""The exit code that nothing else may hide."""

INTERRUPTED = "interrupted"
"""`ProbeResult.stopped` after Ctrl-C."""

_AT_RISK = frozenset({Verdict.LATE, Verdict.WAITED, Verdict.HELD, Verdict.WALKED_ON})
_UNTOLD = frozenset({Verdict.NOT_TOLD, Verdict.UNPAIRED})
_FINDINGS = frozenset({Verdict.DRIFTED, Verdict.TRUNCATED})
_NAMED = 3
"""Things left out that a sentence names."""

_LOOKED = {
    Kind.CANARY: "known answers did not drift",
    Kind.PAIRING: "refusals let decode go at once",
    Kind.ABORT: "both halves were told of clients that left",
}
"""What was looked at, by kinds that test no limit."""


class Word(enum.Enum):
    """The verdict of a run, worst first, in the words of an audit. The number is the exit code."""

    EXPOSED = 20
    AT_RISK = 12
    FINDINGS = 11
    UNKNOWN = 3
    CLEAN = 0

    @property
    def label(self) -> str:
        """As it is printed."""
        return self.name.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Said:
    """A verdict with its sentence."""

    word: Word
    text: str


def word_of(result: StepResult) -> Word:
    """What one step means for the whole. The worst half counts, unless the step told nothing."""
    verdicts = {result.verdict}
    if result.verdict is not Verdict.INCONCLUSIVE:
        verdicts |= {half.verdict for half in result.halves}
    releases = [half.release for half in result.halves if half.release is not None]
    if Verdict.EXPOSED in verdicts:
        return Word.EXPOSED
    if verdicts & (_AT_RISK | _UNTOLD) or any(not_released(one) for one in releases):
        return Word.AT_RISK
    if verdicts & _FINDINGS:
        return Word.FINDINGS
    return Word.UNKNOWN if result.verdict is Verdict.INCONCLUSIVE else Word.CLEAN


def not_released(release: Release) -> bool:
    """Whether a half was seen to keep what the probe had let go."""
    return release.released is False


def word(result: ProbeResult) -> Word:
    """The whole run's verdict: the worst step's.

    Clean only where everything that was asked for and exists was done and told something.
    """
    words = {word_of(one) for one in result.results}
    for worst in (Word.EXPOSED, Word.AT_RISK, Word.FINDINGS):
        if worst in words:
            return worst
    return Word.UNKNOWN if gaps(result) else Word.CLEAN


def gaps(result: ProbeResult) -> tuple[str, ...]:
    """What keeps a run from being clean, each in a few words: left out, not done, told nothing."""
    found: list[str] = []
    lost = list(dict.fromkeys(one.what for one in result.plan.left_out if one.lost))
    if lost:
        more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
        found.append(f"not probed: {'; '.join(lost[:_NAMED])}{more}")
    done = {one.step.number for one in result.results}
    undone = [step.number for step in result.plan.steps if step.number not in done and not step.control]
    if undone:
        found.append(f"not done: {_steps(undone)}")
    telling = [one for one in result.results if not one.step.control]
    # A control that is not as it should be says that the limits are other than told.
    unsure = [one.step.number for one in result.results if one.verdict is Verdict.INCONCLUSIVE]
    if unsure:
        found.append(f"told nothing: {_steps(unsure)}")
    if not telling and not found:
        found.append("nothing but controls was there to probe")
    return tuple(found)


def _steps(numbers: Sequence[int]) -> str:
    listed = ", ".join(str(number) for number in numbers[:12])
    more = f" and {len(numbers) - 12} more" if len(numbers) > 12 else ""
    return f"{'step' if len(numbers) == 1 else 'steps'} {listed}{more}"


def exit_code(result: ProbeResult) -> int:
    """20 exposed, 130 interrupted, 12 at risk, 11 findings, 3 not everything was probed or told, 0 clean."""
    said = word(result)
    if said is not Word.EXPOSED and result.stopped == INTERRUPTED:
        return 130
    return said.value


def said(result: ProbeResult) -> Said:
    """The first line of a report: the word, and how many steps it rests on."""
    which = word(result)
    count = sum(word_of(one) is which for one in result.results)
    steps = f"{count} of {len(result.results)} steps"
    texts = {
        Word.EXPOSED: "an answer was made from pages that nobody wrote for its prompt",
        Word.AT_RISK: f"{steps} left a half waiting, held, told late or not told at all",
        Word.FINDINGS: f"{steps} answered otherwise than before, or cut the prompt",
        Word.UNKNOWN: f"{'; '.join(gaps(result))}; unknown is not a pass",
        Word.CLEAN: _clean(result, steps),
    }
    return Said(which, f"{result.cluster}: {texts[which]}")


def _clean(result: ProbeResult, steps: str) -> str:
    kinds = {one.step.kind for one in result.results if not one.step.control}
    if kinds & {Kind.OVER_POOL, Kind.STAGING}:
        return f"{steps} ended as they should"
    looked = " and ".join(text for kind, text in _LOOKED.items() if kind in kinds)
    return f"{looked}; limits were not probed"
