"""`pdguard probe` on running engines: over-limit prompts, aborts, pairing, canaries.

By default with the deployments that other lab tests have up anyway. `PDGUARD_LAB_PROBES=all` takes every
version and pool shape, automatic truncation, and engines of two tensor or data ranks as well.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from .audit_specs import INCIDENT, NEWER, SOUND
from .lab import Lab, another_router
from .probing import (
    ADMITTED,
    BOTH,
    DECODE_ONLY,
    DOOR,
    EXPOSED,
    HELD,
    LATE,
    PREFILL_ONLY,
    WAITED,
    WALKED,
    Probed,
    probe,
)
from .race import data_ports
from .session import LabSession
from .spec import LabSpec, RoleSpec, pair
from .test_audit_live import audit, failing
from .throttle import SlowLink

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

EVERY_ENV = "PDGUARD_LAB_PROBES"
only_in_full = pytest.mark.skipif(os.environ.get(EVERY_ENV) != "all", reason=f"only with {EVERY_ENV}=all")
WAIT = "10"
"""Above the lab's waiting timeout of 8 s, and below five tries of it."""

SMALL, LARGE, HUGE = 1024, 4096, 8192

Row = tuple[str, str, str, str, str, str]
"""Side; verdicts of the step, of prefill, of decode; through sglang-router, not streamed and streamed."""


def expected(version: str, pools: tuple[int, int]) -> list[Row]:
    """What was seen by hand on this version and pools, in words of the probe."""
    doors = version >= "0.5.21"
    prefill = WALKED if version == "0.5.19" else DOOR
    decode = {"0.5.19": LATE, "0.5.20": WAITED}.get(version, DOOR)
    both = {"0.5.19": DOOR, "0.5.20": HELD}.get(version, DOOR)
    rows: list[Row] = [(BOTH, decode, prefill, decode, both, WAITED if version == "0.5.20" else DOOR)]
    if pools == (SMALL, LARGE):
        if version == "0.5.19":
            # The first exposure ends the run; nothing of it is streamed or routed.
            return [*rows, (PREFILL_ONLY, EXPOSED, WALKED, EXPOSED, "", "")]
        return [*rows, (PREFILL_ONLY, WAITED, DOOR, WAITED, HELD, WAITED)]
    if pools == (LARGE, SMALL):
        half = (WAITED, WAITED, DOOR, WAITED, WAITED) if doors else (LATE, ADMITTED, LATE, DOOR, DOOR)
        return [*rows, (DECODE_ONLY, *half)]
    return rows


def check_rows(found: Probed, rows: list[Row]) -> None:
    for side, whole, prefill, decode, routed, streamed in rows:
        direct = found.over_pool(side)
        assert direct == {"all": whole, "prefill": prefill, "decode": decode}, side
        if routed:
            assert found.over_pool(side, routed=True)["all"] == routed, side
            assert found.over_pool(side, routed=True, stream=True)["all"] == streamed, side
            assert found.over_pool(side, stream=True) == direct, side


def shaped(version: str, pools: tuple[int, int]) -> LabSpec:
    return pair(version, pools, router="sglang-router")


