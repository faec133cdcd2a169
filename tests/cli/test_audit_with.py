"""`pdguard audit --with`: what a probe or a window of metrics saw, in the report of a simulated cluster."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pdguard import __version__
from pdguard._bundle import bundled
from pdguard.audit import run_audit
from pdguard.cluster.loader import parse_cluster
from pdguard.facts.observed import Observation, as_entry
from pdguard.policy.loader import load_checks
from pdguard.policy.model import AuditResult, Finding, Status
from pdguard.probe.document import as_json
from pdguard.probe.interface import ProbeResult
from pdguard.report.interface import create
from pdguard.report.schema import report_schema
from pdguard.simulator import ClusterSpec, EngineSpec, RouterSpec, start_in_thread
from tests.cli.test_commands import pdguard
from tests.probe.results import exposed_019

CHECKS = load_checks(bundled("checks"))
NEW = {"PDG209", "PDG210", "PDG211", "PDG428", "PDG429", "PDG430", "PDG511", "PDG512", "PDG622", "PDG623"}
AT = "2026-11-30T12:00:00Z"
NOW = datetime.datetime(2026, 11, 30, 13, 0, tzinfo=datetime.UTC)
SPEC = ClusterSpec(
    "prod",
    (
        EngineSpec("p0", "prefill", "0.5.19", pools=(1024,), bootstrap_port=0),
        EngineSpec("d0", "decode", "0.5.19"),
    ),
    (RouterSpec("r0", engines=("p0", "d0")),),
)


@pytest.fixture(scope="module")
def described() -> Iterator[str]:
    with start_in_thread(SPEC) as live:
        yield live.cluster_yaml()


def audit(described: str, observations: Sequence[Observation] = ()) -> AuditResult:
    return run_audit(parse_cluster(described, "test"), CHECKS, {}, NOW, observations=observations)


def finding(result: AuditResult, check: str, target: str) -> Finding:
    (found,) = (f for f in result.findings if (f.check, f.target) == (check, target))
    return found


def labels(result: AuditResult, check: str, target: str) -> tuple[str, str | None]:
    found = finding(result, check, target)
    return found.status.value, None if found.grade is None else found.grade.label


def saved(folder: Path, result: ProbeResult) -> Path:
    file = folder / "probe.json"
    file.write_text(as_json(result), "utf-8")
    return file


def test_verdicts_climb_to_observed(described: str, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(described)
    plain = json.loads(pdguard("audit", str(cluster), "-f", "json").stdout)
    done = pdguard("audit", str(cluster), "-f", "json", "--with", str(saved(tmp_path, exposed_019())))
    assert done.returncode == 13, done.stderr
    report = json.loads(done.stdout)
    jsonschema.validate(report, report_schema())
    for check, target, before in (
        ("PDG206", "p0", ("fail", "claimed")),
        ("PDG209", "p0→d0", ("skipped", "observed")),
        ("PDG511", "r0", ("skipped", "observed")),
        ("PDG501", "r0", ("fail", "claimed")),
    ):
        assert _labels(plain, check, target) == before, check
        assert _labels(report, check, target) == ("fail", "observed"), check
    assert _labels(report, "PDG512", "r0") == ("pass", "observed")
    assert _labels(report, "PDG428", "p0→d0") == ("skipped", "observed")
    (found,) = (f for f in report["findings"] if f["check"] == "PDG209")
    assert {"source": "probe", "ref": f"step 1 over-pool, 1,500 tokens, {AT}", "value": True} in found[
        "evidence"
    ]


def _labels(report: dict[str, Any], check: str, target: str) -> tuple[str, str]:
    (one,) = (f for f in report["findings"] if (f["check"], f["target"]) == (check, target))
    return one["status"], one["grade"]


def test_an_audit_without_a_document_says_what_it_said(described: str) -> None:
    """The new checks are skipped, and nothing else knows of them: no fact of an engine, no evidence."""
    result = audit(described)
    mine = [f for f in result.findings if f.check in NEW]
    assert {f.check for f in mine} == NEW
    assert {f.status for f in mine} == {Status.SKIPPED}
    rest = replace(result, findings=tuple(f for f in result.findings if f.check not in NEW))
    old = run_audit(parse_cluster(described, "test"), [c for c in CHECKS if c.id not in NEW], {}, NOW)
    text = create("json").render(rest)
    assert text == create("json").render(old)
    for word in ("watched", "probes", "window_holds", "held_share"):
        assert f'"{word}' not in text


def test_a_document_that_says_nothing_changes_no_verdict(described: str, tmp_path: Path) -> None:
    cluster, probe = tmp_path / "cluster.yaml", tmp_path / "probe.json"
    cluster.write_text(described)
    probe.write_text('{"schema": "pdguard.probe/1", "cluster": "prod", "engines": [], "observations": []}')
    plain, same = (
        json.loads(pdguard("audit", str(cluster), "-f", "json", *more).stdout)
        for more in ([], ["--with", str(probe)])
    )
    assert plain["findings"] == same["findings"]


def window(drained: int, timeout: int, error: int = 0, **more: float) -> list[Observation]:
    counts = {"drained": drained, "timeout": timeout, "error": error}
    facts: dict[str, float] = {f"window_holds_{o}": n for o, n in counts.items()}
    facts |= {"hold_window_seconds": 3600.0, **more}
    return [Observation("engine", "d0", f, v, "metrics", "query", AT) for f, v in facts.items()]


@pytest.fixture(scope="module")
def counting() -> Iterator[str]:
    seed = {
        'decode_deferred_kv_release_total{outcome="timeout"}': 88.0,
        'decode_deferred_kv_release_total{outcome="drained"}': 2.0,
    }
    engines = (
        EngineSpec("p0", "prefill", "0.5.22", bootstrap_port=0),
        EngineSpec("d0", "decode", "0.5.22", seed=seed, exposed_env={"SGLANG_EXPOSE_OWN_ENV_VARS": "1"}),
    )
    with start_in_thread(ClusterSpec("prod", engines)) as live:
        yield live.cluster_yaml()


def test_a_window_takes_the_place_of_the_totals(counting: str) -> None:
    assert labels(audit(counting), "PDG610", "d0") == ("fail", "observed")
    assert labels(audit(counting), "PDG622", "d0") == ("skipped", "observed")
    good = audit(counting, window(990, 3))
    assert labels(good, "PDG610", "d0") == ("skipped", "observed")
    assert labels(good, "PDG622", "d0") == ("pass", "observed")
    bad = audit(counting, window(90, 30))
    assert labels(bad, "PDG622", "d0") == ("fail", "observed")
    assert finding(bad, "PDG622", "d0").message == "in 3,600 s: 90 drained, 30 timed out, 0 failed"
    few = audit(counting, window(1, 1))
    assert labels(few, "PDG610", "d0") == ("fail", "observed")
    assert labels(few, "PDG622", "d0") == ("skipped", "observed")


def test_a_window_shows_what_is_held_and_what_ran_out(counting: str) -> None:
    full = audit(counting, window(90, 0, held_share=0.4))
    assert finding(full, "PDG430", "d0").status is Status.FAIL
    log = [o for o in window(0, 3) if o.fact in ("window_holds_timeout", "hold_window_seconds")]
    found = finding(audit(counting, log), "PDG623", "d0")
    assert found.status is Status.FAIL
    assert found.message.startswith("3 holds ran out in 3,600 s")


def test_old_news_is_told(described: str) -> None:
    old = [Observation("pair", "p0→d0", "probe_exposed", True, "probe", "step 1", "2026-11-27T13:00:00Z")]
    result = audit(described, old)
    assert result.notes == (
        "probe of 2026-11-27T13:00:00Z: 1 observation merged",
        "probe of 2026-11-27T13:00:00Z is 3.0 days old; whether d0, p0 started later is not known",
    )


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"schema": "pdguard.report/1"}', "pdguard.probe/1 or pdguard.metrics/1"),
        ('{"schema": "pdguard.probe/1", "cluster": "test", "observations": []}', "another cluster"),
        ("not json", "is not JSON"),
    ],
)
def test_a_wrong_file_is_exit_2_before_anything_is_read(
    described: str, tmp_path: Path, content: str, told: str
) -> None:
    file = tmp_path / "probe.json"
    file.write_text(content)
    done = pdguard("audit", "-", "--with", str(file), stdin=described)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "reading" not in done.stderr
    assert "Traceback" not in done.stderr


def test_both_kinds_of_document_go_together(described: str, tmp_path: Path) -> None:
    cluster, metrics = tmp_path / "cluster.yaml", tmp_path / "metrics.json"
    cluster.write_text(described)
    entries = [as_entry(o) for o in window(990, 3)]
    content = {"schema": "pdguard.metrics/1", "cluster": "prod", "observations": entries}
    metrics.write_text(json.dumps(content | {"pdguard": __version__}))
    files = ["--with", str(metrics), "--with", str(saved(tmp_path, exposed_019()))]
    report = json.loads(pdguard("audit", str(cluster), "-f", "json", *files).stdout)
    assert _labels(report, "PDG622", "d0") == ("pass", "observed")
    assert _labels(report, "PDG209", "p0→d0") == ("fail", "observed")


def test_the_schema_of_a_probe_is_printed() -> None:
    assert json.loads(pdguard("schema", "probe").stdout)["$id"] == "pdguard.probe/1"
