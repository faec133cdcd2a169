"""The plan: who is met, in which order, at what worst cost, and what is left out and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from pdguard.cluster import Cluster, parse_cluster
from pdguard.errors import InputError
from pdguard.facts._fetch import Tls
from pdguard.facts.interface import Collected, Grade, Subject
from pdguard.facts.pairing import build_pairs
from pdguard.probe.interface import Api, Budget, Danger, Kind, LeftOut, Plan, Role, Side, Step
from pdguard.probe.plan import make_plan
from pdguard.probe.wanted import Wanted
from tests.facts.build import sized

AMPLE = Budget(500, 256_000_000, 3600.0, 20.0)


def prefill(pool: int = 1024, version: str = "0.5.22", name: str = "p0", **facts: Any) -> Subject:
    return sized("prefill", pool, version, name=name, hold="on", **facts)


def decode(pool: int = 4096, version: str = "0.5.22", name: str = "d0", **facts: Any) -> Subject:
    return sized("decode", pool, version, name=name, **{"hold": "on", **facts})


def fleet(
    prefills: Sequence[Subject],
    decodes: Sequence[Subject],
    routers: dict[str, list[str] | None] | None = None,
    *,
    retries: int | None = 5,
    port: int | None = 8998,
    kind: str = "sglang-router",
) -> tuple[Cluster, Collected]:
    fronts = routers or {}
    engines = []
    for number, one in enumerate((*prefills, *decodes)):
        role = "prefill" if one in prefills else "decode"
        entry: dict[str, Any] = {"name": one.name, "role": role, "url": f"http://10.0.{number}.1:30000"}
        if role == "prefill" and port is not None:
            entry["bootstrap_port"] = port
        engines.append(entry)
    data: dict[str, Any] = {"cluster": "c", "engines": engines, "routers": []}
    subjects = []
    for name, behind in fronts.items():
        entry = {"name": name, "url": "http://10.1.0.1:8000", "kind": kind}
        data["routers"].append(entry if behind is None else {**entry, "engines": behind})
        subject = Subject("router", name)
        if retries is not None:
            subject.facts.add("retries", retries, Grade.CLAIMED, "version", "packages")
        subjects.append(subject)
    pairs = build_pairs(prefills, decodes, [(s, frozenset(fronts[s.name] or ())) for s in subjects])
    collected = Collected(Subject("cluster", "c"), [*prefills, *decodes], pairs, subjects)
    return parse_cluster(json.dumps(data), "c.yaml"), collected


def plan(given: tuple[Cluster, Collected], **wanted: Any) -> Plan:
    wanted = {"budget": AMPLE, **wanted}
    return make_plan(*given, Wanted(**wanted), {}, {})


def told(steps: Sequence[Step]) -> list[tuple[Side, bool, str]]:
    return [(s.length.side, s.stream, s.route.name) for s in steps if s.length is not None]


def left(plan: Plan, what: str) -> LeftOut:
    return next(one for one in plan.left_out if one.what.startswith(what))


def test_mildest_first_and_direct_before_the_router() -> None:
    made = plan(fleet([prefill()], [decode()], {"r0": None}), over_pool=True, direct=True)
    direct, routed = "p0→d0 direct", "through r0"
    assert told(made.steps) == [
        (side, stream, name)
        for side in (Side.CONTEXT, Side.ADMITTED, Side.BOTH, Side.PREFILL)
        # what no tokenizer takes is sent once a route
        for stream in ((False,) if side is Side.CONTEXT else (False, True))
        for name in (direct, routed)
    ]
    assert [s.number for s in made.steps] == list(range(1, 15))
    assert [s.danger for s in made.steps] == [Danger.ORDINARY] * 10 + [Danger.HOLDS] * 4
    assert made.consents == ()
    assert made.left_out == ()


def test_direct_is_implied_only_where_no_router_is() -> None:
    alone = plan(fleet([prefill()], [decode()]), over_pool=True)
    assert {s.route.name for s in alone.steps} == {"p0→d0 direct"}
    routed = plan(fleet([prefill()], [decode()], {"r0": None}), over_pool=True)
    assert {s.route.name for s in routed.steps} == {"through r0"}
    mixed = fleet([prefill(), prefill(name="p1")], [decode(), decode(name="d1")], {"r0": ["p0", "d0"]})
    names = {s.route.name for s in plan(mixed, over_pool=True).steps}
    assert names == {"through r0", "p1→d1 direct"}


def test_the_routes() -> None:
    given = fleet([prefill()], [decode(waiting_timeout=25.0)], {"r0": None})
    tls = Tls(insecure=True)
    wanted = Wanted(over_pool=True, direct=True, budget=AMPLE)
    made = make_plan(*given, wanted, {"p0": "secret", "r0": "other"}, {"d0": tls})
    direct = next(s.route for s in made.steps if s.route.router is None)
    assert direct.prefill is not None
    assert direct.decode is not None
    assert (direct.prefill.base, direct.prefill.key, direct.prefill.role) == (
        "http://10.0.0.1:30000",
        "secret",
        Role.PREFILL,
    )
    assert (direct.decode.tls, direct.decode.key) == (tls, None)
    assert (direct.bootstrap_host, direct.bootstrap_port, direct.waiting) == ("10.0.0.1", 8998, 25.0)
    routed = [s.route for s in made.steps if s.route.router is not None]
    assert {(r.tries, r.waiting) for r in routed} == {(5, 25.0), (1, 25.0)}
    assert {(e.name, e.key) for e in routed[0].engines} == {("p0", "secret"), ("d0", None)}
    assert "secret" not in repr(made)


def test_streamed_requests_are_tried_once_by_sglang_router_alone() -> None:
    for kind, tries in (("sglang-router", {(False, 5), (True, 1)}), ("smg", {(False, 5), (True, 5)})):
        made = plan(fleet([prefill()], [decode()], {"r0": None}, retries=None, kind=kind), over_pool=True)
        assert {(s.stream, s.route.tries) for s in made.steps} == tries


def test_a_bootstrap_host_of_its_own_and_no_port() -> None:
    cluster, collected = fleet([prefill()], [decode()])
    data = cluster.model_dump(mode="json", exclude_unset=True)
    data["engines"][0]["bootstrap_host"] = "prefill.svc"
    own = parse_cluster(json.dumps(data), "c.yaml")
    assert plan((own, collected), over_pool=True).steps[0].route.bootstrap_host == "prefill.svc"
    without = plan(fleet([prefill()], [decode()], port=None), over_pool=True)
    assert without.steps == ()
    assert left(without, "p0→d0 direct").todo == "give p0 its `bootstrap_port:` in the cluster file"


@pytest.mark.parametrize(
    ("version", "accepted", "danger"),
    [
        ("0.5.19", False, None),
        ("0.5.19", True, Danger.EXPOSES),
        ("0.5.20", False, Danger.HOLDS),
        ("0.5.21", False, Danger.HOLDS),
        ("0.9.0", False, None),
        ("0.9.0", True, Danger.EXPOSES),
    ],
)
def test_what_may_expose_needs_consent(version: str, accepted: bool, danger: Danger | None) -> None:
    made = plan(
        fleet([prefill(version=version)], [decode(version=version)]),
        over_pool=True,
        accept_exposure=accepted,
    )
    dangers = {s.danger for s in made.steps if s.length is not None and s.length.side is Side.PREFILL}
    assert dangers == (set() if danger is None else {danger})
    if version == "0.5.19":
        assert made.consents == ("p0: a refused prompt walks on (claimed: /server_info version)",)
    if danger is None:
        assert left(made, "over-pool, only prefill rejects").todo == "--accept-exposure"
        assert left(made, "over-pool, only prefill rejects").why == made.consents[0]
        assert made.steps[-1].danger is Danger.HOLDS  # both reject


def test_an_exposing_step_comes_last() -> None:
    old = fleet([prefill(version="0.5.19")], [decode(version="0.5.19")])
    made = plan(old, over_pool=True, abort=True, staging=True, accept_exposure=True)
    kinds = [s.kind for s in made.steps if s.danger is Danger.EXPOSES]
    assert kinds[-1] is Kind.STAGING
    assert Kind.OVER_POOL in kinds


def test_worst_cases() -> None:
    given = fleet([prefill()], [decode(waiting_timeout=2.0)], {"r0": None})
    made = plan(given, over_pool=True, direct=True)
    direct, routed = (
        next(
            s
            for s in made.steps
            if s.length is not None
            and s.length.side is Side.PREFILL
            and not s.stream
            and (s.route.router is not None) is through
        )
        for through in (False, True)
    )
    assert (direct.requests, direct.tokens, direct.seconds) == (2, 2 * 1018, 14.0)
    assert (routed.requests, routed.tokens, routed.seconds) == (5, 5 * 1018, 22.0)
    assert (direct.held_tokens, routed.held_tokens) == (1018, 1018)
    assert direct.held_share == pytest.approx(1018 / 4096)
    assert made.steps[0].held_tokens == 0


WHOLE = (14, 32_700, 388)
"""Requests, tokens and seconds of all over-limit prompts to one pair."""


@pytest.mark.parametrize(
    ("requests", "kept"),
    [
        (14, "context admitted admitted* both both* prefill prefill*"),
        (13, "admitted admitted* both both* prefill prefill*"),
        (11, "admitted both both* prefill prefill*"),
        (9, "both both* prefill prefill*"),
        (7, "both both* prefill"),
        (3, "both"),
        (1, ""),
    ],
)
def test_controls_are_dropped_before_what_tells_and_then_the_worst(requests: int, kept: str) -> None:
    budget = Budget(requests=requests)
    made = plan(fleet([prefill()], [decode()]), over_pool=True, budget=budget)
    names = [f"{side.name.lower()}{'*' * stream}" for side, stream, _ in told(made.steps)]
    assert names == kept.split()
    assert [s.number for s in made.steps] == list(range(1, len(names) + 1))
    lost = [one for one in made.left_out if one.lost]
    assert bool(lost) is (requests < 8)
    assert bool([one for one in made.left_out if not one.lost]) is (requests < 14)
    assert {one.todo for one in made.left_out} == ({"--max-requests 14"} if requests < 14 else set())


@pytest.mark.parametrize(
    ("budget", "options"),
    [
        (Budget(tokens=30_000), "--max-tokens 32700"),
        (Budget(seconds=100.0), "--max-seconds 388"),
        (Budget(9, 10_000, 50.0), "--max-tokens 32700 --max-seconds 388 --max-requests 14"),
    ],
)
def test_all_that_a_budget_lacks_is_named_at_once(budget: Budget, options: str) -> None:
    made = plan(fleet([prefill()], [decode()]), over_pool=True, budget=budget)
    assert sum(s.requests for s in made.steps) <= budget.requests
    assert sum(s.tokens for s in made.steps) <= budget.tokens
    assert sum(s.seconds for s in made.steps) <= budget.seconds
    assert {one.todo for one in made.left_out} == {options}
    assert all("too small" in one.why for one in made.left_out)
    ample = Budget(*(int(most) for most in WHOLE))
    assert len(plan(fleet([prefill()], [decode()]), over_pool=True, budget=ample).steps) == 7


def test_many_pairs_of_large_prompts_keep_what_tells() -> None:
    prefills = [prefill(681_280 + n, context=1_048_576, name=f"p{n}") for n in range(9)]
    made = plan(fleet(prefills, [decode(1_400_000, context=1_048_576)]), over_pool=True, budget=Budget())
    assert made.steps
    assert not any(step.control for step in made.steps)
    lost = next(one for one in made.left_out if one.lost)
    assert lost.todo.startswith("--max-tokens ")
    assert lost.todo.endswith(", or --pair p0/d0 for one pair")


@pytest.mark.parametrize(("hold", "accepted"), [("on", False), (None, False), (None, True)])
def test_a_large_admitted_prompt_needs_consent_where_no_hold_drains(hold: str | None, accepted: bool) -> None:
    version = "0.5.22" if hold else "0.9.0"
    given = fleet(
        [prefill(100_000, context=200_000)],
        [decode(150_000, version, context=200_000, hold=hold)],
    )
    made = plan(given, over_pool=True, accept_exposure=accepted)
    admitted = [s for s in made.steps if s.length is not None and s.length.side is Side.ADMITTED]
    assert bool(admitted) is (hold == "on" or accepted)
    if hold == "on":
        assert made.consents == ()
        return
    (why,) = made.consents
    assert why.startswith("a prompt of ")
    assert "may outlast the run, and closing it is an abort in mid-transfer (d0: " in why
    if not accepted:
        cut = left(made, "over-pool, just admitted")
        assert (cut.todo, cut.lost) == ("--accept-exposure", False)
    small = fleet([prefill()], [decode(4096, version, hold=hold)])
    assert plan(small, over_pool=True).consents == ()


def test_an_admitted_prompt_is_booked_with_the_time_it_is_given() -> None:
    made = plan(fleet([prefill()], [decode()]), over_pool=True, canary=True, staging=True)
    seconds = {s.kind: s.seconds for s in made.steps if s.kind is not Kind.OVER_POOL}
    admitted = next(s for s in made.steps if s.control and s.length and s.length.side is Side.ADMITTED)
    assert admitted.seconds == 120.0 + 12.0
    # each as long as it may take, and the last one to its end
    (known,) = (s for s in made.steps if s.kind is Kind.CANARY)
    assert known.seconds == known.requests / 2 * 10.0 + 110.0
    assert seconds[Kind.STAGING] == 18 * 30.0 + 90.0 + 2 * (20.0 + 12.0)
    patient = plan(fleet([prefill()], [decode()]), over_pool=True, budget=Budget(500, 10**8, 3600, 200.0))
    assert max(s.seconds for s in patient.steps) == 200.0 + 12.0


def test_what_is_lost_and_what_is_not() -> None:
    # a side that does not exist between these limits
    equal = plan(fleet([prefill(1024)], [decode(1024)], {"r0": None}), over_pool=True, pairing=True)
    assert [one.lost for one in equal.left_out] == [False]
    # limits that are not known
    assert left(plan(fleet([prefill(admission_limit=None)], [decode()]), over_pool=True), "over-pool").lost
    # a control that cannot be placed, and the same length where it is all that was asked for
    cramped = fleet([prefill(1024)], [decode(1024, reserved_decode_tokens=2048)])
    assert not left(plan(cramped, over_pool=True), "just admitted").lost
    assert left(plan(cramped, abort=True), "abort").lost
    assert left(plan(cramped, canary=True), "canary").lost
    # pairing where routers are left out, or where there are none
    routed = fleet([prefill()], [decode()], {"r0": None})
    assert left(plan(routed, pairing=True, pairs=("p0/d0".replace("/", "->"),)), "pairing").lost
    assert not left(plan(fleet([prefill()], [decode()]), pairing=True), "pairing").lost


def test_lengths_that_pairs_do_not_share_are_met_directly() -> None:
    unlike = fleet([prefill(1024), prefill(6000, name="p1", context=8192)], [decode(5000)], {"r0": None})
    routed = [one for one in plan(unlike, over_pool=True).left_out if one.todo == "--direct"]
    assert routed
    assert all(one.lost for one in routed)
    direct = plan(unlike, over_pool=True, direct=True)
    assert not [one for one in direct.left_out if one.lost]
    pairing = left(plan(unlike, pairing=True, direct=True), "pairing")
    assert (pairing.lost, pairing.todo) == (True, "")


def test_a_budget_that_cannot_be_raised_so_far() -> None:
    many = [prefill(name=f"p{n}") for n in range(4)], [decode(name=f"d{n}") for n in range(4)]
    made = plan(fleet(*many), over_pool=True, budget=Budget(500, 256_000_000, 3600.0, 100.0))
    assert any("goes no higher than 3,600" in one.todo for one in made.left_out)


def test_the_default_budget_suffices_for_a_pair_and_its_router() -> None:
    given = fleet([prefill()], [decode()], {"r0": None})
    made = plan(given, over_pool=True, direct=True, pairing=True, budget=Budget())
    assert made.left_out == ()


def test_prompts_beyond_the_hard_limit() -> None:
    given = fleet([prefill(5_000_000, context=8_000_000)], [decode(9_000_000, context=8_000_000)])
    made = plan(given, over_pool=True)
    assert made.steps == ()
    assert "above the hard limit of 4,000,000" in left(made, "over-pool, only prefill rejects").why


def test_pairing_wants_a_router_and_a_window() -> None:
    without = plan(fleet([prefill()], [decode()]), pairing=True)
    assert without.steps == ()
    assert "no router" in left(without, "pairing").why
    equal = plan(fleet([prefill(1024)], [decode(1024)], {"r0": None}), pairing=True)
    assert "refused by prefill alone" in left(equal, "pairing, through r0").why
    made = plan(fleet([prefill()], [decode()], {"r0": None}), pairing=True, direct=True)
    assert [(s.kind, s.stream, s.route.name) for s in made.steps] == [
        (Kind.PAIRING, False, "through r0"),
        (Kind.PAIRING, True, "through r0"),
    ]
    unplaced = fleet([prefill(1024)], [decode(1400, reserved_decode_tokens=512)], {"r0": None})
    assert "can never place" in left(plan(unplaced, pairing=True), "pairing").why


def test_abort_takes_the_longest_prompt_that_decode_places() -> None:
    made = plan(fleet([prefill(4096)], [decode(4096, reserved_decode_tokens=512)]), abort=True)
    assert [(s.kind, s.stream, s.danger) for s in made.steps] == [
        (Kind.ABORT, False, Danger.HOLDS),
        (Kind.ABORT, True, Danger.HOLDS),
    ]
    assert {s.length.tokens for s in made.steps if s.length is not None} == {4096 - 512}
    assert {s.requests for s in made.steps} == {2 * 3}


@pytest.mark.parametrize("hold", ["off", None])
def test_an_abort_without_a_hold_needs_consent(hold: str | None) -> None:
    other = decode(version="0.9.0", hold=hold)
    made = plan(fleet([prefill()], [other]), abort=True)
    assert made.steps == ()
    (cut,) = made.left_out
    assert cut.todo == "--accept-exposure"
    assert ("d0: the hold is off" if hold else "d0: whether its hold is on is not known") in cut.why
    assert plan(fleet([prefill()], [other]), abort=True, accept_exposure=True).steps


def test_an_abort_that_never_drains_needs_consent() -> None:
    made = plan(fleet([prefill(version="0.5.21")], [decode()]), abort=True)
    assert made.steps == ()
    assert "p0→d0: an abort in mid-transfer ends so: timeout" in made.consents[0]


def test_the_strong_proof_counts_its_filler_traffic() -> None:
    made = plan(fleet([prefill()], [decode()]), staging=True)
    (one,) = made.steps
    assert (one.kind, one.stream, one.danger) == (Kind.STAGING, False, Danger.HOLDS)
    assert one.requests == 2 * 20
    assert one.tokens > 2 * 2 * 1018


def test_known_answers_come_first_and_get_what_is_left_of_the_budget() -> None:
    given = fleet([prefill()], [decode()])
    made = plan(given, over_pool=True, canary=True)
    assert [s.kind for s in made.steps[:2]] == [Kind.CANARY, Kind.OVER_POOL]
    assert made.canary
    tight = plan(given, over_pool=True, canary=True, budget=Budget(requests=20))
    assert {s.kind for s in tight.steps} == {Kind.OVER_POOL}
    assert not tight.canary
    assert left(tight, "canary").todo.startswith("--max-requests ")
    assert left(tight, "canary").lost
    # controls go before known answers
    some = plan(given, over_pool=True, canary=True, budget=Budget(requests=51))
    assert some.canary
    assert not any(s.control for s in some.steps)
    alone = plan(given, canary=True)
    assert [s.kind for s in alone.steps] == [Kind.CANARY]


def test_texts_keep_away_from_limits_and_count_their_calibration() -> None:
    made = plan(fleet([prefill()], [decode()]), over_pool=True, apis=(Api.COMPLETIONS,), streams=(False,))
    assert {s.length.side: s.length.tokens for s in made.steps if s.length is not None}[Side.PREFILL] == 1050
    assert {s.api for s in made.steps} == {Api.COMPLETIONS}
    assert [s.requests for s in made.steps] == [2 + 4, 2, 2, 2]


def test_missing_facts_are_told_once_a_route() -> None:
    made = plan(fleet([prefill(admission_limit=None)], [decode()]), over_pool=True, abort=True)
    assert made.steps == ()
    assert [one.what for one in made.left_out] == ["over-pool lengths, p0→d0 direct"]


def test_one_reason_on_many_routes_is_told_once() -> None:
    equal = [prefill(4096, name=f"p{n}") for n in range(3)]
    made = plan(fleet(equal, [decode()]), staging=True)
    assert [one.what for one in made.left_out] == ["staging, p0→d0 direct and 2 more"]
    poor = plan(fleet(equal, [decode()]), canary=True, budget=Budget(requests=31))
    assert [one.what for one in poor.left_out] == ["canary, p1→d0 direct and 1 more"]
    assert poor.left_out[0].todo == "--max-requests 90, or --pair p0/d0 for one pair"


def test_ranks_meet_by_a_room_that_both_read_alike() -> None:
    two = prefill(dp_size=2, pools=(1024, 1024))
    made = plan(fleet([two], [decode(dp_size=3, pools=(4096, 4096, 4096))]), over_pool=True)
    assert {s.route.dp_size for s in made.steps} == {6}


def test_a_large_fleet_is_met_by_one_pair_of_each_kind() -> None:
    prefills = [prefill(1024 + 512 * (n % 2), name=f"p{n}") for n in range(20)]
    decodes = [decode(name=f"d{n}") for n in range(20)]
    made = plan(fleet(prefills, decodes), over_pool=True)
    assert {s.route.name for s in made.steps} == {"p0→d0 direct", "p1→d0 direct"}
    assert left(made, "199 pairs like p0→d0, direct").todo == "name them with --pair"
    named = plan(fleet(prefills, decodes), over_pool=True, pairs=("p7->d9",))
    assert {s.route.name for s in named.steps} == {"p7→d9 direct"}
    assert named.steps[0].route.prefill is not None
    assert named.steps[0].route.prefill.name == "p7"
    assert named.left_out == ()


def test_more_kinds_than_one_run_meets() -> None:
    prefills = [prefill(1000 + n, name=f"p{n}") for n in range(20)]
    made = plan(fleet(prefills, [decode()]), over_pool=True)
    assert left(made, "4 pairs of 4 more kinds").why == "one run meets 16 pairs at most"


def test_narrowing() -> None:
    given = fleet(
        [prefill(), prefill(name="p1")],
        [decode(), decode(name="d1")],
        {"r0": ["p0", "d0"], "r1": ["p1", "d1"]},
    )
    routed = plan(given, over_pool=True, routers=("r1",))
    assert {s.route.name for s in routed.steps} == {"through r1"}
    both = plan(given, over_pool=True, routers=("r1",), direct=True)
    assert {s.route.name for s in both.steps} == {"through r1", "p1→d1 direct"}
    direct = plan(given, over_pool=True, pairs=("p0→d0",))
    assert {s.route.name for s in direct.steps} == {"p0→d0 direct"}


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"routers": ("r9",)}, "there is no router of that name"),
        ({"routers": ("router0",)}, "Did you mean router_0?"),
        ({"pairs": ("p0->d7",)}, "there is no pair of that name"),
        ({"pairs": ("p0",)}, "there is no pair of that name"),
    ],
)
def test_names_that_are_not_there(wanted: dict[str, Any], text: str) -> None:
    given = fleet([prefill()], [decode()], {"router_0": None})
    with pytest.raises(InputError) as caught:
        plan(given, over_pool=True, **wanted)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({}, "no probe is named"),
        ({"over_pool": True, "apis": ()}, "nothing is left to send"),
        ({"abort": True, "apis": (Api.CHAT,)}, "--api goes with --over-pool"),
        ({"canary": True, "apis": (Api.GENERATE, Api.COMPLETIONS)}, "--api goes with --over-pool"),
        ({"over_pool": True, "budget": Budget(requests=501)}, "--max-requests is out of range"),
        ({"over_pool": True, "budget": Budget(tokens=0)}, "--max-tokens is out of range"),
        ({"over_pool": True, "budget": Budget(seconds=float("nan"))}, "--max-seconds is out of range"),
        ({"over_pool": True, "budget": Budget(wait=601.0)}, "--wait is out of range"),
    ],
)
def test_what_cannot_be_wanted(wanted: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as caught:
        Wanted(**wanted)
    assert text in str(caught.value)
