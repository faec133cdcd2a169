"""Proposals on whole clusters: what they say they close is closed once they are set."""

from __future__ import annotations

import concurrent.futures
import datetime
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdguard._bundle import bundled
from pdguard.audit import judge, run_audit
from pdguard.cluster.loader import load_cluster
from pdguard.facts.interface import Collected
from pdguard.harden.settings import Proposal, load_settings, plan_settings, propose, render_diff
from pdguard.policy.loader import load_checks
from pdguard.policy.model import AuditResult, Status
from pdguard.simulator import ClusterSpec, EngineSpec, incident_cluster, start_in_thread
from pdguard.simulator.cluster import Live
from tests.checks.fleets import POLICY, engine, fleet

SETTINGS = load_settings(bundled("remediations") / "settings")
CHECKS = load_checks(bundled("checks"))
NOW = datetime.datetime(2026, 11, 30, 12, 0)
FIELDS = {"--disaggregation-enable-kv-checksum": "disaggregation_enable_kv_checksum"}
HOLD = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"


def audited(spec: ClusterSpec, folder: Path) -> AuditResult:
    with start_in_thread(spec) as live:
        file = folder / "cluster.yaml"
        file.write_text(live.cluster_yaml(), "utf-8")
        return run_audit(load_cluster(file), CHECKS, {}, NOW)


def set_to(spec: ClusterSpec, proposals: Sequence[Proposal]) -> ClusterSpec:
    """The cluster as it is after a restart with the proposals."""
    engines = {e.name: e for e in spec.engines}
    for p in proposals:
        one = engines[p.engine]
        if p.target == "--context-length":
            one = replace(one, context_length=int(p.new), context_flag=int(p.new))
        elif p.target == "--enable-metrics":
            one = replace(one, metrics=True)
        elif p.target in FIELDS:
            one = replace(one, overrides={**one.overrides, FIELDS[p.target]: True})
        else:
            one = replace(one, exposed_env={**(one.exposed_env or {}), p.target: p.new})
        engines[p.engine] = one
    return replace(spec, engines=tuple(engines.values()))


def failed(result: AuditResult) -> set[tuple[str, str]]:
    return {(f.check, f.target) for f in result.findings if f.status is Status.FAIL}


NEWER = ClusterSpec(
    name="newer",
    engines=(
        EngineSpec("p0", "prefill", "0.5.22", 300_000, None, (200_000,), metrics=False, bootstrap_port=0),
        EngineSpec(
            "d0",
            "decode",
            "0.5.22",
            300_000,
            None,
            (280_000,),
            exposed_env={HOLD: "0", f"{HOLD}_TIMEOUT": "2"},
            metrics=False,
        ),
    ),
)


@pytest.mark.parametrize("spec", [incident_cluster(), NEWER], ids=["incident", "newer"])
def test_what_is_said_to_be_closed_is_closed(spec: ClusterSpec, tmp_path: Path) -> None:
    before = audited(spec, tmp_path)
    proposals = propose(before, SETTINGS)
    closes = {c for p in proposals for c in p.closes}
    assert closes
    assert closes <= failed(before)
    after = audited(set_to(spec, proposals), tmp_path)
    assert not closes & failed(after)
    eased = {c for p in proposals for c in p.eases} - closes
    assert eased <= failed(after)
    assert not [p for p in propose(after, SETTINGS) if p.sure and p.setting == "context-length"]


def test_the_incident(tmp_path: Path) -> None:
    plan = plan_settings(audited(incident_cluster(), tmp_path), SETTINGS)
    context = [p for p in plan.proposals if p.setting == "context-length"]
    assert [p.engine for p in context] == ["p0", "d0", "p1", "d1", "p2", "d2"]
    assert {p.new for p in context} == {"681274"}
    assert all(p.closes_admission_alone for p in context)
    assert not any(p.closes_admission_alone for p in plan.proposals if p.setting != "context-length")
    assert ("PDG201", "p0→d0") in context[0].closes
    assert context[0].place == ""  # 0.5.19 does not tell its launch command
    assert render_diff(context[0]) == ""
    assert context[3].current_from == "default"
    assert "+--context-length\n+681274\n" in render_diff(context[3])
    assert "-1048576\n+681274\n" in render_diff(context[1])
    reasons = {(s.engine, s.setting): s.reason for s in plan.skipped}
    assert "0.5.19 does not know the flag" in reasons["p0", "checksum"]
    assert "p0 cannot" in reasons["d2", "checksum"]
    assert "fix 32758" in reasons["p0", "batch-cap"]
    hold = {p.engine: p for p in plan.proposals if p.setting == "hold"}
    assert hold["d0"].current == "on, which is read as off"
    assert hold["d0"].sure
    assert not hold["p0"].sure
    assert {p.engine for p in plan.proposals if p.setting == "t-hold"} == {"d0"}


