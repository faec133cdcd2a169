"""A plan, and a result, for people. Nothing of an answer's text can be in either."""

from __future__ import annotations

from collections.abc import Sequence

from pdguard.probe.advice import next_step
from pdguard.probe.context import patience
from pdguard.probe.costs import served
from pdguard.probe.figures import in_words, queues_in_words
from pdguard.probe.interface import (
    Danger,
    HalfResult,
    LeftOut,
    Length,
    Plan,
    ProbeResult,
    Release,
    Step,
    StepResult,
    Verdict,
)
from pdguard.probe.outcome import Word, said, word_of
from pdguard.report._paper import Paper, Span, cells
from pdguard.report.interface import RenderOptions

SHOWN_MEASURES = 12
_STYLES = {
    Word.EXPOSED: "critical",
    Word.AT_RISK: "high",
    Word.FINDINGS: "medium",
    Word.UNKNOWN: "unknown",
    Word.CLEAN: "ok",
}
NOTHING_SENT = "nothing was sent: add --yes"


def plan_text(plan: Plan, cluster: str, options: RenderOptions) -> str:
    """The plan: each step with whom it goes to and the worst that it may cost, then what is left out."""
    paper = Paper(options.width, options.color, options.unicode)
    steps = plan.steps
    paper.text(
        f"{cluster}: {_count(len(steps), 'step')}; at most {_total(plan)}",
        lead=(("PLAN  ", "bold"),),
        indent=6,
    )
    if steps:
        paper.text(_load(plan), indent=2)
    budget = plan.budget
    paper.text(
        f"budget: {budget.requests:,} requests, {budget.tokens:,} tokens, {budget.seconds:g} s; "
        f"a refusal is waited for {budget.wait:g} s at most, an admitted prompt's answer "
        f"{patience(budget.wait):g} s; then the request is closed",
        indent=2,
    )
    if plan.canary:
        paper.text("known answers are asked for before, between and after the steps", indent=2)
    if steps:
        paper.blank()
    for step in steps:
        paper.text(_step_title(step), lead=((f"  {step.number:>2}  ", "bold"),), indent=6)
        paper.text(_cost(step), indent=6, style="dim")
    _left_out(paper, plan.left_out)
    if plan.consents:
        paper.blank()
        given = any(step.danger is Danger.EXPOSES for step in steps)
        state = "--accept-exposure was given, although:" if given else "--accept-exposure is needed, because:"
        paper.text(state, lead=(("CONSENT  ", "bold"),), indent=9)
        for why in plan.consents:
            paper.text(why, lead=(("  - ", ""),), indent=4)
    return paper.result()


def result_text(
    result: ProbeResult, options: RenderOptions, cluster: str = "CLUSTER", saved: str = ""
) -> str:
    """The verdict, each route's steps with both halves, the rest, and the next step.

    `cluster` is the cluster file, `saved` the file that has the result as JSON, or empty.
    """
    paper = Paper(options.width, options.color, options.unicode)
    verdict = said(result)
    label = verdict.word.label
    paper.text(verdict.text, lead=((label, _STYLES[verdict.word]), ("  ", "")), indent=len(label) + 2)
    step = next_step(result, cluster, saved)
    paper.text(step, lead=(("next: ", "bold"),), indent=6)
    for name in dict.fromkeys(r.step.route.name for r in result.results):
        paper.blank()
        paper.text(name, style="bold")
        for one in result.results:
            if one.step.route.name == name:
                _step(paper, one)
    if result.stopped:
        paper.blank()
        paper.text(result.stopped, lead=(("STOPPED  ", "bold"),), indent=9)
    done = {r.step.number for r in result.results}
    undone = [s for s in result.plan.steps if s.number not in done]
    if undone:
        numbers = ", ".join(str(s.number) for s in undone)
        paper.text(f"not done: {'step' if len(undone) == 1 else 'steps'} {numbers}", indent=2)
    # What loses nothing was told with the plan.
    _left_out(paper, [one for one in result.plan.left_out if one.lost])
    paper.blank()
    paper.text(
        f"{_spent(result)}, {result.seconds:.1f} s; request ids begin with pdguard-probe-{result.run_id}",
        style="dim",
    )
    paper.text(step, lead=(("next: ", "bold"),), indent=6)
    return paper.result()


def _spent(result: ProbeResult) -> str:
    """What was sent, and what was booked for it: a router may have sent it again."""
    sent = f"{_count(result.sent, 'request')} sent"
    again = any(one.step.route.tries > 1 for one in result.results)
    more = " with the router's own retries" if again else ""
    return f"{sent}, booked as at most {_count(result.requests, 'request')}, {result.tokens:,} tokens{more}"


def _load(plan: Plan) -> str:
    """What the engines really have to do, besides the worst case."""
    count, longest = served(plan.steps)
    if not count:
        return "no prompt is to be served: all must be refused"
    which = (
        "1 prompt will really be served, of"
        if count == 1
        else f"{count:,} prompts will really be served, up to"
    )
    each = "" if count == 1 else " each"
    return f"{which} {longest:,} tokens{each}; all others must be refused"


