"""The names of all facts: type, meaning, unit, and how to get one that is missing.

Checks may only use names listed here (held when a check is loaded), collectors only add these (held by a
test), and `docs/facts.md` is printed from this table.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdguard.facts._catalogue_engine import ENGINE_ROWS
from pdguard.facts._catalogue_other import CLUSTER_ROWS, NODE_ROWS, PAIR_ROWS, POLICY_ROWS, ROUTER_ROWS

Row = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class FactSpec:
    """One fact name. `type` is text, int, float, bool or list; `how` tells the operator how to get it."""

    subject: str
    name: str
    type: str
    meaning: str
    how: str


HOW = {
    "http": "make the engine's URL reachable from here (and give `auth:` if it wants a key)",
    "loads": "SGLang 0.5.10 or newer answers /v1/loads; make it reachable",
    "metrics": "start the engine with --enable-metrics",
    "process": "give the engine a `node:` whose transport can read its process",
    "env": "give the engine a `node:` whose transport can read its process, or start the engine with"
    " SGLANG_EXPOSE_OWN_ENV_VARS=1 (0.5.19 or newer)",
    "bootstrap": "give the prefill its `bootstrap_port:` and make it reachable from here",
    "version": "needs a released version this catalogue knows (0.4.10 to 0.5.23), or the source fingerprints",
    "cluster": "write it in cluster.yaml",
    "router": "make the router's URL reachable from here",
    "package": "write `version:` for the router in cluster.yaml, or give it a `node:`",
    "probe": "run `pdguard probe` and give its result with --with",
    "window": "run `pdguard metrics` and give its result with --with",
    "derived": "it follows from other facts; see what they miss",
    "both": "needs the same fact of both halves of the pair",
}


def _specs(subject: str, rows: tuple[Row, ...]) -> dict[str, FactSpec]:
    return {name: FactSpec(subject, name, type_, meaning, HOW[how]) for name, type_, how, meaning in rows}


CATALOGUE: dict[str, dict[str, FactSpec]] = {
    "engine": _specs("engine", ENGINE_ROWS),
    "pair": _specs("pair", PAIR_ROWS),
    "router": _specs("router", ROUTER_ROWS),
    "node": _specs("node", NODE_ROWS),
    "cluster": _specs("cluster", CLUSTER_ROWS),
    "policy": _specs("policy", POLICY_ROWS),
}
"""Fact specifications by subject and name. Within a pair check, `prefill` and `decode` are engines."""

ROOTS: dict[str, str] = {
    "engine": "engine",
    "prefill": "engine",
    "decode": "engine",
    "pair": "pair",
    "router": "router",
    "node": "node",
    "cluster": "cluster",
    "policy": "policy",
}
"""Names that an expression may start with, and the subject whose facts they carry."""


def spec(root: str, name: str) -> FactSpec | None:
    """The specification behind `root.name` in an expression, or None where there is no such fact."""
    subject = ROOTS.get(root)
    return None if subject is None else CATALOGUE[subject].get(name)
