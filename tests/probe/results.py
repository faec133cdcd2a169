"""Results of probes, put together from what real engines answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pdguard.probe.interface import (
    Budget,
    Danger,
    End,
    ErrorClass,
    Finish,
    HalfResult,
    Kind,
    Length,
    Measure,
    Plan,
    ProbeResult,
    Release,
    Role,
    Route,
    Seen,
    Side,
    Step,
    StepResult,
    Target,
    Verdict,
)

AT = "2026-11-30T12:00:00Z"
PREFILL = Target("p0", Role.PREFILL, "http://10.0.0.1:30000", key="a key")
DECODE = Target("d0", Role.DECODE, "http://10.0.0.2:30000", key="a key")
ROUTER = Target("r0", Role.ROUTER, "http://10.0.0.9:8000")
DIRECT = Route(("p0",), ("d0",), prefill=PREFILL, decode=DECODE, bootstrap_host="10.0.0.1")
THROUGH = Route(("p0",), ("d0",), router=ROUTER, tries=5)

REFUSED = Seen(
    End.COMPLETE,
    0.01,
    400,
    headers_after=0.01,
    error=ErrorClass.OVER_LIMIT,
    said_tokens=1500,
    said_limit=1018,
    received=180,
)
TIMED_OUT = Seen(End.COMPLETE, 8.2, 500, headers_after=8.2, error=ErrorClass.WAITED_DECODE, said_seconds=8.0)
STUB = Seen(End.COMPLETE, 0.2, 200, prompt_tokens=1, completion_tokens=4, finish=Finish.LENGTH, outputs=4)
WRONG = Seen(
    End.COMPLETE,
    0.3,
    200,
    headers_after=0.1,
    first_output_after=0.2,
    prompt_tokens=1500,
    completion_tokens=4,
    finish=Finish.LENGTH,
    outputs=4,
    digest="0123456789abcdef" * 4,
    marks=(1, 2, 3, 4),
    received=400,
)
CLOSED = Seen(End.CLOSED, 20.0)


def step(
    number: int,
    kind: Kind = Kind.OVER_POOL,
    side: Side | None = Side.PREFILL,
    route: Route = DIRECT,
    stream: bool = False,
) -> Step:
    """A step of 1500 tokens on `side`."""
    length = None if side is None else Length(side, 1500, 1018, 4090, 4096)
    return Step(number, kind, route, Danger.EXPOSES, 2, 3000, 20.0, 1500, 0.4, length=length, stream=stream)


def half(role: Role, verdict: Verdict, seen: Seen | None = None) -> HalfResult:
    """One half of the pair p0→d0, or the router r0."""
    name = {Role.PREFILL: "p0", Role.DECODE: "d0", Role.ROUTER: "r0"}[role]
    release = Release(True, 0.4, "/v1/loads") if verdict is Verdict.HELD else None
    return HalfResult(name, role, verdict, "so it answered", seen, release)


def over_pool(
    number: int, side: Side, whole: Verdict, prefill: Verdict, decode: Verdict, seen: Seen | None = None
) -> StepResult:
    """A direct over-pool step with the verdicts on both halves; `seen` is prefill's answer."""
    halves = (half(Role.PREFILL, prefill, seen), half(Role.DECODE, decode))
    return StepResult(step(number, side=side), whole, "as seen on real engines", halves)


def probed(*results: StepResult, more: Sequence[Step] = (), at: str = AT) -> ProbeResult:
    """A run of these results; `more` were planned and not done."""
    plan = Plan((*(r.step for r in results), *more), (), Budget(), canary=True)
    return ProbeResult("prod", "3fa1", at, at, plan, results, 12, 9000, 21.5, "", sent=4)


def exposed_019() -> ProbeResult:
    """0.5.19, pools of 1024 and 4096, direct, through sglang-router 0.3.2 and an abort, as the lab saw it."""
    wrong = StepResult(
        step(1),
        Verdict.EXPOSED,
        "decode answered 200 for a prompt that prefill never computed",
        (half(Role.PREFILL, Verdict.WALKED_ON, STUB), half(Role.DECODE, Verdict.EXPOSED, WRONG)),
    )
    router = StepResult(
        step(2, route=THROUGH), Verdict.EXPOSED, "200", (half(Role.ROUTER, Verdict.EXPOSED, WRONG),)
    )
    unpaired = StepResult(
        step(3, Kind.PAIRING, Side.PREFILL, THROUGH), Verdict.UNPAIRED, "decode waited on for 8 s"
    )
    steady = StepResult(
        step(4, Kind.CANARY, None, THROUGH),
        Verdict.STEADY,
        "9 answers were the same as before",
        measures=(Measure("answers compared after", 5), Measure("share", 0.25)),
    )
    return probed(wrong, router, unpaired, steady)


def recorded() -> ProbeResult:
    """examples/probe.json: the same engines with the run as the runner orders it, stopped by the exposure."""
    first = StepResult(
        step(1, Kind.PAIRING, Side.PREFILL, THROUGH), Verdict.UNPAIRED, "decode waited on for 8.2 s"
    )
    wrong = StepResult(
        step(2),
        Verdict.EXPOSED,
        "decode answered 1,500 prompt tokens of which prefill had computed 1",
        (half(Role.PREFILL, Verdict.WALKED_ON, STUB), half(Role.DECODE, Verdict.EXPOSED, WRONG)),
        (Measure("latency", 0.3, "s"),),
    )
    return replace(
        probed(first, wrong, more=[step(3, Kind.STAGING)]),
        stopped="an exposure was observed in step 2",
    )