def _total(plan: Plan) -> str:
    steps = plan.steps
    worst = max(steps, key=lambda s: s.held_tokens, default=None)
    return (
        f"{_count(sum(s.requests for s in steps), 'request')}, {sum(s.tokens for s in steps):,} tokens, "
        f"{sum(s.seconds for s in steps):,.0f} s; {_held(worst)}"
    )


def _held(step: Step | None) -> str:
    if step is None or not step.held_tokens:
        return "no KV is held"
    part = step.held_share
    share = "" if part is None else f", {min(part, 1.0):.0%} of the smallest decode pool"
    return f"KV of {step.held_tokens:,} tokens may be held{share}"


def _cost(step: Step) -> str:
    whom = step.route.router.name if step.route.router is not None else ""
    engines = ", ".join(dict.fromkeys((*step.route.prefills, *step.route.decodes)))
    to = f"to {whom} (then {engines})" if whom else f"to {engines}"
    tries = step.route.tries
    each = f" (its router may try {tries} times)" if whom and tries > 1 else "" if whom else " (both halves)"
    count = f"{_count(step.requests, 'request')}{each}"
    parts = [to, f"{count}, {step.tokens:,} tokens, {step.seconds:g} s at most"]
    parts += [_held(step)] if step.held_tokens else []
    parts += [step.danger.value] if step.danger is not Danger.ORDINARY else []
    return "; ".join(parts)


def _step_title(step: Step) -> str:
    parts = [step.kind.value, _length(step.length), step.api.value]
    parts += ["streamed"] if step.stream else []
    return f"{', '.join(part for part in parts if part)}, {step.route.name}"


def _length(length: Length | None) -> str:
    if length is None:
        return ""
    rank = "" if length.rank is None else f", DP rank {length.rank}"
    return f"{length.tokens:,} tokens ({length.side.value}){rank}"


def _step(paper: Paper, result: StepResult) -> None:
    step = result.step
    parts = [step.kind.value, _length(step.length), step.api.value]
    parts += ["streamed"] if step.stream else []
    style = _STYLES[word_of(result)]
    lead: list[Span] = [(f"  {step.number:>2}  ", "bold"), (_verdict(result), style), ("  ", "")]
    paper.text(", ".join(part for part in parts if part), lead=lead, indent=6)
    paper.text(result.reason, indent=6)
    for half in result.halves:
        _half(paper, half)
    for measure in result.measures[:SHOWN_MEASURES]:
        paper.text(in_words(measure), indent=8, style="dim")
    if len(result.measures) > SHOWN_MEASURES:
        paper.text(
            f"{len(result.measures) - SHOWN_MEASURES} more figures: --format json", indent=8, style="dim"
        )


def _verdict(result: StepResult) -> str:
    held = [h.seen.ended_after for h in result.halves if h.seen is not None and h.verdict is Verdict.HELD]
    return held_after(max(held)) if held and result.verdict is Verdict.HELD else result.verdict.value


def held_after(seconds: float) -> str:
    """The verdict on a half that outlived the probe's patience."""
    return f"still held after {seconds:.0f} s" if seconds >= 10 else f"still held after {seconds:.1f} s"


def _half(paper: Paper, half: HalfResult) -> None:
    seen = half.seen
    verdict = half.verdict.value
    if half.verdict is Verdict.HELD and seen is not None:
        verdict = held_after(seen.ended_after)
    name = paper.pad(half.name, max(12, min(20, cells(half.name))))
    lead: list[Span] = [(f"        {name} {half.role.value:<7}  ", "")]
    facts = [verdict]
    if seen is not None:
        facts.append(f"HTTP {seen.status}" if seen.status else seen.end.value)
        if seen.inner_status is not None and seen.inner_status != seen.status:
            facts.append(f"{seen.inner_status} inside")
        if seen.prompt_tokens is not None:
            facts.append(f"prompt_tokens {seen.prompt_tokens:,}")
        facts.append(f"{seen.ended_after:.2f} s")
    paper.text(paper.dot.join(facts), lead=lead, indent=10)
    if half.release is not None:
        paper.text(_released(half.release), indent=10, style="dim")


def _released(release: Release) -> str:
    how = queues_in_words(release.how)
    if release.released is None:
        return f"whether it let go is not known: {how}"
    if not release.released:
        return f"it had not let go when the probe stopped looking: {how}"
    after = "" if release.after is None else f" {release.after:.1f} s"
    return f"let go{after} after the probe had closed the request: {how}"


def _left_out(paper: Paper, left_out: Sequence[LeftOut]) -> None:
    if not left_out:
        return
    paper.blank()
    paper.line(("LEFT OUT", "bold"))
    for one in left_out:
        todo = f" ({one.todo})" if one.todo else ""
        paper.text(f"{one.what}: {one.why}{todo}", lead=(("  - ", ""),), indent=4)


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
