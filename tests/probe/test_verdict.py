"""Verdicts: every row that was seen on real engines and routers, and that nothing less is called exposed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdguard.probe.interface import (
    Api,
    Danger,
    End,
    ErrorClass,
    Finish,
    Kind,
    Length,
    Role,
    Route,
    Seen,
    Side,
    Step,
    Target,
    Verdict,
)
from pdguard.probe.verdict import judge_direct, judge_router

SENT = 1500
POOLS = {
    "1024/4096": (Side.PREFILL, 1018, 4090),
    "1024/1024": (Side.BOTH, 1018, 1018),
    "4096/1024": (Side.DECODE, 4090, 1018),
}


def step(
    pools: str,
    *,
    waiting: float | None = 8.0,
    routed: bool = False,
    stream: bool = False,
    api: Api = Api.GENERATE,
    truncates: bool = False,
    tokens: int = SENT,
    side: Side | None = None,
) -> Step:
    own, p, d = POOLS[pools]
    router = Target("r0", Role.ROUTER, "http://r") if routed else None
    tries = 5 if routed and not stream else 1
    route = Route(("p0",), ("d0",), router=router, tries=tries, waiting=waiting, truncates=truncates)
    length = Length(side or own, tokens, p, d, 4096)
    return Step(1, Kind.OVER_POOL, route, Danger.HOLDS, 2, 3000, 30.0, 1500, None, length, api, stream)


def answer(count: int | None, after: float = 0.03, outputs: int = 4) -> Seen:
    return Seen(
        End.COMPLETE,
        after,
        200,
        after,
        after,
        prompt_tokens=count,
        completion_tokens=outputs,
        finish=Finish.LENGTH,
        outputs=outputs,
        digest="ab",
    )


def refusal(after: float = 0.007, *, stream: bool = False, side: Role | None = None) -> Seen:
    status, inner = (200, 400) if stream else (400, None)
    return Seen(
        End.COMPLETE,
        after,
        status,
        0.002 if stream else after,
        error=ErrorClass.OVER_LIMIT,
        inner_status=inner,
        error_side=side,
        said_tokens=SENT,
        said_limit=1018,
    )


def released(after: float = 0.011, *, stream: bool = False, side: Role | None = None) -> Seen:
    """A half that the other one's door has ended."""
    status, inner = (200, 400) if stream else (400, None)
    return replace(
        refusal(after, stream=stream, side=side),
        status=status,
        inner_status=inner,
        error=ErrorClass.RELEASED,
        said_tokens=None,
        said_limit=None,
    )


def gave_up(
    role: Role, said: float, *, after: float | None = None, stream: bool = False, side: Role | None = None
) -> Seen:
    error = ErrorClass.WAITED_PREFILL if role is Role.PREFILL else ErrorClass.WAITED_DECODE
    status, inner = (200, 500) if stream else (500, None)
    return Seen(
        End.COMPLETE,
        said if after is None else after,
        status,
        0.002 if stream else after,
        error=error,
        inner_status=inner,
        error_side=side,
        said_seconds=said,
    )


def closed(after: float, headers: float | None = None) -> Seen:
    return Seen(End.CLOSED, after, 0 if headers is None else 200, headers)


V = Verdict
WAITED_DECODE = gave_up(Role.DECODE, 8.0, after=8.01)
WAITED_PREFILL = gave_up(Role.PREFILL, 8.0, after=8.007)
NEWEST = ("0.5.21", "0.5.22", "0.5.23")

