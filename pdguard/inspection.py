"""Inspects one package: the same fixes, facts and checks as an audit, without a cluster or a network."""

from __future__ import annotations

from collections.abc import Sequence

from pdguard._bundle import bundled
from pdguard.facts.derived import derive_engine
from pdguard.facts.fixes import add_fix_facts
from pdguard.facts.interface import Collected, Grade, Subject
from pdguard.facts.versions import parse_version
from pdguard.fingerprint.loader import load_fixes
from pdguard.fingerprint.match import Matcher
from pdguard.fingerprint.model import FixFinding, State
from pdguard.fingerprint.notice import hardened_fixes
from pdguard.fingerprint.report import Inspection
from pdguard.fingerprint.targets import Target
from pdguard.policy.evaluate import evaluate
from pdguard.policy.model import Check, Finding, Severity, Status

SOURCE_FACTS = frozenset(
    {
        *(
            "reject_fate",
            "hold_support",
            "hold_scope",
            "early_ack",
            "ack_kept",
            "ack_every_rank",
            "prefill_told",
        ),
        *("fake_receiver_fault", "batch_cap_support", "source_disagrees", "unmerged", "restore_fault"),
        *("offload_slot_fault", "offload_retract_fault", "nixl_abort_kills", "version_kind"),
    }
)
"""Facts that source can tell. A check is run on a package if what it fails by is among them."""


def inspect_target(target: Target, backend: str, checks: Sequence[Check]) -> Inspection:
    """The state of every fix in `target`, and the verdicts that follow for both roles with this backend."""
    matcher = Matcher(load_fixes(bundled("remediations")))
    fixes = matcher.find(target.read)
    hardened = hardened_fixes(target.read, matcher.watched())
    engines = []
    for role in ("prefill", "decode"):
        engine = Subject("engine", role)
        engine.facts.add("role", role, Grade.CLAIMED, "inspect", "both roles are judged")
        engine.facts.add("backend", backend, Grade.CLAIMED, "inspect", "--backend")
        if target.version is not None and parse_version(target.version) is not None:
            engine.facts.add("version", target.version, Grade.CLAIMED, "source", "version file")
        add_fix_facts(engine.facts, fixes, hardened)
        derive_engine(engine.facts)
        engines.append(engine)
    findings = evaluate(source_checks(checks), Collected(Subject("cluster", "inspect"), engines))
    seen = {(f.check, f.status, f.message): f for f in reversed(findings)}
    of_fixes = [_of_fix(f, backend) for f in fixes if f.fix.merged]
    unreadable = _unreadable(target, matcher.watched())
    return Inspection(
        target.name, target.version, backend, tuple(fixes), (*of_fixes, *seen.values()), unreadable
    )


def _unreadable(target: Target, watched: Sequence[str]) -> str:
    """Why no file could be read, or "" where at least one could."""
    why = "none of them is there"
    for path in watched:
        try:
            if target.read(path) is not None:
                return ""
        except LookupError as error:
            why = str(error.args[0])
    return why


_STATUS = {
    State.PRESENT: Status.PASS,
    State.PARTIAL: Status.FAIL,
    State.ABSENT: Status.FAIL,
    State.NOT_APPLICABLE: Status.SKIPPED,
    State.UNKNOWN: Status.UNKNOWN,
}


def _of_fix(found: FixFinding, backend: str) -> Finding:
    """A fix as a finding: missing or partial fails, for the backends that it is about."""
    concerned = not found.backends or backend in found.backends
    state = found.backends.get(backend, found.state) if concerned else State.NOT_APPLICABLE
    first = f"upgrade to {found.fix.first_release} or newer" if found.fix.first_release else "upgrade"
    return Finding(
        check=f"fix {found.fix.id}",
        title=found.fix.title,
        gate=found.fix.gate,
        severity=Severity[found.fix.severity.upper()],
        status=_STATUS[state],
        grade=Grade.FINGERPRINTED if state is not State.UNKNOWN else None,
        target=backend,
        message=f"{state.value} in this source" + ("" if concerned else f" (not for {backend})"),
        missing=tuple(p.why for p in found.parts if p.state is State.UNKNOWN),
        fix=(first,),
        refs=found.fix.refs,
    )


def source_checks(checks: Sequence[Check]) -> list[Check]:
    """The checks about engines that source alone can decide."""
    from pdguard.policy.expression import Expression

    kept = []
    for check in checks:
        refs = (*Expression(check.fail_if).refs, *Expression(check.when).refs)
        of_engine = check.for_each in ("prefill", "decode", "engine")
        allowed = SOURCE_FACTS | {"backend", "role"}
        if of_engine and refs and all(root == "engine" and name in allowed for root, name in refs):
            kept.append(check)
    return kept
