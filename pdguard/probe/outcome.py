"""A whole run in one word, and the exit code that goes with it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pdguard.probe.interface import Danger, Kind, Plan, ProbeResult, Release, Side, StepResult, Verdict

INTERRUPTED = "interrupted"
"""`ProbeResult.stopped` after Ctrl-C."""

_AT_RISK = frozenset({Verdict.LATE, Verdict.WAITED, Verdict.HELD, Verdict.WALKED_ON})
_UNTOLD = frozenset({Verdict.NOT_TOLD, Verdict.UNPAIRED})
_FINDINGS = frozenset({Verdict.DRIFTED, Verdict.TRUNCATED})
_CONTROLS = frozenset({Side.CONTEXT, Side.ADMITTED})


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


def is_control(result: StepResult) -> bool:
    """Whether a step says nothing by itself: a prompt that is admitted, or that no engine looks at."""
    step = result.step
    return step.kind is Kind.OVER_POOL and step.length is not None and step.length.side in _CONTROLS


def word(result: ProbeResult) -> Word:
    """The whole run's verdict: the worst step's.

    Unknown where nothing but controls said anything, or where the steps that could show the fault were left
    out for want of consent.
    """
    words = {word_of(one) for one in result.results}
    for worst in (Word.EXPOSED, Word.AT_RISK, Word.FINDINGS):
        if worst in words:
            return worst
    telling = [r for r in result.results if not is_control(r) and word_of(r) is Word.CLEAN]
    return Word.CLEAN if telling and not lacks_consent(result.plan) else Word.UNKNOWN


def lacks_consent(plan: Plan) -> bool:
    """Whether the steps that could show an exposure were left out, as nobody consented to them."""
    return bool(plan.consents) and not any(step.danger is Danger.EXPOSES for step in plan.steps)


def exit_code(result: ProbeResult) -> int:
    """20 exposed, 130 interrupted, 12 at risk, 11 findings, 3 nothing could be told, 0 clean."""
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
        Word.UNKNOWN: "nothing but controls was answered in a way that tells; unknown is not a pass",
        Word.CLEAN: f"{steps} ended as they should",
    }
    text = texts[which]
    if which is Word.UNKNOWN and lacks_consent(result.plan):
        text = "the steps that could show an exposure were left out; unknown is not a pass"
    unsure = sum(one.verdict is Verdict.INCONCLUSIVE for one in result.results)
    if which is Word.CLEAN and unsure:
        text += f", {unsure} told nothing"
    return Said(which, f"{result.cluster}: {text}")
