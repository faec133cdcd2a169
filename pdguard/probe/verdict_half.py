"""What one server's answer says by itself: a verdict with its reason, before the other half is looked at."""

from __future__ import annotations

from dataclasses import dataclass

from pdguard.probe.interface import Api, End, ErrorClass, Length, Role, Seen, Side, Step, Verdict

AT_ONCE, TAKEN_IN = 5.0, 200_000
"""Seconds within which a refusal was given at the door, and tokens that add one more for taking them in.

Refusals on real engines took 2 to 340 ms for 1,500 tokens, and 3.5 s as the first request of a busy one; a
million tokens took up to 4.6 s to send and to read. Waits for the other half take the whole timeout, 300 s by
default: what comes before nine tenths of it has not waited for it."""

NEAR = 8
"""A count within so many tokens of a limit is what truncation leaves."""

NEARLY = 0.9
"""A request that lasted this share of the timeout has waited for it."""

OVER = (Side.BOTH, Side.DECODE, Side.PREFILL)
PASSED_ON = (ErrorClass.TRANSFER, ErrorClass.ABORTED, ErrorClass.CHECKSUM)
TOKENIZERS = (ErrorClass.OVER_CONTEXT, ErrorClass.OVER_TOTAL)


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict; `reason` is what the server did, without a subject (`refused at once: 400 in 0.02 s`)."""

    verdict: Verdict
    reason: str


def gave_output(seen: Seen) -> bool:
    """Whether a readable answer with output came, whatever became of the connection after it."""
    return seen.answered and seen.end is not End.UNREADABLE


def seconds(value: float) -> str:
    """`0.02 s`, `8.0 s`."""
    return f"{value:.2f} s" if value < 1 else f"{value:.1f} s"


def must_refuse(side: Side, role: Role) -> bool:
    """Whether a limit that was told refuses the step's length; a router answers for both halves."""
    if role is Role.PREFILL:
        return side in (Side.PREFILL, Side.BOTH)
    if role is Role.DECODE:
        return side in (Side.DECODE, Side.BOTH)
    return side in OVER


def limit_of(length: Length, role: Role) -> int:
    """The limit that decides for `role` at this length."""
    if role is Role.PREFILL or (role is Role.ROUTER and length.side is Side.PREFILL):
        return length.prefill_limit
    if role is Role.ROUTER and length.side is Side.BOTH:
        return max(length.prefill_limit, length.decode_limit)
    return length.decode_limit


def judge_half(step: Step, length: Length, role: Role, seen: Seen) -> Judged:
    """The verdict on one answer by itself. An answer to what must be refused is ADMITTED here."""
    if seen.error is not ErrorClass.NONE:
        return _error(step, length, role, seen)
    if gave_output(seen):
        return _answer(step, length, role, seen)
    if _cut_to_nothing(step, length, seen):
        # A prompt that fills the context leaves no room for an answer.
        counted = f"counting {seen.prompt_tokens:,} of {length.tokens:,} tokens"
        return Judged(
            Verdict.TRUNCATED, f"cut the prompt and answered without output, {counted}: {took(seen)}"
        )
    return _silence(length, role, seen)


def _cut_to_nothing(step: Step, length: Length, seen: Seen) -> bool:
    whole = seen.end is End.COMPLETE and seen.status == 200
    count = seen.prompt_tokens
    return whole and step.route.truncates and count is not None and 1 < count < length.tokens


def took(seen: Seen) -> str:
    """`400 in 0.02 s`, `400 within a stream after 8.0 s`."""
    hidden = seen.status == 200 and seen.inner_status is not None
    status = f"{seen.inner_status} within a stream" if hidden else str(seen.status)
    return f"{status} {'in' if seen.ended_after < 1 else 'after'} {seconds(seen.ended_after)}"


def waited_out(step: Step, seen: Seen) -> bool:
    """Whether it lasted as long as decode's timeout, where that is known."""
    waiting = step.route.waiting
    return waiting is not None and waiting > 0 and seen.ended_after >= NEARLY * waiting


