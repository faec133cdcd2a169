"""Before an answer through a router is called an exposure: are prefill's limits still what they were?

Through a router only one answer is seen, and what it means rests on the limits that the plan was made by. An
engine that was started again since may serve the prompt quite rightly.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

from pdguard.facts._fetch import Failed
from pdguard.probe.context import Context
from pdguard.probe.interface import Role, StepResult, Target, Verdict

PATHS = ("/server_info", "/get_server_info")
FIELD = "max_req_input_len"


async def confirmed(context: Context, result: StepResult) -> StepResult:
    """`result`, or an inconclusive one where a limit is another now or cannot be read again."""
    route = result.step.route
    if result.verdict is not Verdict.EXPOSED or route.router is None:
        return result
    prefills = [t for t in route.engines if t.role is Role.PREFILL]
    limits = await asyncio.gather(*(_limit(context, target) for target in prefills))
    planned = dict(route.limits)
    for target, limit in zip(prefills, limits, strict=True):
        told = planned.get(target.name)
        if told is not None and limit != told:
            now = "cannot be read again" if limit is None else f"is {limit:,} now, and was {told:,}"
            why = f"the limit of {target.name} {now}: {result.reason}"
            halves = tuple(replace(half, verdict=Verdict.INCONCLUSIVE) for half in result.halves)
            return replace(result, verdict=Verdict.INCONCLUSIVE, reason=why, halves=halves)
    return result


async def _limit(context: Context, target: Target) -> int | None:
    for path in PATHS:
        answer = await context.fetcher.get(target.base, path, key=target.key, tls=target.tls)
        if isinstance(answer, Failed):
            continue
        try:
            value = json.loads(answer.body)[FIELD]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return value if type(value) is int else None
    return None
