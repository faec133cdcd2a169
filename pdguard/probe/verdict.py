"""From what was seen of a prompt at a limit to a verdict with its reason: straight to a pair, or by a router.

An exposure needs an answer with output to a prompt that prefill did not serve whole: it refused it, it walked
on with a stub, it cut it to fewer tokens than decode answered for, or its own limit refuses that length.
Nothing less is called one.
"""

from __future__ import annotations

from pdguard.probe.interface import (
    Api,
    ErrorClass,
    HalfResult,
    Length,
    Role,
    Seen,
    Side,
    Step,
    StepResult,
    Verdict,
)
from pdguard.probe.verdict_half import OVER, TOKENIZERS, Judged, gave_output, judge_half

_WORST = (
    *(Verdict.EXPOSED, Verdict.HELD, Verdict.WAITED, Verdict.LATE, Verdict.WALKED_ON),
    *(Verdict.TRUNCATED, Verdict.INCONCLUSIVE, Verdict.ADMITTED, Verdict.TOKENIZER, Verdict.DOOR),
)
_NO_LENGTH = "the step has no length to judge by"


def judge_direct(step: Step, prefill: Seen, decode: Seen) -> StepResult:
    """The verdict on one prompt that was sent to both halves of a pair, with one for each half."""
    length = step.length
    if length is None:
        return StepResult(step, Verdict.INCONCLUSIVE, _NO_LENGTH)
    p = judge_half(step, length, Role.PREFILL, prefill)
    d = judge_half(step, length, Role.DECODE, decode)
    if gave_output(decode) and _not_served(step, length, p, prefill, d, decode):
        d = Judged(Verdict.EXPOSED, f"{d.reason}; prefill had not served {_part(prefill, decode)}")
    elif d.verdict is Verdict.DOOR and gave_output(prefill):
        d = Judged(Verdict.LATE, f"{d.reason}, but prefill had served the handoff")
    halves = (
        HalfResult(step.route.prefills[0], Role.PREFILL, p.verdict, p.reason, prefill),
        HalfResult(step.route.decodes[0], Role.DECODE, d.verdict, d.reason, decode),
    )
    verdict = _overall(length.side, p.verdict, d.verdict)
    reason = f"prefill {p.reason}; decode {d.reason}"
    if p.verdict is d.verdict is Verdict.ADMITTED and verdict is Verdict.INCONCLUSIVE:
        reason += "; the limits are other than told"
    elif verdict is Verdict.TRUNCATED and _counts_differ(prefill, decode):
        reason += "; the halves cut to other lengths"
    return StepResult(step, verdict, reason, halves)


def judge_router(step: Step, seen: Seen) -> StepResult:
    """The verdict on one prompt that was sent through a router, which shows one answer for both halves.

    At the lengths that every prefill behind it refuses by its own limit, also where every decode refuses
    them too, an answer with output is an exposure: no prefill can have served that prompt.
    """
    length = step.length
    if length is None:
        return StepResult(step, Verdict.INCONCLUSIVE, _NO_LENGTH)
    judged = judge_half(step, length, Role.ROUTER, seen)
    if judged.verdict is Verdict.ADMITTED and length.side in (Side.PREFILL, Side.BOTH):
        judged = Judged(Verdict.EXPOSED, f"{judged.reason}; no prefill behind it serves this prompt")
    elif judged.verdict is Verdict.ADMITTED and length.side is Side.DECODE:
        judged = Judged(Verdict.INCONCLUSIVE, f"{judged.reason}; decode's limit is other than told")
    tries = step.route.tries
    if judged.verdict in (Verdict.HELD, Verdict.WAITED) and tries > 1 and not step.stream:
        judged = Judged(judged.verdict, f"{judged.reason} (the router tries up to {tries} times)")
    name = step.route.router.name if step.route.router is not None else step.route.name
    half = HalfResult(name, Role.ROUTER, judged.verdict, judged.reason, seen)
    return StepResult(step, judged.verdict, f"the router {judged.reason}", (half,))


def _part(prefill: Seen, decode: Seen) -> str:
    wrote, read = prefill.prompt_tokens or 0, decode.prompt_tokens or 0
    return f"{read - wrote:,} tokens of it" if _read_more(prefill, decode) and wrote > 1 else "this prompt"


def _read_more(prefill: Seen, decode: Seen) -> bool:
    """Whether decode answered for more of the prompt than prefill took, as a prefill that truncates does."""
    wrote, read = prefill.prompt_tokens, decode.prompt_tokens
    return gave_output(prefill) and wrote is not None and read is not None and read > wrote


def _counts_differ(prefill: Seen, decode: Seen) -> bool:
    return gave_output(decode) and prefill.prompt_tokens != decode.prompt_tokens


def _not_served(step: Step, length: Length, p: Judged, prefill: Seen, d: Judged, decode: Seen) -> bool:
    """Whether prefill cannot have written what decode answered from."""
    if _read_more(prefill, decode):
        return True
    refusals = (ErrorClass.OVER_LIMIT, ErrorClass.RELEASED, *TOKENIZERS)
    if p.verdict is Verdict.WALKED_ON or prefill.error in refusals:
        return True
    if length.side not in (Side.PREFILL, Side.BOTH) or p.verdict in (Verdict.ADMITTED, Verdict.TRUNCATED):
        return False
    if step.api is not Api.GENERATE:
        # A text may have come out shorter than was meant, so that prefill served it.
        return decode.prompt_tokens is not None and decode.prompt_tokens >= length.prefill_limit
    return d.verdict is not Verdict.TRUNCATED


def _overall(side: Side, *halves: Verdict) -> Verdict:
    """The worst of the halves, as far as it means something on this side of the limits."""
    worst = min(halves, key=_WORST.index)
    if side is Side.ADMITTED:
        meant = (Verdict.EXPOSED, Verdict.WAITED, Verdict.ADMITTED)
        return worst if worst in meant else Verdict.INCONCLUSIVE
    if worst is Verdict.WALKED_ON:
        return Verdict.LATE if side in OVER else Verdict.INCONCLUSIVE
    # Of two halves, at least one must refuse: no verdict follows where neither did.
    return Verdict.INCONCLUSIVE if worst is Verdict.ADMITTED else worst
