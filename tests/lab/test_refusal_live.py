"""A prompt that one half refuses at its door, on hardened pairs: both halves are answered at once.

By default each version with one pool shape over Mooncake, one flood, and one pair of which only one half is
hardened. `PDGUARD_LAB_REFUSALS=all` takes every version and pool shape over Mooncake and NIXL with a flood on
each, and every mixed pair.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from . import gauges, traffic
from .audit_specs import NEWER
from .hardened import WAIT, Engines, mixed, stock, with_hold
from .lab import Lab
from .probing import DECODE_ONLY, DOOR, PREFILL_ONLY, probe
from .refusing import (
    AT_DOOR,
    DECODE_REFUSES,
    LIMIT_MESSAGE,
    OVER_LIMIT,
    PREFILL_REFUSES,
    ROLES,
    SMALL,
    Served,
    alone,
    apart,
    flood,
    has_tokens,
    ordinary,
    refuser,
    room,
    serve,
    trouble,
    troubles,
)
from .session import LabSession
from .spec import VERSIONS, Backend, Role

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

EVERY_ENV = "PDGUARD_LAB_REFUSALS"
EVERY = os.environ.get(EVERY_ENV) == "all"
only_in_full = pytest.mark.skipif(not EVERY, reason=f"only with {EVERY_ENV}=all")

PROMPTS = 200
FEWER = 48 if EVERY else 6
"""On a stock pair, whose pool has room for two of them, and each keeps its place for the whole timeout."""

MOST_MEMORY = 16 << 20
"""Bytes that an engine may grow by in a flood; it was seen to grow by none to 1 MiB."""

VALID = traffic.mix(40, 900, seed=6)


@dataclass(frozen=True)
class Case:
    """A hardened pair, and what is sent to it."""

    version: str
    pools: tuple[int, int]
    backend: Backend = "mooncake"
    flooded: bool = EVERY
    probed: bool = EVERY

    def __str__(self) -> str:
        return f"{self.version}-{self.pools[0]}-{self.pools[1]}-{self.backend}"


# 0.5.19 with a prefill that refuses is in test_harden_live.py.
IN_HAND = (
    Case("0.5.20", DECODE_REFUSES),
    Case("0.5.21", PREFILL_REFUSES),
    Case("0.5.22", PREFILL_REFUSES, flooded=True),
    Case("0.5.23", DECODE_REFUSES, probed=True),
)
NAMED = {(case.version, case.pools) for case in IN_HAND}
OTHERS = tuple(
    Case(version, pools, backend)
    for backend in ("mooncake", "nixl")
    for version in VERSIONS
    for pools in (PREFILL_REFUSES, DECODE_REFUSES)
    if backend == "nixl" or (version, pools) not in NAMED
)
CASES = [*IN_HAND, *(pytest.param(case, marks=only_in_full) for case in OTHERS)]
MIXED: list[tuple[str, Role, tuple[int, int]]] = [
    (version, role, pools)
    for version in ("0.5.20", "0.5.22", "0.5.23")
    for role in ROLES
    for pools in (PREFILL_REFUSES, DECODE_REFUSES)
]
ONE_MIXED = ("0.5.23", "prefill", PREFILL_REFUSES)

stock_longest: dict[str, float] = {}
"""What the longest of the valid requests took beside a flood of a stock pair, by version."""


@pytest.mark.parametrize("lab", [NEWER], indirect=True, scope="session")
def test_stock_waits_for_the_half_that_has_refused(lab: Lab, lab_session: LabSession) -> None:
    """And whoever sends such prompts holds up those of others."""
    both = lab.direct(OVER_LIMIT, 8, timeout=WAIT * 3)
    assert LIMIT_MESSAGE in both.prefill.body
    assert both.decode.status == 500
    assert both.decode.seconds >= WAIT - 1
    quiet = serve(lab, VALID)
    beside, answers = flood(lab, FEWER, VALID, routed=EVERY)
    stock_longest[lab.spec.version] = beside.longest
    lab_session.say(f"stock {lab.spec.version}: {quiet}; beside {FEWER} over-limit prompts: {beside}")
    assert max(answer.seconds for answer in answers) >= WAIT - 1
    gauges.drain(lab.engines)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_hardened_answers_both_halves_at_once(
    case: Case, lab_session: LabSession, hardened: Engines, tmp_path: Path
) -> None:
    spec = with_hold(stock(case.version, case.pools, case.backend), hardened(case.version))
    lab = lab_session.get(spec)
    at_once(lab)
    in_any_order(lab)
    numbers_are_not_spoilt(lab)
    if case.flooded:
        flood_leaves_nothing(lab, lab_session)
    if case.probed:
        the_probe_says_so(lab, tmp_path)
    gauges.nothing_is_left(lab, length=900)
    no_trouble_in_the_logs(lab)


def at_once(lab: Lab) -> None:
    for stream in (False, True):
        for _ in range(3):
            both = lab.direct(OVER_LIMIT, 8, timeout=WAIT * 3, stream=stream)
            assert not (wrong := troubles(lab, both, stream=stream)), wrong
        routed = lab.routed(OVER_LIMIT, 8, timeout=WAIT * 3, stream=stream)
        assert not (wrong := trouble(routed, LIMIT_MESSAGE, *AT_DOOR.values(), stream=stream)), wrong


def in_any_order(lab: Lab) -> None:
    """Whichever half comes first; and the number is as good as new afterwards."""
    right = ordinary(lab, room())
    assert right[:2] == (200, 200)
    for first in ROLES:
        number = room()
        for _ in range(2):
            both = apart(lab, OVER_LIMIT, number, first, 0.5)
            assert not (wrong := troubles(lab, both, first=first, apart=0.5)), f"{first} first: {wrong}"
            assert ordinary(lab, number) == right, f"the number again, after {first} came first"


def numbers_are_not_spoilt(lab: Lab) -> None:
    """Nor where the other half never came, and whichever half of the ordinary prompt comes first."""
    right, role = ordinary(lab, room()), refuser(lab)
    for first in (None, *ROLES):
        number = room()
        for _ in range(2):
            assert not (wrong := trouble(alone(lab, role, number), LIMIT_MESSAGE)), wrong
        for _ in range(2):
            assert ordinary(lab, number, first, 0.3) == right, f"only {role} was asked before; {first} first"
    number = room()
    for _ in range(10):
        both = lab.direct(OVER_LIMIT, 8, room=number, timeout=WAIT * 3)
        assert not (wrong := troubles(lab, both)), wrong
        assert ordinary(lab, number) == right, "the number again, at once"


def flood_leaves_nothing(lab: Lab, lab_session: LabSession) -> None:
    """Queues, pools and memory are as before, and others are served as before."""
    quiet = serve(lab, VALID)
    before = [gauges.resident(engine) for engine in lab.engines]
    beside, answers = flood(lab, PROMPTS, VALID)
    statuses = Counter(answer.status for answer in answers)
    slowest = max(answer.seconds for answer in answers)
    grown = [gauges.resident(engine) - was for engine, was in zip(lab.engines, before, strict=True)]
    lab_session.say(
        f"hardened {lab.spec.title()}: {quiet}; beside {PROMPTS} over-limit prompts: {beside}; "
        f"these: status {dict(statuses)}, at most {slowest:.2f} s; memory {[g >> 10 for g in grown]} KiB more"
    )
    assert set(statuses) == {400}
    # Eight at a time on two cores: none waits for anything but its turn.
    assert slowest < WAIT / 2
    assert beside.replies == quiet.replies
    assert max(grown) < MOST_MEMORY
    is_not_held_up(beside, lab.spec.version)
    gauges.drain(lab.engines)


def is_not_held_up(beside: Served, version: str) -> None:
    assert beside.statuses == [200]
    assert beside.longest < WAIT / 2
    if version in stock_longest:
        assert beside.longest < stock_longest[version]


def the_probe_says_so(lab: Lab, folder: Path) -> None:
    """One half has refused, the other was ended by it: no half waited, and the run is clean."""
    found = probe(lab, folder, "--over-pool", "--direct", "--wait", "10")
    side = PREFILL_ONLY if refuser(lab) == "prefill" else DECODE_ONLY
    for stream in (False, True):
        assert found.over_pool(side, stream=stream) == {"all": DOOR, "prefill": DOOR, "decode": DOOR}
        assert found.over_pool(side, routed=True, stream=stream)["all"] == DOOR
    assert (found.code, found.document["exposed"]) == (0, False)


def no_trouble_in_the_logs(lab: Lab) -> None:
    """No thread has ended, and nothing was said that nobody expected; engines log a refusal as an error."""
    for engine in lab.engines:
        text = engine.server.log.read_text("utf-8", errors="replace")
        served = text[text.rindex("ready to roll") :]
        assert "Traceback" not in served, engine.server.log
        assert "Exception in thread" not in served, engine.server.log


# --- one half hardened, the other as it comes


@pytest.mark.parametrize(
    ("version", "role", "pools"),
    [pytest.param(*row, marks=() if row == ONE_MIXED else only_in_full) for row in MIXED],
)
def test_a_stock_half_trips_over_nothing(
    version: str, role: Role, pools: tuple[int, int], lab_session: LabSession, hardened: Engines
) -> None:
    """Hardened prefill ends a stock decode too; to a stock prefill decode tells nothing but an abort."""
    lab = lab_session.get(mixed(stock(version, pools), hardened(version), role))
    right = ordinary(lab, room())
    assert right[:2] == (200, 200)
    for number in range(2):
        for stream in (False, True):
            both = lab.direct(OVER_LIMIT, 8, timeout=WAIT * 3, stream=stream)
            assert not has_tokens(both.decode)
            if role == "prefill" and pools[0] == SMALL:
                assert both.prefill.seconds < 1
                assert both.decode.seconds < 1
                assert both.decode.status == (200 if stream else 500)
        assert ordinary(lab, room()) == right, number
    gauges.nothing_is_left(lab, length=900)
    no_trouble_in_the_logs(lab)
