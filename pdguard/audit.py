"""The main job from end to end: collect facts, judge them, apply waivers. The CLI only prints the result."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence

from pdguard.cluster.model import Cluster
from pdguard.facts.collect import collect
from pdguard.facts.interface import Collected
from pdguard.facts.observed import Observation, Observed
from pdguard.policy.evaluate import evaluate
from pdguard.policy.model import AuditResult, Check
from pdguard.policy.waivers import apply_waivers


def run_audit(
    cluster: Cluster,
    checks: Sequence[Check],
    environ: Mapping[str, str],
    now: datetime.datetime,
    progress: Callable[[str], None] | None = None,
    exercise: bool = False,
    observations: Sequence[Observation] = (),
) -> AuditResult:
    """Audit `cluster` with `checks`.

    `environ` is where API keys named by variable are looked up; `now` (UTC) dates the report and decides
    which waivers still hold. With `exercise` the installed code of engines on local nodes is run by itself as
    well. `observations` are what probes and windows of metrics saw before. Raises InputError for a key that
    cannot be read, NothingCollected where not one engine or node could be read.
    """
    observed = Observed(observations, now.timestamp())
    collected = collect(cluster, environ, progress, exercise, observed)
    return judge(cluster, collected, checks, now)


def judge(
    cluster: Cluster, collected: Collected, checks: Sequence[Check], now: datetime.datetime
) -> AuditResult:
    """The verdicts on facts that are already there."""
    ran = {c.id for c in checks}
    findings, notes = apply_waivers(evaluate(checks, collected), cluster.waivers, now.date(), ran)
    return AuditResult(
        cluster=cluster.cluster,
        generated_at=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        findings=tuple(findings),
        engines=tuple(collected.engines),
        notes=(*collected.notes, *notes),
        policy=collected.policy,
    )