# What the halves answered: NOTES, table by version and pools.
DIRECT = [
    ("0.5.19", "1024/4096", answer(1, 0.026, 1), answer(1500, 0.025), V.WALKED_ON, V.EXPOSED, V.EXPOSED),
    ("0.5.19", "1024/1024", answer(1, 0.1, 1), refusal(0.107), V.WALKED_ON, V.LATE, V.LATE),
    ("0.5.19", "4096/1024", answer(1500, 0.069, 1), refusal(0.067), V.ADMITTED, V.LATE, V.LATE),
    *(
        ("0.5.20", pools, refusal(0.017), gave_up(Role.DECODE, 25.0), V.DOOR, V.WAITED, V.WAITED)
        for pools in ("1024/1024", "1024/4096")
    ),
    ("0.5.20", "1024/1024", refusal(3.468), gave_up(Role.DECODE, 303.46), V.DOOR, V.WAITED, V.WAITED),
    ("0.5.20", "4096/1024", answer(1500, 0.064, 1), refusal(0.063), V.ADMITTED, V.LATE, V.LATE),
    *((v, "1024/1024", refusal(), refusal(0.005), V.DOOR, V.DOOR, V.DOOR) for v in NEWEST),
    ("0.5.21", "1024/4096", refusal(), gave_up(Role.DECODE, 25.0), V.DOOR, V.WAITED, V.WAITED),
    ("0.5.22", "1024/4096", refusal(), WAITED_DECODE, V.DOOR, V.WAITED, V.WAITED),
    ("0.5.23", "1024/4096", refusal(0.013), WAITED_DECODE, V.DOOR, V.WAITED, V.WAITED),
    ("0.5.22", "1024/4096", refusal(), closed(5.0), V.DOOR, V.HELD, V.HELD),
    ("0.5.21", "4096/1024", gave_up(Role.PREFILL, 25.0), refusal(0.005), V.WAITED, V.DOOR, V.WAITED),
    ("0.5.22", "4096/1024", WAITED_PREFILL, refusal(0.005), V.WAITED, V.DOOR, V.WAITED),
    ("0.5.23", "4096/1024", WAITED_PREFILL, refusal(0.006), V.WAITED, V.DOOR, V.WAITED),
    ("0.5.23", "4096/1024", closed(5.0), refusal(0.006), V.HELD, V.DOOR, V.HELD),
    ("hardened", "1024/4096", refusal(0.008), released(0.011), V.DOOR, V.DOOR, V.DOOR),
    ("hardened", "4096/1024", released(0.01), refusal(0.007), V.DOOR, V.DOOR, V.DOOR),
    ("hardened prefill", "4096/1024", released(0.01), answer(1500), V.DOOR, V.EXPOSED, V.EXPOSED),
]


@pytest.mark.parametrize(("version", "pools", "prefill", "decode", "p", "d", "overall"), DIRECT)
def test_direct(
    version: str, pools: str, prefill: Seen, decode: Seen, p: Verdict, d: Verdict, overall: Verdict
) -> None:
    waiting = decode.said_seconds or prefill.said_seconds or 300.0
    for known in (waiting, None):
        result = judge_direct(step(pools, waiting=known), prefill, decode)
        assert [h.verdict for h in result.halves] == [p, d]
        assert result.verdict is overall
        assert [(h.name, h.role) for h in result.halves] == [("p0", Role.PREFILL), ("d0", Role.DECODE)]
        assert [h.seen for h in result.halves] == [prefill, decode]


STREAMED = [
    ("0.5.19", Api.GENERATE, answer(1, outputs=1), answer(1500), V.EXPOSED),
    ("0.5.19", Api.COMPLETIONS, answer(1, outputs=1), answer(1500), V.EXPOSED),
    ("0.5.20", Api.GENERATE, refusal(stream=True), gave_up(Role.DECODE, 8.0, stream=True), V.WAITED),
    ("0.5.22", Api.COMPLETIONS, refusal(stream=True), gave_up(Role.DECODE, 8.0, stream=True), V.WAITED),
    # /generate sends its headers at once, OpenAI's paths send nothing: neither is an answer.
    ("0.5.22", Api.GENERATE, refusal(stream=True), closed(5.0, headers=0.002), V.HELD),
    ("0.5.22", Api.COMPLETIONS, refusal(stream=True), closed(5.0), V.HELD),
    ("hardened", Api.GENERATE, refusal(stream=True), released(0.03, stream=True), V.DOOR),
]


@pytest.mark.parametrize(("version", "api", "prefill", "decode", "overall"), STREAMED)
def test_direct_streamed(version: str, api: Api, prefill: Seen, decode: Seen, overall: Verdict) -> None:
    assert judge_direct(step("1024/4096", stream=True, api=api), prefill, decode).verdict is overall