def test_a_fix_of_the_same_plan_brings_the_batch_cap(tmp_path: Path) -> None:
    result = audited(incident_cluster(), tmp_path)
    plan = plan_settings(result, SETTINGS, hardened={"p0": ["32758"]})
    assert "p0" in {p.engine for p in plan.proposals if p.setting == "batch-cap"}


def test_bare_facts_propose_what_is_not_as_it_should_be_and_a_sound_fleet_gets_nothing() -> None:
    sound = fleet(engine("p", "prefill"), engine("d", "decode"))
    assert propose(sound, SETTINGS) == ()
    off = fleet(engine("p", "prefill", "0.5.20"), engine("d", "decode", "0.5.20"))
    assert {(p.engine, p.setting) for p in propose(off, SETTINGS)} == {
        ("p", "hold"),
        ("d", "hold"),
        ("d", "t-hold"),
    }


def checked(collected: Collected, tmp_path: Path) -> AuditResult:
    file = tmp_path / "c.yaml"
    file.write_text("cluster: c\nengines: [{name: p, role: prefill, url: 'http://127.0.0.1:1'}]\n", "utf-8")
    return judge(load_cluster(file), collected, CHECKS, NOW)


def test_nothing_is_proposed_that_no_finding_asks_for(tmp_path: Path) -> None:
    slack = fleet(engine("p", "prefill", checksum=False), engine("d", "decode", checksum=False))
    assert {p.setting for p in propose(checked(slack, tmp_path), SETTINGS)} == {"checksum"}
    assert all(p.optional for p in propose(checked(slack, tmp_path), SETTINGS))
    metrics = fleet(engine("p", "prefill", metrics_on=False), engine("d", "decode"))
    assert [(p.engine, p.setting) for p in propose(checked(metrics, tmp_path), SETTINGS)] == [
        ("p", "metrics")
    ]


def test_a_half_that_truncates_does_not_close_the_gate_by_a_setting() -> None:
    cuts = fleet(
        engine("p", "prefill", "0.5.19", pool=20_000, pools=(20_000,), auto_truncate=True),
        engine("d", "decode", "0.5.19"),
    )
    found = [p for p in propose(cuts, SETTINGS) if p.setting == "context-length"]
    assert found
    assert not any(p.closes_admission_alone for p in found)


def test_policy_of_the_operator_counts() -> None:
    off = fleet(engine("p", "prefill", "0.5.20"), engine("d", "decode", "0.5.20"))
    off.policy = {**POLICY, "t_hold_min": 75.0}
    assert [p.new for p in propose(off, SETTINGS) if p.setting == "t-hold"] == ["75"]


# The gates as a client sees them, on the simulated pair of the lab.


def ask(url: str, body: dict[str, Any]) -> int:
    request = urllib.request.Request(
        f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def both_halves(live: Live, tokens: int) -> tuple[int, int]:
    body = {
        "input_ids": [7] * tokens,
        "sampling_params": {"max_new_tokens": 1},
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": live.bootstrap_ports["p0"],
        "bootstrap_room": tokens,
    }
    with concurrent.futures.ThreadPoolExecutor() as pool:
        first, second = pool.map(lambda name: ask(live.url(name), body), ("p0", "d0"))
    return first, second


def test_on_a_stock_0_5_19_pair_the_setting_alone_refuses_at_both_doors(tmp_path: Path) -> None:
    spec = ClusterSpec(
        engines=(
            EngineSpec("p0", "prefill", "0.5.19", 4096, None, (1024,), bootstrap_port=0),
            EngineSpec("d0", "decode", "0.5.19", 4096, None, (4096,), num_reserved_decode_tokens=16),
        )
    )
    with start_in_thread(spec) as live:
        assert both_halves(live, 1500) == (200, 200)  # the fault
        file = tmp_path / "cluster.yaml"
        file.write_text(live.cluster_yaml(), "utf-8")
        found = propose(run_audit(load_cluster(file), CHECKS, {}, NOW), SETTINGS)
    with start_in_thread(set_to(spec, [p for p in found if p.setting == "context-length"])) as live:
        assert both_halves(live, 1011) == (200, 200)  # the longest prompt
        for tokens in (1018, 1023, 1024, 1500, 4089):
            assert both_halves(live, tokens) == (400, 400), tokens
