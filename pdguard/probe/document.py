"""`pdguard.probe/1`: the result of a probe as JSON. It holds counts, times and words, never a body.

Nothing is written but what is named here, field by field: a new field of an answer does not reach the
document by itself. The same result gives the same bytes.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from importlib.resources import files
from typing import Any

from pdguard import __version__
from pdguard.facts.observed import EngineMark, as_entry, as_mark
from pdguard.facts.observed_files import PROBE_SCHEMA as SCHEMA
from pdguard.probe.interface import (
    HalfResult,
    LeftOut,
    Measure,
    Plan,
    ProbeResult,
    Release,
    Seen,
    Step,
    StepResult,
)
from pdguard.probe.observations import observations

MAX_DIGEST = 16
MAX_TEXT = 300
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def probe_schema() -> dict[str, Any]:
    """The published JSON Schema (draft 2020-12) of the document; a new dictionary at every call."""
    text = (files("pdguard.probe") / "probe.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def as_json(result: ProbeResult) -> str:
    """The document, indented by one, with a newline at its end."""
    document = {
        "schema": SCHEMA,
        "pdguard": __version__,
        "cluster": _text(result.cluster),
        "run": _text(result.run_id),
        "started_at": result.started_at,
        "ended_at": result.ended_at,
        "stopped": _text(result.stopped),
        "exposed": result.exposed,
        "engines": [_mark(mark) for mark in result.plan.engines],
        "plan": _plan(result.plan),
        "spent": {
            "sent": result.sent,
            "requests": result.requests,
            "tokens": result.tokens,
            "seconds": _number(result.seconds),
        },
        "results": [_result(r) for r in result.results],
        "observations": [as_entry(o) for o in observations(result)],
    }
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _mark(mark: EngineMark) -> dict[str, Any]:
    version = None if mark.version is None else _text(mark.version)
    return as_mark(replace(mark, name=_text(mark.name), version=version))


def _plan(plan: Plan) -> dict[str, Any]:
    budget = plan.budget
    return {
        "budget": {
            "requests": budget.requests,
            "tokens": budget.tokens,
            "seconds": _number(budget.seconds),
            "wait": _number(budget.wait),
        },
        "canary": plan.canary,
        "consents": [_text(c) for c in plan.consents],
        "steps": [_step(s) for s in plan.steps],
        "left_out": [_left_out(one) for one in plan.left_out],
    }


def _left_out(one: LeftOut) -> dict[str, Any]:
    return {"what": _text(one.what), "why": _text(one.why), "todo": _text(one.todo)}


def _step(step: Step) -> dict[str, Any]:
    subject, name = step.route.subject
    length = step.length
    return {
        "number": step.number,
        "kind": step.kind.value,
        "subject": subject,
        "name": _text(name),
        "prefills": [_text(n) for n in step.route.prefills],
        "decodes": [_text(n) for n in step.route.decodes],
        "api": step.api.value,
        "stream": step.stream,
        "danger": step.danger.value,
        "length": None
        if length is None
        else {
            "side": length.side.value,
            "tokens": length.tokens,
            "prefill_limit": length.prefill_limit,
            "decode_limit": length.decode_limit,
            "context": length.context,
            "new_tokens": length.new_tokens,
            "rank": length.rank,
        },
        "worst_case": {
            "requests": step.requests,
            "tokens": step.tokens,
            "seconds": _number(step.seconds),
            "held_tokens": step.held_tokens,
            "held_share": _number(step.held_share),
        },
    }


def _result(result: StepResult) -> dict[str, Any]:
    return {
        "step": result.step.number,
        "kind": result.step.kind.value,
        "name": _text(result.step.route.subject[1]),
        "verdict": result.verdict.value,
        "reason": _text(result.reason),
        "halves": [_half(h) for h in result.halves],
        "measures": [_measure(m) for m in result.measures],
    }


def _half(half: HalfResult) -> dict[str, Any]:
    return {
        "name": _text(half.name),
        "role": half.role.value,
        "verdict": half.verdict.value,
        "reason": _text(half.reason),
        "answer": None if half.seen is None else _seen(half.seen),
        "release": None if half.release is None else _release(half.release),
    }


def _seen(seen: Seen) -> dict[str, Any]:
    return {
        "end": seen.end.value,
        "ended_after": _number(seen.ended_after),
        "status": seen.status,
        "inner_status": seen.inner_status,
        "headers_after": _number(seen.headers_after),
        "first_output_after": _number(seen.first_output_after),
        "error": seen.error.value,
        "error_side": None if seen.error_side is None else seen.error_side.value,
        "said_tokens": seen.said_tokens,
        "said_limit": seen.said_limit,
        "said_seconds": _number(seen.said_seconds),
        "prompt_tokens": seen.prompt_tokens,
        "completion_tokens": seen.completion_tokens,
        "finish": seen.finish.value,
        "outputs": seen.outputs,
        "digest": seen.digest[:MAX_DIGEST],
        "received": seen.received,
        "events": seen.events,
        "trouble": _text(seen.trouble),
    }


def _release(release: Release) -> dict[str, Any]:
    return {"released": release.released, "after": _number(release.after), "how": _text(release.how)}


def _measure(measure: Measure) -> dict[str, Any]:
    value = measure.value
    if isinstance(value, str):
        value = _text(value)
    elif isinstance(value, float):
        return {"name": _text(measure.name), "value": _number(value), "unit": _text(measure.unit)}
    return {"name": _text(measure.name), "value": value, "unit": _text(measure.unit)}


def _number(value: float | None) -> float | None:
    """Milliseconds are as fine as anything here is measured; JSON has no infinity."""
    return None if value is None or not math.isfinite(value) else round(value, 3)


def _text(text: str) -> str:
    """A sentence of our own or a name: bounded, and harmless on a terminal."""
    return _UNSAFE.sub("\ufffd", text[:MAX_TEXT])
