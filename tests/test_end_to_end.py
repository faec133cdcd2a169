"""The whole audit over real HTTP: no traceback, no secret, the same evidence gives the same bytes."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdguard._bundle import bundled
from pdguard.audit import run_audit
from pdguard.cluster.loader import parse_cluster
from pdguard.errors import NothingCollected
from pdguard.policy.loader import load_checks
from pdguard.policy.model import AuditResult, Status
from pdguard.report.interface import create
from pdguard.simulator import ClusterSpec, EngineSpec, Lie, RouterSpec, incident_cluster, start_in_thread

CHECKS = load_checks(bundled("checks"))
NOW = datetime.datetime(2026, 11, 30, 12, 0, tzinfo=datetime.UTC)
POLICY = "\npolicy: {request_timeout: 0.5, run_timeout: 5}\n"
SECRET = "sk-pdguard-4f9a1c77e2"
ENVIRON = {"KEY": SECRET}


def audit(spec: ClusterSpec, more: str = POLICY) -> AuditResult:
    with start_in_thread(spec) as live:
        cluster = parse_cluster(live.cluster_yaml() + more, "test")
        return run_audit(cluster, CHECKS, ENVIRON, NOW)


def pair(prefill: EngineSpec | None = None, decode: EngineSpec | None = None) -> ClusterSpec:
    engines = (
        prefill or EngineSpec("p0", "prefill", bootstrap_port=0),
        decode or EngineSpec("d0", "decode"),
    )
    return ClusterSpec("test", engines, (RouterSpec("r0", engines=("p0", "d0")),))


def failed(result: AuditResult, target: str = "") -> set[str]:
    return {f.check for f in result.findings if f.status is Status.FAIL and target in (f.target, "")}


def texts(result: AuditResult) -> str:
    return create("json").render(result) + create("table").render(result)


def test_the_incident_is_found() -> None:
    result = audit(incident_cluster(6), "")
    assert {"PDG101", "PDG201", "PDG206", "PDG401", "PDG403", "PDG501"} <= failed(result)
    assert {"PDG101", "PDG206"} <= failed(result, "p0")
    assert "PDG501" in failed(result, "r0")
    assert "PDG201" in failed(result, "p0→d0")
    assert "PDG101" not in failed(result, "p2")


def test_a_sound_pair_fails_nothing_that_matters() -> None:
    on = {"SGLANG_EXPOSE_OWN_ENV_VARS": "1"}
    engines = (
        EngineSpec("p0", "prefill", "0.5.23", pools=(8192,), bootstrap_port=0, exposed_env=on),
        EngineSpec("d0", "decode", "0.5.23", pools=(8192,), exposed_env=on),
    )
    router = RouterSpec("r0", "smg", "1.13.0", ("p0", "d0"))
    result = audit(ClusterSpec("test", engines, (router,)))
    worst = {f.check: f.severity.label for f in result.findings if f.status is Status.FAIL}
    assert not {c for c, s in worst.items() if s in ("critical", "high")}, worst


@pytest.mark.parametrize(
    "version", ["0.4.10", "0.5.5", "0.5.10", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"]
)
def test_every_version_is_read(version: str) -> None:
    result = audit(
        pair(
            EngineSpec("p0", "prefill", version, pools=(1024,), bootstrap_port=0),
            EngineSpec("d0", "decode", version),
        )
    )
    for engine in result.engines:
        assert engine.facts.value("version") == version
        assert engine.facts.value("context_length") == 4096
        assert engine.facts.value("role") == {"p0": "prefill", "d0": "decode"}[engine.name]
    limits = {e.name: e.facts.value("admission_limit") for e in result.engines}
    assert limits == {"p0": 1018, "d0": 4090}
    expected = "PDG201" if version in ("0.5.5", "0.5.10", "0.5.18", "0.5.19") else "PDG202"
    assert "PDG101" in failed(result, "p0")
    assert (expected in failed(result, "p0→d0")) == (version != "0.4.10")


@pytest.mark.parametrize("lie", [x for x in Lie if x is not Lie.NONE])
def test_a_lying_engine_costs_its_own_facts_alone(lie: Lie) -> None:
    honest = audit(pair())
    decode = EngineSpec("d0", "decode", lie=lie, slow_seconds=1.5, huge_bytes=8 << 20)
    result = audit(pair(decode=decode))
    # PDG108 compares with what fits the whole cluster, which needs every engine.
    mine, before = (
        {f.check: f.status for f in r.findings if f.target == "p0" and f.check != "PDG108"}
        for r in (result, honest)
    )
    assert mine == before
    unknown = {f.check for f in result.findings if f.status is Status.UNKNOWN and f.target == "d0"}
    assert "PDG102" in unknown or lie is Lie.MISSING_KEYS
    # What did not answer never passes a check that needs an answer.
    passed = {f.check for f in result.findings if f.status is Status.PASS and f.target == "d0"}
    assert not passed & {"PDG102", "PDG401"} or lie is Lie.MISSING_KEYS


def test_where_nothing_answers_there_is_nothing_to_judge() -> None:
    dead = [EngineSpec(n, "prefill" if n == "p0" else "decode", lie=Lie.REFUSED) for n in ("p0", "d0")]
    with pytest.raises(NothingCollected, match="refused") as error:
        audit(ClusterSpec("test", tuple(dead)))
    assert error.value.exit_code == 3


def test_the_same_evidence_gives_the_same_bytes() -> None:
    with start_in_thread(incident_cluster(12)) as live:
        cluster = parse_cluster(live.cluster_yaml(), "test")
        reports = [
            create(name).render(run_audit(cluster, CHECKS, {}, NOW))
            for _ in range(2)
            for name in ("json", "table")
        ]
    assert reports[0] == reports[2]
    assert reports[1] == reports[3]


def test_the_audit_changes_nothing_and_asks_nothing_active() -> None:
    with start_in_thread(incident_cluster(6)) as live:
        run_audit(parse_cluster(live.cluster_yaml(), "test"), CHECKS, {}, NOW)
        for engine in live.engines.values():
            assert not engine.state.mutations
            asked = {path for _, path in engine.state.calls}
            assert not {p for p in asked if "health" in p or "generate" in p or "flush" in p}


class _Planted:
    """Text leaves replaced by a secret, so that whatever is copied from an answer gives itself away."""

    def __init__(self, spec: EngineSpec) -> None:
        from pdguard.simulator.answers import server_info

        self.spec = spec
        answer = server_info(spec, 30000, 30001)
        keep = {"version", "disaggregation_mode", "disaggregation_transfer_backend", "internal_states"}
        strings = {
            k: f"{SECRET}-{k}" for k, v in answer.items() if isinstance(v, str | type(None)) and k not in keep
        }
        self.overrides: dict[str, Any] = strings | {"launch_command": self.command()}

    def command(self) -> str:
        words = (
            "--api-key",
            "--context-length",
            "--tp-size",
            "--model-path",
            "--disaggregation-mode",
            SECRET,
        )
        return " ".join(f"{w} {SECRET}-{i}" for i, w in enumerate(words))


def test_no_secret_of_any_answer_reaches_any_output() -> None:
    plain = EngineSpec("p0", "prefill", "0.5.22", bootstrap_port=0, model=f"/models/{SECRET}")
    names = [
        "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE",
        "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT",
        "SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES",
        "SGLANG_TEST_DISAGG_FAILURE_PROB",
        "HF_TOKEN",
    ]
    env = {n: f"{SECRET}{i}" for i, n in enumerate(names)} | {"SGLANG_EXPOSE_OWN_ENV_VARS": "1"}
    spec = pair(
        EngineSpec(
            "p0",
            "prefill",
            "0.5.22",
            bootstrap_port=0,
            model=plain.model,
            overrides=_Planted(plain).overrides,
            exposed_env=env,
            api_key=SECRET,
            admin_api_key=f"{SECRET}-admin",
        ),
        EngineSpec("d0", "decode", "0.5.22", admin_api_key=f"{SECRET}-admin", exposed_env=env),
    )
    result = audit(spec, POLICY + "auth: {api_key_env: KEY}\n")
    assert result.engines[0].facts.flag("reachable")
    assert SECRET not in texts(result)
    assert SECRET[3:] not in texts(result)


_LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(SECRET)
_JSON = st.recursive(
    _LEAF,
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=8), x, max_size=3),
    max_leaves=8,
)
_FIELDS = (
    *(
        "version",
        "max_total_num_tokens",
        "max_req_input_len",
        "context_length",
        "internal_states",
        "page_size",
    ),
    *(
        "disaggregation_mode",
        "disaggregation_transfer_backend",
        "launch_command",
        "enable_metrics",
        "tp_size",
    ),
    *("kv_canary", "speculative_algorithm", "api_key", "disaggregation_decode_host_receive_threshold"),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(_FIELDS), _JSON, min_size=1, max_size=6))
def test_no_answer_gives_a_traceback(fields: dict[str, Any]) -> None:
    result = audit(pair(EngineSpec("p0", "prefill", bootstrap_port=0, overrides=fields)))
    told = texts(result)
    assert SECRET not in told
    json.loads(create("json").render(result))


def test_no_control_character_or_machine_path_in_the_table() -> None:
    table = create("table").render(audit(incident_cluster(6), ""))
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", table)
    assert str(Path.home()) not in table