WAITED_JOIN = refusal(8.007, side=Role.DECODE)
ROUTED = [
    ("0.5.19", "1024/4096", 8.0, answer(1500, 0.031), V.EXPOSED),
    ("0.5.19", "4096/1024", 8.0, refusal(0.165, side=Role.DECODE), V.DOOR),
    ("0.5.20", "1024/1024", 25.0, closed(45.042), V.HELD),
    ("0.5.20", "1024/4096", 25.0, closed(45.045), V.HELD),
    ("0.5.20", "4096/1024", 25.0, refusal(0.334, side=Role.DECODE), V.DOOR),
    ("0.5.21", "1024/1024", 25.0, refusal(0.01, side=Role.DECODE), V.DOOR),
    ("0.5.21", "1024/4096", 25.0, closed(45.046), V.HELD),
    ("0.5.22", "1024/4096", 8.0, gave_up(Role.DECODE, 8.0, after=40.501, side=Role.DECODE), V.WAITED),
    ("0.5.23", "1024/4096", 8.0, gave_up(Role.DECODE, 8.0, after=40.443, side=Role.DECODE), V.WAITED),
    ("0.5.22", "4096/1024", 8.0, WAITED_JOIN, V.WAITED),
    ("0.5.22", "4096/1024", None, WAITED_JOIN, V.WAITED),
    ("smg 1.12", "1024/4096", 25.0, refusal(0.01, side=Role.PREFILL), V.DOOR),
    ("smg 1.11", "1024/4096", 25.0, closed(30.0), V.HELD),
    ("hardened", "1024/4096", 8.0, released(0.012, side=Role.DECODE), V.DOOR),
    ("hardened", "4096/1024", 8.0, refusal(0.01, side=Role.DECODE), V.DOOR),
]


@pytest.mark.parametrize(("version", "pools", "waiting", "seen", "verdict"), ROUTED)
def test_through_a_router(
    version: str, pools: str, waiting: float | None, seen: Seen, verdict: Verdict
) -> None:
    result = judge_router(step(pools, waiting=waiting, routed=True), seen)
    assert result.verdict is verdict
    assert [(h.name, h.role, h.verdict) for h in result.halves] == [("r0", Role.ROUTER, verdict)]
    if seen.error_side is not None:
        assert f"{seen.error_side.value}'s" in result.reason


ROUTED_STREAM = [
    (Api.GENERATE, answer(1500), V.EXPOSED),
    (Api.COMPLETIONS, answer(1500), V.EXPOSED),
    (Api.GENERATE, gave_up(Role.DECODE, 8.0, stream=True), V.WAITED),
    (Api.GENERATE, closed(5.0, headers=0.011), V.HELD),
    (Api.COMPLETIONS, closed(5.0), V.HELD),
]


@pytest.mark.parametrize(("api", "seen", "verdict"), ROUTED_STREAM)
def test_through_a_router_streamed(api: Api, seen: Seen, verdict: Verdict) -> None:
    result = judge_router(step("1024/4096", routed=True, stream=True, api=api), seen)
    assert result.verdict is verdict
    assert "tries" not in result.reason


def test_reasons_are_sentences_with_figures() -> None:
    held = judge_direct(step("1024/4096"), refusal(0.017), closed(5.0))
    assert held.reason == (
        "prefill refused at once: 400 in 0.02 s, naming a limit of 1,018; decode was still held after 5.0 s"
    )
    exposed = judge_direct(step("1024/4096"), answer(1, 0.026, 1), answer(1500, 0.025))
    assert exposed.reason == (
        "prefill walked on with a stub in place of the prompt: answered counting 1 of 1,500 tokens: "
        "200 in 0.03 s; decode answered counting 1,500 of 1,500 tokens: 200 in 0.03 s; "
        "prefill had not served this prompt"
    )
    waited = judge_router(
        step("1024/4096", routed=True), gave_up(Role.DECODE, 8.0, after=40.5, side=Role.DECODE)
    )
    assert waited.reason == (
        "the router passed on the end of decode's wait: 500 after 40.5 s, its timeout of 8.0 s "
        "(the router tries up to 5 times)"
    )


OVER_CONTEXT = Seen(End.COMPLETE, 0.004, 400, error=ErrorClass.OVER_CONTEXT, said_tokens=5000)


def test_the_control_is_refused_by_the_tokenizer() -> None:
    control = step("1024/4096", side=Side.CONTEXT, tokens=4100)
    assert judge_direct(control, OVER_CONTEXT, OVER_CONTEXT).verdict is V.TOKENIZER
    assert judge_router(control, OVER_CONTEXT).verdict is V.TOKENIZER
    assert judge_direct(control, refusal(), refusal()).verdict is V.INCONCLUSIVE
    assert judge_direct(control, answer(4100), answer(4100)).verdict is V.INCONCLUSIVE
    assert judge_direct(control, closed(5.0), closed(5.0)).verdict is V.INCONCLUSIVE