IN_HAND = (INCIDENT, NEWER)
ROWS = [
    pytest.param(spec, marks=() if spec in IN_HAND else only_in_full)
    for version in ("0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
    for spec in (shaped(version, p) for p in ((SMALL, LARGE), (LARGE, SMALL), (SMALL, SMALL)))
]


@pytest.mark.parametrize("lab", ROWS, indirect=True, scope="session", ids=lambda s: s.title())
def test_the_table_of_over_limit_prompts(lab: Lab, tmp_path: Path) -> None:
    version, pools = lab.spec.version, (lab.spec.prefill.pool, lab.spec.decode.pool)
    found = probe(lab, tmp_path, "--over-pool", "--direct", "--wait", WAIT, "--accept-exposure")
    rows = expected(version, pools)
    check_rows(found, rows)
    words = {row[1] for row in rows}
    assert found.code == (20 if EXPOSED in words else 12 if words - {DOOR} else 0)
    assert found.document["exposed"] is (EXPOSED in words)


@pytest.mark.parametrize("lab", [NEWER], indirect=True, scope="session")
def test_what_outlives_the_budget_is_let_go(lab: Lab, tmp_path: Path) -> None:
    """The probe says so after its own time, closes the request, and looks whether decode lets go."""
    found = probe(lab, tmp_path, "--over-pool", "--direct", "--wait", "3", "--stream", "no")
    (held,) = [
        half
        for result in found.of_kind("over-pool")
        for half in result["halves"]
        if half["role"] == "decode" and half["verdict"] == HELD
    ]
    assert held["release"]["released"] is True
    assert held["release"]["after"] < 6
    assert held["answer"]["ended_after"] < 4


@pytest.mark.parametrize("lab", [SOUND], indirect=True, scope="session")
def test_a_sound_pair_refuses_at_both_doors(lab: Lab, tmp_path: Path) -> None:
    found = probe(lab, tmp_path, "--over-pool", "--direct", "--canary")
    both = found.over_pool(BOTH)
    assert both == {"all": DOOR, "prefill": DOOR, "decode": DOOR}
    assert found.over_pool(BOTH, routed=True)["all"] == DOOR
    assert {r["verdict"] for r in found.of_kind("canary")} == {"the same answers"}
    assert found.code == 0


# --- routers


@pytest.mark.parametrize("lab", [NEWER], indirect=True, scope="session")
def test_who_pairs_refusals(lab: Lab, tmp_path: Path) -> None:
    """On prefill's refusal sglang-router 0.3.2 keeps decode waiting, smg 1.13.0 lets it go."""
    unpaired = probe(lab, tmp_path, "--pairing", "--wait", WAIT)
    assert {r["verdict"] for r in unpaired.of_kind("pairing")} == {"unpaired"}, unpaired.printed
    with another_router(lab, "smg") as behind_smg:
        paired = probe(behind_smg, tmp_path, "--pairing", "--wait", WAIT, "--stream", "no")
    assert [r["verdict"] for r in paired.of_kind("pairing")] == ["paired"], paired.printed
    (figures,) = paired.measures("pairing")
    assert figures["client_answered_after"] < 1
    assert (unpaired.code, paired.code) == (12, 0)


LEAVING = pair("0.5.22", (LARGE, LARGE), router="sglang-router", waiting_timeout=None)
"""With a waiting timeout of 8 s it would be this timeout that ends a slow transfer."""


def leave(lab: Lab, folder: Path) -> dict[bool, dict[str, Any]]:
    """What a client's leaving came to, by whether its request was streamed; the transfer is slowed down."""
    with SlowLink("256kbit", data_ports(lab)):
        found = probe(lab, folder, "--abort", "--accept-exposure", "--wait", "40")
    return {r["planned"]["stream"]: r for r in found.of_kind("abort")}


@pytest.mark.parametrize("lab", [LEAVING], indirect=True, scope="session")
@only_in_full
def test_who_ends_both_halves_when_a_client_leaves(lab: Lab, tmp_path: Path) -> None:
    """The other way round: sglang-router 0.3.2 ends a streamed request in mid-transfer, smg does not."""
    behind_old = leave(lab, tmp_path)
    assert behind_old[True]["verdict"] == "both halves were told", behind_old[True]
    assert behind_old[False]["verdict"] == "both halves were told", behind_old[False]
    with another_router(lab, "smg") as behind_smg:
        found = leave(behind_smg, tmp_path)
    assert found[True]["verdict"] == "not both halves were told", found[True]
    assert found[False]["verdict"] == "both halves were told", found[False]


# --- settings and ranks


def truncating(version: str, pools: tuple[int, int]) -> LabSpec:
    spec = shaped(version, pools)
    cuts = ("--allow-auto-truncate",)
    return replace(spec, prefill=replace(spec.prefill, flags=cuts), decode=replace(spec.decode, flags=cuts))


@only_in_full
@pytest.mark.parametrize("version", ["0.5.22", "0.5.23"])
def test_truncation_is_called_by_its_name(version: str, lab_session: LabSession, tmp_path: Path) -> None:
    """Both halves cut alike: no answer is wrong, it is one to another prompt."""
    lab = lab_session.get(truncating(version, (HUGE, HUGE)))
    found = probe(lab, tmp_path, "--over-pool", "--direct", "--wait", WAIT, "--accept-exposure")
    cut = "truncated by configuration"
    assert found.over_pool(BOTH) == {"all": cut, "prefill": cut, "decode": cut}
    assert found.over_pool(BOTH, routed=True)["all"] == cut
    assert (found.code, found.document["exposed"]) == (11, False)


@only_in_full
@pytest.mark.parametrize("version", ["0.5.22", "0.5.23"])
def test_a_prefill_that_cuts_shorter_than_decode_reads(
    version: str, lab_session: LabSession, tmp_path: Path
) -> None:
    """The newest releases answer from pages of others then, and the answer changes with what ran before."""
    lab = lab_session.get(truncating(version, (SMALL, HUGE)))
    found = probe(lab, tmp_path, "--over-pool", "--direct", "--stream", "no", "--accept-exposure")
    assert found.over_pool(PREFILL_ONLY)["decode"] == EXPOSED
    assert found.code == 20
    routed = probe(lab, tmp_path, "--over-pool", "--stream", "no", "--accept-exposure")
    assert routed.over_pool(PREFILL_ONLY, routed=True)["all"] == EXPOSED
    report, code = audit(lab, tmp_path)
    assert ("PDG212", "p0→d0") in failing(report)
    assert code == 13


def ranks(flag: str) -> LabSpec:
    role = RoleSpec(LARGE, flags=(flag, "2"), env=(("SGLANG_CPU_OMP_THREADS_BIND", "0|1"),))
    return LabSpec(
        version="0.5.22",
        prefill=replace(role, pool=SMALL),
        decode=role,
        router="sglang-router" if flag == "--tp-size" else "none",
        waiting_timeout=25,
        start_timeout=420,
    )


@only_in_full
@pytest.mark.parametrize("flag", ["--tp-size", "--dp-size"])
def test_two_ranks(flag: str, lab_session: LabSession, tmp_path: Path) -> None:
    lab = lab_session.get(ranks(flag))
    found = probe(lab, tmp_path, "--over-pool", "--direct", "--wait", "40", "--stream", "no")
    assert found.over_pool(PREFILL_ONLY) == {"all": WAITED, "prefill": DOOR, "decode": WAITED}
    assert found.over_pool("just admitted")["all"] == ADMITTED
