"""What an operator does after a probe."""

from __future__ import annotations

from pdguard.probe.interface import Kind, ProbeResult, Verdict
from pdguard.probe.outcome import Word, said, word_of

_LENGTH = "set one --context-length on both roles that fits the smaller pool (`pdguard explain PDG101`)"
_CUTS = (
    "remove --allow-auto-truncate from prefill: decode reads more than it writes (`pdguard explain PDG212`)"
)
_EXPLAIN = {Kind.PAIRING: "PDG501", Kind.ABORT: "PDG502"}
"""The check that says what a router has to do with both halves."""


def next_step(result: ProbeResult, cluster: str = "CLUSTER", saved: str = "") -> str:
    """What is to be done now. `cluster` is the cluster file, `saved` the file that has the JSON, or empty."""
    which = said(result).word
    verdicts = {v for r in result.results for v in (r.verdict, *(h.verdict for h in r.halves))}
    audit = f"`pdguard audit {cluster} --with {saved}`"
    later = "add --save probe.json next time to keep it for `pdguard audit --with`"
    keep = f"then {audit}" if saved else later
    harden = f"`pdguard harden {cluster} --auto` (its engines' nodes must be in the file)"
    exposed = [r for r in result.results if r.verdict is Verdict.EXPOSED]
    if any(r.step.route.prefill_cuts for r in exposed):
        return f"{_CUTS}, and probe again; {keep}"
    if which is Word.EXPOSED:
        return f"{_LENGTH}, or take the prefill out of service; then {harden}, and probe again; {keep}"
    if which is Word.AT_RISK and verdicts & {Verdict.WAITED, Verdict.HELD, Verdict.LATE, Verdict.WALKED_ON}:
        return f"{_LENGTH}; where the engine is not fixed {harden}; {keep}"
    if which is Word.AT_RISK:
        return f"read what the router does with both halves ({_explained(result)}); {keep}"
    if which is Word.UNKNOWN:
        return _completed(result)
    return audit if saved else later


def _explained(result: ProbeResult) -> str:
    kinds = dict.fromkeys(r.step.kind for r in result.results if word_of(r) is Word.AT_RISK)
    ids = [_EXPLAIN[kind] for kind in kinds if kind in _EXPLAIN] or list(_EXPLAIN.values())
    return ", ".join(f"`pdguard explain {one}`" for one in ids)


def _completed(result: ProbeResult) -> str:
    todos = list(dict.fromkeys(one.todo for one in result.plan.left_out if one.todo and one.lost))
    options = [todo for todo in todos if todo.startswith("--")]
    if options:
        return f"probe again with {' and '.join(options)}"
    return todos[0] if todos else "see the reasons below, and probe again"