def test_at_a_limit_the_tokenizer_tests_nothing() -> None:
    result = judge_direct(step("1024/1024"), OVER_CONTEXT, OVER_CONTEXT)
    assert result.verdict is V.INCONCLUSIVE
    assert "no limit was tested" in result.reason


def admitted(routed: bool = False) -> Step:
    return step("1024/4096", side=Side.ADMITTED, tokens=1017, routed=routed)


def test_what_is_just_admitted() -> None:
    assert judge_direct(admitted(), answer(1017), answer(1017)).verdict is V.ADMITTED
    assert judge_router(admitted(routed=True), answer(1017)).verdict is V.ADMITTED
    assert judge_direct(admitted(), refusal(), closed(5.0)).verdict is V.INCONCLUSIVE
    assert judge_direct(admitted(), closed(5.0), closed(5.0)).verdict is V.INCONCLUSIVE
    assert judge_direct(admitted(), WAITED_PREFILL, closed(25.0)).verdict is V.WAITED
    assert judge_router(admitted(routed=True), closed(5.0)).verdict is V.INCONCLUSIVE
    assert judge_router(admitted(routed=True), refusal()).verdict is V.INCONCLUSIVE
    # A stub where a prompt was to be admitted: the fault itself, at a limit other than told.
    assert judge_direct(admitted(), answer(1), answer(1017)).verdict is V.EXPOSED
    assert judge_direct(admitted(), answer(1), closed(5.0)).verdict is V.INCONCLUSIVE


def test_limits_other_than_told_prove_nothing() -> None:
    for pools in POOLS:
        result = judge_direct(step(pools), answer(1500), answer(1500))
        assert result.verdict is V.INCONCLUSIVE
        assert "the limits are other than told" in result.reason
    assert judge_router(step("4096/1024", routed=True), answer(1500)).verdict is V.INCONCLUSIVE


def test_an_answer_that_every_engine_should_have_refused() -> None:
    assert judge_router(step("1024/1024", routed=True), answer(1500)).verdict is V.EXPOSED


@pytest.mark.parametrize(
    "prefill", [refusal(), OVER_CONTEXT, closed(5.0), answer(None), Seen(End.NO_CONNECTION, 0.1)]
)
def test_an_answer_without_a_prefill_that_served_it(prefill: Seen) -> None:
    assert judge_direct(step("1024/4096"), prefill, answer(1500)).verdict is V.EXPOSED


def test_truncation_by_configuration() -> None:
    one = step("1024/4096", truncates=True)
    shorter = judge_direct(one, answer(1018, outputs=1), answer(1000))
    assert shorter.verdict is V.TRUNCATED
    assert "the halves cut to other lengths" in shorter.reason
    same = judge_direct(step("1024/1024", truncates=True), answer(1018), answer(1018))
    assert same.verdict is V.TRUNCATED
    assert "other lengths" not in same.reason
    # Exactly at the limit nothing is left to cut.
    whole = step("1024/1024", truncates=True, tokens=1018)
    assert judge_direct(whole, answer(1018), answer(1018)).verdict is V.TRUNCATED
    # Told or not: what is left has the length of the limit.
    assert judge_direct(step("1024/1024"), answer(1018), answer(1018)).verdict is V.TRUNCATED
    control = step("1024/4096", truncates=True, side=Side.CONTEXT, tokens=4100)
    assert judge_direct(control, answer(1018), answer(1018)).verdict is V.TRUNCATED


def test_a_prefill_that_cuts_shorter_than_decode_reads_exposes() -> None:
    """As real pairs of 0.5.22 and 0.5.23 do, whose answers then changed with other traffic."""
    one = step("1024/4096", truncates=True)
    cut = judge_direct(one, answer(1018, outputs=1), answer(1500))
    assert cut.verdict is V.EXPOSED
    assert "prefill had not served 482 tokens of it" in cut.reason
    control = step("1024/4096", truncates=True, side=Side.CONTEXT, tokens=4100)
    assert judge_direct(control, answer(1018), answer(4090)).verdict is V.EXPOSED
    routed = step("1024/4096", routed=True, truncates=True)
    cuts = replace(routed, route=replace(routed.route, prefill_cuts=True))
    assert judge_router(cuts, answer(1500)).verdict is V.EXPOSED
    assert judge_router(cuts, answer(1018)).verdict is V.TRUNCATED
    # Only decode cuts: prefill refuses, whatever was cut later.
    assert judge_router(routed, answer(1500)).verdict is V.EXPOSED


