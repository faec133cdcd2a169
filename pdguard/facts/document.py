"""docs/facts.md: the table of all facts, printed from the catalogue."""

from __future__ import annotations

from pdguard.facts.catalogue import CATALOGUE

INTRO = """\
# Facts

Printed from `pdguard/facts/catalogue.py` by `make docs`; a test holds this page to it. These are the only
names that the expression and the message of a check may use. A check about engines writes `engine.pool`, one
about pairs may use `pair.…`, `prefill.…` and `decode.…` (both of them engines), and every check may use
`cluster.…` and `policy.…`.

A fact that could not be had is missing, with a reason; an expression that needs it is unknown.
"""


def facts_page() -> str:
    """The whole page."""
    parts = [INTRO]
    for subject, specs in CATALOGUE.items():
        parts += [f"## {subject}", "", "| fact | type | meaning | when it is missing |", "|---|---|---|---|"]
        parts += [f"| `{s.name}` | {s.type} | {s.meaning} | {s.how} |" for s in specs.values()]
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"