def _error(step: Step, length: Length, role: Role, seen: Seen) -> Judged:
    error = seen.error
    # A router shows one answer: whose it was it may say.
    whose = f"{seen.error_side.value}'s" if seen.error_side is not None else "an engine's"
    routed = role is Role.ROUTER
    if error is ErrorClass.OVER_LIMIT:
        return _refusal(step, length, role, seen, whose)
    if error is ErrorClass.RELEASED and length.side in OVER:
        return _released(step, length, role, seen, whose)
    if error in TOKENIZERS:
        said = f"passed on a refusal by {whose} tokenizer" if routed else "was refused by the tokenizer"
        if length.side is Side.CONTEXT:
            return Judged(Verdict.TOKENIZER, f"{said}: {took(seen)}")
        return Judged(Verdict.INCONCLUSIVE, f"{said}: {took(seen)}; no limit was tested")
    if error in (ErrorClass.WAITED_DECODE, ErrorClass.WAITED_PREFILL):
        waited = "" if seen.said_seconds is None else f", its timeout of {seconds(seen.said_seconds)}"
        said = f"passed on the end of {whose} wait" if routed else "gave up waiting"
        return Judged(Verdict.WAITED, f"{said}: {took(seen)}{waited}")
    if routed and length.side in OVER and seen.status >= 500 and waited_out(step, seen):
        return Judged(
            Verdict.WAITED, f"passed on {whose} error only after a timeout: {took(seen)}, {error.value}"
        )
    if error in PASSED_ON and length.side in OVER:
        said = f"passed on that {whose} half was ended" if routed else "was ended"
        return Judged(Verdict.LATE, f"{said} after the handoff had begun: {took(seen)}, {error.value}")
    said = f"passed on {whose} error" if routed and seen.error_side is not None else "answered"
    return Judged(Verdict.INCONCLUSIVE, f"{said}: {took(seen)}, {error.value}")


def _refusal(step: Step, length: Length, role: Role, seen: Seen, whose: str) -> Judged:
    answer = took(seen) + ("" if seen.said_limit is None else f", naming a limit of {seen.said_limit:,}")
    routed = role is Role.ROUTER
    refused = f"passed on {whose} refusal" if routed else "refused"
    if length.side is Side.ADMITTED:
        of = " of" if routed else ""
        why = f"{refused}{of} {length.tokens:,} tokens, which a limit of {limit_of(length, role):,} admits"
        return Judged(Verdict.INCONCLUSIVE, f"{why}: {answer}")
    if length.side is Side.CONTEXT:
        why = f"{refused} by the admission limit, not by the tokenizer"
        return Judged(Verdict.INCONCLUSIVE, f"{why}: {answer}")
    if _at_once(step, length, seen):
        return Judged(Verdict.DOOR, f"{refused}: {answer}" if routed else f"refused at once: {answer}")
    # A router that joins both answers passes the refusal on when the other half's timeout has ended.
    joined = routed and step.route.waiting is None
    if joined or waited_out(step, seen):
        return Judged(Verdict.WAITED, f"{refused} only after the other half's wait: {answer}")
    return Judged(Verdict.LATE, f"{refused}, but not at once: {answer}")


def _released(step: Step, length: Length, role: Role, seen: Seen, whose: str) -> Judged:
    """The end of a half that would have waited, had the other one's door not ended it: it is refused."""
    routed = role is Role.ROUTER
    said = f"passed on that {whose} half was" if routed else "was"
    if _at_once(step, length, seen):
        return Judged(Verdict.DOOR, f"{said} ended at once by the other half's refusal: {took(seen)}")
    verdict = Verdict.WAITED if waited_out(step, seen) else Verdict.LATE
    return Judged(verdict, f"{said} ended by the other half's refusal, but not at once: {took(seen)}")


def _at_once(step: Step, length: Length, seen: Seen) -> bool:
    return seen.ended_after < AT_ONCE + length.tokens / TAKEN_IN and not waited_out(step, seen)