def test_a_prompt_that_is_cut_to_the_whole_context_leaves_no_room_for_an_answer() -> None:
    """As real pairs of 0.5.22 and 0.5.23 answered: 200, prompt_tokens at the limit, no token."""
    empty = answer(1018, outputs=0)
    for side in (Side.CONTEXT, Side.BOTH):
        one = step("1024/1024", truncates=True, side=side, tokens=4100)
        assert judge_direct(one, answer(1018, outputs=1), empty).verdict is V.TRUNCATED
        routed = step("1024/1024", truncates=True, side=side, tokens=4100, routed=True)
        assert judge_router(routed, empty).verdict is V.TRUNCATED
        assert judge_router(replace(routed, route=replace(routed.route, truncates=False)), empty).verdict is (
            V.INCONCLUSIVE
        )


@pytest.mark.parametrize("count", [None, 1, 500, 1017])
@pytest.mark.parametrize("pools", ["1024/4096", "1024/1024"])
def test_a_router_that_cuts_or_answers_by_itself_proves_nothing(pools: str, count: int | None) -> None:
    assert judge_router(step(pools, routed=True), answer(count)).verdict is V.INCONCLUSIVE


def test_a_stub_is_no_truncation() -> None:
    one = step("1024/4096", truncates=True)
    assert judge_direct(one, answer(1), answer(1500)).verdict is V.EXPOSED


def test_a_text_may_be_shorter_than_was_meant() -> None:
    text = step("1024/4096", api=Api.CHAT, tokens=1024)
    assert judge_direct(text, answer(1010), answer(1010)).verdict is V.INCONCLUSIVE
    assert judge_direct(text, answer(None), answer(None)).verdict is V.INCONCLUSIVE
    assert judge_direct(text, refusal(), answer(None)).verdict is V.EXPOSED
    routed = replace(text, route=step("1024/4096", routed=True).route)
    assert judge_router(routed, answer(1010)).verdict is V.INCONCLUSIVE
    assert judge_router(routed, answer(None)).verdict is V.INCONCLUSIVE
    assert judge_router(routed, answer(1024)).verdict is V.EXPOSED


@pytest.mark.parametrize(
    "seen",
    [
        Seen(End.COMPLETE, 0.01, 401, error=ErrorClass.UNAUTHORIZED),
        Seen(End.COMPLETE, 0.01, 422, error=ErrorClass.NOT_TAKEN),
        Seen(End.COMPLETE, 0.01, 503, error=ErrorClass.UNAVAILABLE),
        Seen(End.COMPLETE, 0.01, 500, error=ErrorClass.RANK_CONFLICT),
        Seen(End.COMPLETE, 0.01, 500, error=ErrorClass.OTHER),
        Seen(End.COMPLETE, 0.01, 200),
        Seen(End.COMPLETE, 0.01, 502),
        Seen(End.CLOSED, 5.0, 400, 0.01),
        Seen(End.NO_CONNECTION, 0.01, trouble="the connection was refused"),
        Seen(End.BROKEN, 0.01),
        Seen(End.UNREADABLE, 0.01, 200, outputs=4),
        Seen(End.TOO_LARGE, 0.01, 200),
    ],
)
def test_what_tells_nothing(seen: Seen) -> None:
    for verdict in (
        judge_router(step("1024/4096", routed=True), seen),
        judge_direct(step("1024/4096"), seen, seen),
    ):
        assert verdict.verdict is V.INCONCLUSIVE
        assert seen.trouble in verdict.reason


def test_failures_after_the_handoff_are_late() -> None:
    for error in (ErrorClass.TRANSFER, ErrorClass.ABORTED, ErrorClass.CHECKSUM):
        seen = Seen(End.COMPLETE, 0.4, 500, error=error)
        assert judge_direct(step("1024/4096"), refusal(), seen).verdict is V.LATE
        late = replace(seen, ended_after=40.0)
        assert judge_router(step("1024/4096", routed=True), late).verdict is V.WAITED


