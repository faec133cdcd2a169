"""`pdguard audit` on running engines: the right gates on the right targets, and the engines' own numbers."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from .audit_specs import INCIDENT, NEWER, SOUND
from .lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

EVERY = pytest.mark.parametrize(
    "lab", [INCIDENT, NEWER, SOUND], indirect=True, scope="session", ids=lambda s: s.version
)
GATES_OF_THE_ISSUE = ("pool", "admission", "lifetime", "router")

Report = dict[str, Any]


def audit(lab: Lab, tmp_path: Path, *options: str) -> tuple[Report, int]:
    """The JSON report of the command on the live pair, and its exit code."""
    file = lab.write_cluster_yaml(tmp_path)
    command = [sys.executable, "-m", "pdguard", "audit", str(file), "--format", "json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode in (0, 10, 11, 12, 13), done.stderr
    report: Report = json.loads(done.stdout)
    return report, done.returncode


def failing(report: Report) -> set[tuple[str, str]]:
    return {(f["check"], f["target"]) for f in report["findings"] if f["status"] == "fail"}


def answer(url: str, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}{path}", timeout=20) as response:
        found: dict[str, Any] = json.load(response)
    return found


@pytest.mark.parametrize("lab", [INCIDENT], indirect=True, scope="session")
def test_the_incident_in_small(lab: Lab, tmp_path: Path) -> None:
    """0.5.20, pools 1024/4096, context 4096, hold unset, sglang-router 0.3.2."""
    report, code = audit(lab, tmp_path)
    p, d = lab.prefill.name, lab.decode.name
    found = failing(report)
    assert ("PDG101", p) in found
    assert ("PDG202", f"{p}→{d}") in found
    assert ("PDG207", p) in found
    assert ("PDG401", d) in found
    assert lab.router is not None
    assert ("PDG501", lab.router.name) in found
    assert ("PDG102", d) not in found
    assert ("PDG101", d) not in found
    assert ("PDG206", p) not in found
    assert code == 13
    hold = next(f for f in report["findings"] if f["check"] == "PDG401" and f["target"] == d)
    assert hold["grade"] == "configured"
    window = next(f for f in report["findings"] if f["check"] == "PDG202")
    assert "1,018 to 4,089" in window["message"]
    assert "8 s" in window["message"]


@pytest.mark.parametrize("lab", [NEWER], indirect=True, scope="session")
def test_a_newer_engine_with_the_same_pools(lab: Lab, tmp_path: Path) -> None:
    report, code = audit(lab, tmp_path)
    p, d = lab.prefill.name, lab.decode.name
    found = failing(report)
    assert {("PDG101", p), ("PDG202", f"{p}→{d}")} <= found
    assert not {c for c, _ in found if c in ("PDG206", "PDG207", "PDG401", "PDG402", "PDG411")}
    held = {f["target"]: f["status"] for f in report["findings"] if f["check"] == "PDG401"}
    assert held == {d: "pass"}
    assert code == 13


@pytest.mark.parametrize("lab", [SOUND], indirect=True, scope="session")
def test_a_sound_pair_passes_or_says_why_it_cannot_tell(lab: Lab, tmp_path: Path) -> None:
    report, _ = audit(lab, tmp_path)
    mine = [f for f in report["findings"] if f["gate"] in GATES_OF_THE_ISSUE]
    assert not [(f["check"], f["target"], f["message"]) for f in mine if f["status"] == "fail"]
    unknown = [f for f in mine if f["status"] == "unknown"]
    assert all(f["missing"] for f in unknown)
    passed = {f["check"] for f in mine if f["status"] == "pass"}
    assert {"PDG101", "PDG102", "PDG202", "PDG401", "PDG411", "PDG501"} <= passed


@EVERY
def test_every_value_is_the_engines_own(lab: Lab, tmp_path: Path) -> None:
    report, _ = audit(lab, tmp_path)
    rows = {e["name"]: e for e in report["engines"]}
    for engine in lab.engines:
        row, info = rows[engine.name], answer(engine.url, "/server_info")
        models = answer(engine.url, "/v1/models")["data"]
        state = info["internal_states"][0]
        assert row["role"] == info["disaggregation_mode"] == engine.role
        assert row["version"] == info["version"] == lab.spec.version
        assert row["context_length"] == models[0]["max_model_len"]
        assert row["admission_limit"] == info["max_req_input_len"]
        assert row["pool"] == info["max_total_num_tokens"] == state["memory_usage"]["token_capacity"]
        same = {
            "context_flag": "context_length",
            "page_size": "page_size",
            "tp_size": "tp_size",
            "dp_size": "dp_size",
            "pp_size": "pp_size",
            "backend": "disaggregation_transfer_backend",
            "kv_cache_dtype": "kv_cache_dtype",
            "auto_truncate": "allow_auto_truncate",
            "metrics_on": "enable_metrics",
            "radix_cache_off": "disable_radix_cache",
            "hierarchical_cache": "enable_hierarchical_cache",
            "kv_canary": "kv_canary",
            "max_total_tokens_flag": "max_total_tokens",
            "reserved_decode_tokens": "num_reserved_decode_tokens",
        }
        assert {ours: row[ours] for ours in same} == {ours: info[theirs] for ours, theirs in same.items()}
        wait = lab.spec.waiting_timeout or 300
        assert row["waiting_timeout"] == row["bootstrap_timeout"] == wait
        assert row["hold_raw"] == "unset"
        assert row["pid"] == engine.server.pid
        assert "sglang::scheduler" in row["titles"]


@EVERY
def test_the_same_evidence_gives_the_same_bytes(lab: Lab, tmp_path: Path) -> None:
    one, two = (audit(lab, tmp_path)[0] for _ in range(2))
    for report in (one, two):
        report.pop("generated_at")
    assert json.dumps(one) == json.dumps(two)


@pytest.mark.parametrize("lab", [INCIDENT], indirect=True, scope="session")
def test_an_audit_leaves_the_engines_as_they_were(lab: Lab, tmp_path: Path) -> None:
    def loads() -> list[Any]:
        return [answer(e.url, "/v1/loads")["loads"][0]["num_used_tokens"] for e in lab.engines]

    before = loads()
    audit(lab, tmp_path)
    assert loads() == before