def _answer(step: Step, length: Length, role: Role, seen: Seen) -> Judged:
    sent, count, limit = length.tokens, seen.prompt_tokens, limit_of(length, role)
    must, text = must_refuse(length.side, role), step.api is not Api.GENERATE
    counted = "without a count of the prompt" if count is None else f"counting {count:,} of {sent:,} tokens"
    said = f"answered {counted}: {took(seen)}"
    if role is Role.ROUTER and length.side in (Side.PREFILL, Side.BOTH):
        return _routed(step, length, count, said)
    if role is Role.PREFILL and count == 1 and sent > 2:
        return Judged(Verdict.WALKED_ON, f"walked on with a stub in place of the prompt: {said}")
    if count is not None and count < sent:
        near = not text and min(abs(count - limit), abs(count - length.context)) <= NEAR
        if step.route.truncates or near:
            return Judged(Verdict.TRUNCATED, f"cut the prompt and {said}")
        if text and must and count < limit:
            return Judged(Verdict.INCONCLUSIVE, f"{said}; the text is short of the limit of {limit:,}")
        if role is Role.PREFILL and must and not text:
            return Judged(Verdict.WALKED_ON, f"walked on with a part of the prompt: {said}")
        if not must and not text:
            return Judged(Verdict.INCONCLUSIVE, f"did not take the whole prompt: {said}")
    if length.side is Side.CONTEXT:
        if step.route.truncates:
            return Judged(Verdict.TRUNCATED, f"took a prompt over the context: {said}")
        return Judged(Verdict.INCONCLUSIVE, f"took a prompt longer than the context that it told: {said}")
    if must and step.route.truncates and sent - limit <= NEAR:
        return Judged(Verdict.TRUNCATED, f"took a prompt over the limit, as it truncates: {said}")
    if must and count is None and (text or role is Role.PREFILL):
        return Judged(Verdict.INCONCLUSIVE, f"{said}; a limit of {limit:,} was told")
    if must:
        return Judged(Verdict.ADMITTED, f"{said}, though a limit of {limit:,} was told")
    return Judged(Verdict.ADMITTED, said)


def _routed(step: Step, length: Length, count: int | None, said: str) -> Judged:
    """An answer through a router to a prompt that every prefill behind it refuses, or cuts."""
    most = length.prefill_limit
    if count is None:
        return Judged(Verdict.INCONCLUSIVE, f"{said}; a limit of {most:,} was told")
    if count < most:
        if step.route.truncates and most - count <= NEAR:
            return Judged(Verdict.TRUNCATED, f"cut the prompt and {said}")
        return Judged(Verdict.INCONCLUSIVE, f"{said}; a router that cuts or answers by itself tells nothing")
    if step.route.prefill_cuts and count <= most:
        return Judged(Verdict.TRUNCATED, f"cut the prompt and {said}")
    # What lies beyond prefill's limit no prefill has written, whether it refuses such a prompt or cuts it.
    return Judged(Verdict.ADMITTED, f"{said}, though a limit of {most:,} was told")


def _silence(length: Length, role: Role, seen: Seen) -> Judged:
    after = seconds(seen.ended_after)
    if seen.end is End.CLOSED and seen.status < 400:
        if length.side in OVER:
            held = "gave no answer within" if role is Role.ROUTER else "was still held after"
            return Judged(Verdict.HELD, f"{held} {after}")
        return Judged(Verdict.INCONCLUSIVE, f"gave no answer within {after}; --wait gives it longer")
    what = {
        End.COMPLETE: f"answered {took(seen)}, without output and without a reason that is known",
        End.CLOSED: f"answered {seen.status}, and no reason came within {after}",
    }.get(seen.end, f"gave no answer that counts: {seen.end.value} after {after}")
    return Judged(Verdict.INCONCLUSIVE, f"{what}{f' ({seen.trouble})' if seen.trouble else ''}")