def test_a_refusal_between_the_door_and_the_timeout_is_late() -> None:
    assert judge_direct(step("1024/1024", waiting=300.0), refusal(20.0), refusal()).verdict is V.LATE
    assert judge_router(step("1024/1024", waiting=300.0, routed=True), refusal(20.0)).verdict is V.LATE
    assert judge_direct(step("1024/1024", waiting=8.0), refusal(4.9), refusal()).verdict is V.DOOR
    assert judge_direct(step("1024/1024", waiting=8.0), refusal(5.1), refusal()).verdict is V.LATE
    # A short timeout ends "at once" sooner.
    assert judge_direct(step("1024/1024", waiting=2.0), refusal(1.7), refusal()).verdict is V.DOOR
    assert judge_direct(step("1024/1024", waiting=2.0), refusal(1.9), refusal()).verdict is V.WAITED


def test_a_half_that_is_ended_by_the_other_one_is_judged_by_when() -> None:
    for pools in ("1024/4096", "4096/1024"):
        for after, verdict in ((4.9, V.DOOR), (20.0, V.LATE), (299.0, V.WAITED)):
            halves = (refusal(), released(after))
            if pools == "4096/1024":
                halves = (released(after), refusal())
            result = judge_direct(step(pools, waiting=300.0), *halves)
            assert result.verdict is verdict
            assert "the other half's refusal" in result.reason
            routed = judge_router(step(pools, waiting=300.0, routed=True), released(after))
            assert routed.verdict is verdict
    for side in (Side.ADMITTED, Side.CONTEXT):
        one = step("1024/4096", side=side)
        assert judge_direct(one, refusal(), released()).verdict is V.INCONCLUSIVE


def test_a_long_prompt_takes_time_to_be_taken_in() -> None:
    one = step("1024/1024", waiting=None)
    assert one.length is not None
    long = replace(one, length=replace(one.length, tokens=1_000_000, context=2_000_000))
    assert judge_direct(long, refusal(9.0), refusal(9.0)).verdict is V.DOOR
    assert judge_direct(one, refusal(9.0), refusal(9.0)).verdict is V.LATE


def test_a_step_without_a_length() -> None:
    bare = replace(step("1024/4096"), length=None)
    assert judge_direct(bare, refusal(), refusal()).verdict is V.INCONCLUSIVE
    assert judge_router(bare, refusal()).verdict is V.INCONCLUSIVE


figures = st.none() | st.floats(0, 1000)
counts = st.none() | st.sampled_from([0, 1, 2, 1010, 1017, 1018, 1500, 4090, 4096, 10**9])
anything_seen = st.builds(
    Seen,
    end=st.sampled_from(End),
    ended_after=st.floats(0, 1000),
    status=st.sampled_from([0, 200, 400, 401, 404, 422, 499, 500, 503]),
    headers_after=figures,
    first_output_after=figures,
    error=st.sampled_from(ErrorClass) | st.just(ErrorClass.NONE),
    inner_status=st.none() | st.sampled_from([200, 400, 500]),
    error_side=st.none() | st.sampled_from(Role),
    said_tokens=counts,
    said_limit=counts,
    said_seconds=figures,
    prompt_tokens=counts,
    completion_tokens=counts,
    finish=st.sampled_from(Finish),
    outputs=st.sampled_from([0, 1, 4]),
)
any_step = st.builds(
    step,
    st.sampled_from(list(POOLS)),
    waiting=st.none() | st.floats(-1, 300),
    routed=st.booleans(),
    stream=st.booleans(),
    api=st.sampled_from(Api),
    truncates=st.booleans(),
    tokens=st.sampled_from([1, 2, 1017, 1018, 1500, 4090, 4100]),
    side=st.none() | st.sampled_from(Side),
)


@settings(max_examples=500, deadline=None)
@given(any_step, anything_seen, anything_seen)
def test_anything_gets_a_verdict_and_only_output_exposes(one: Step, prefill: Seen, decode: Seen) -> None:
    direct, routed = judge_direct(one, prefill, decode), judge_router(one, decode)
    for result in (direct, routed):
        assert result.reason
        assert all(half.reason for half in result.halves)
        if result.verdict is V.EXPOSED:
            assert decode.status == 200
            assert decode.outputs > 0
            assert decode.error is ErrorClass.NONE
    whole = prefill.answered and prefill.end is not End.UNREADABLE and prefill.prompt_tokens == SENT
    if whole and one.length is not None and one.length.tokens == SENT:
        assert direct.verdict is not V.EXPOSED
