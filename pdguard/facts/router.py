"""Routers: the workers they list, against cluster.yaml, and what their package is known to do.

Whether a router pairs aborts cannot be asked of it. It follows from kind, version and build date by the
measurements in ROUTERS.md; a combination that nobody measured stays unknown. `derive_router` is called once
every collector is done, since version and build date may come from a router's process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any
from urllib.parse import urlsplit

from packaging.version import InvalidVersion, Version

from pdguard.facts._fetch import HOW_KEY, HOW_URL, Failed
from pdguard.facts._read import ABSENT, Bad, describe, flag, parse_json, word
from pdguard.facts.interface import Evidence, Fact, FactSet, Grade, Value

SOURCE = "router"
HOW_PACKAGE = "write `version:` for the router in cluster.yaml, or give it a `node:`"
LISTED = ("workers", "workers_unknown", "engines_unlisted", "workers_unhealthy", "role_conflicts")
PAIRING = ("pairs_refusals", "pairs_disconnects", "retries")
FIX_PROPOSED = "2026-06-23"
"""sglang#29017 was proposed on this day and merged later; which later build first holds it is not known."""

_TYPE = word(frozenset({"prefill", "decode", "regular"}))
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker as a router lists it: its address as compared here, its role, whether it is healthy."""

    address: str
    role: str | Bad
    healthy: bool | Bad


@dataclass(slots=True)
class Listing:
    """What a router answered about its workers."""

    path: str
    workers: list[Worker] = field(default_factory=list)


def address(url: str) -> str:
    """`host:port/prefix` of a URL, for comparison: case, default port, rank suffix and slash do not count.

    A router that knows data-parallel ranks appends `@0` to a worker's URL.
    """
    head, at, rank = url.rpartition("@")
    if at and rank.isdigit():
        url = head
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        return ""
    host = (parts.hostname or "").rstrip(".")
    return f"{host}:{port}{parts.path.rstrip('/')}" if host else ""


def read_workers(path: str, body: bytes) -> Listing | Bad:
    """The workers in an answer of /workers (objects) or /list_workers (URLs only)."""
    answer = parse_json(body)
    if isinstance(answer, dict):
        answer = answer.get("workers", answer.get("urls", ABSENT))
    if isinstance(answer, Bad):
        return answer
    if not isinstance(answer, list):
        return Bad(f"expected a list of workers, {describe(answer)} came")
    listing = Listing(path)
    for entry in answer:
        if isinstance(entry, dict):
            url = entry.get("url", ABSENT)
            role = _TYPE(entry.get("worker_type", ABSENT))
            healthy = flag(entry.get("is_healthy", ABSENT))
        else:
            url, role, healthy = entry, Bad("only URLs are listed"), Bad("only URLs are listed")
        if not isinstance(url, str):
            return Bad(f"expected a worker's URL, {describe(url)} came")
        listing.workers.append(Worker(address(url), role, healthy))
    return listing


def read_failure(facts: FactSet, path: str, failed: Failed) -> None:
    """No list came. An HTTP status of any kind shows that the router is there."""
    reached = failed.status != 0
    facts.add("reachable", reached, Grade.OBSERVED, SOURCE, path, shown=failed.reason)
    known = failed.status == 404
    reason = "HTTP 404: it does not list its workers" if known else failed.reason
    for name in LISTED:
        facts.miss(name, f"{path}: {reason}", HOW_KEY if failed.status in (401, 403) else HOW_URL)


def compare(
    facts: FactSet,
    listing: Listing | Bad,
    path: str,
    addresses: Mapping[str, str],
    behind: frozenset[str],
    roles: Mapping[str, str],
) -> None:
    """Add what the list says about the engines.

    `addresses` maps every engine of cluster.yaml by its address to its name, `behind` are those that it puts
    behind this router, `roles` what each engine says it is now.
    """
    facts.add("reachable", True, Grade.OBSERVED, SOURCE, path, shown="HTTP 200")
    if isinstance(listing, Bad):
        for name in LISTED:
            facts.miss(name, f"{path}: {listing.reason}")
        return
    workers = listing.workers
    listed = {addresses[w.address] for w in workers if w.address in addresses}
    unknown = len({w.address for w in workers if w.address not in addresses})
    _add(facts, "workers", len(workers), path)
    if workers and not listed:
        reason = f"{path}: none of its {len(workers)} workers has the address of an engine here"
        for name in ("workers_unknown", "engines_unlisted", "workers_unhealthy", "role_conflicts"):
            facts.miss(name, reason, "write the engines' URLs in cluster.yaml as the router writes them")
        return
    if not workers:
        facts.miss("workers_unhealthy", f"{path}: it lists no worker")
        facts.miss("role_conflicts", f"{path}: it lists no worker")
    _add(facts, "workers_unknown", unknown, path)
    _add(facts, "engines_unlisted", tuple(sorted(behind - listed)), path)
    ill = next((w.healthy for w in workers if isinstance(w.healthy, Bad)), None)
    if ill is None:
        _add(facts, "workers_unhealthy", sum(w.healthy is False for w in workers), f"{path} is_healthy")
    else:
        facts.miss("workers_unhealthy", f"{path} is_healthy: {ill.reason}")
    _conflicts(facts, workers, path, addresses, roles)


def _add(facts: FactSet, name: str, value: Value, ref: str) -> None:
    facts.add(name, value, Grade.CONFIGURED, SOURCE, ref)


def _conflicts(
    facts: FactSet, workers: list[Worker], path: str, addresses: Mapping[str, str], roles: Mapping[str, str]
) -> None:
    ref = f"{path} worker_type"
    wrong: set[str] = set()
    for worker in workers:
        name = addresses.get(worker.address)
        if name is None or name not in roles:
            continue
        if isinstance(worker.role, Bad):
            facts.miss("role_conflicts", f"{ref}: {worker.role.reason}")
            return
        listed_as = "null" if worker.role == "regular" else worker.role
        if listed_as != roles[name]:
            wrong.add(name)
    _add(facts, "role_conflicts", tuple(sorted(wrong)), ref)


def add_declared(facts: FactSet, kind: str, version: str | None, built: str | date | None) -> None:
    """What cluster.yaml says about the router itself: a claim."""
    facts.add("kind", kind, Grade.CLAIMED, "cluster", "kind")
    if version is not None:
        facts.add("version", version, Grade.CLAIMED, "cluster", "version")
    if built is not None:
        facts.add("built", str(built), Grade.CLAIMED, "cluster", "built")


REFUSALS_MEASURED_ON = frozenset({"0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"})
HOW_MEASURE = "measure it on a staging pair: a prompt that prefill alone refuses, and a client that hangs up"

DISCONNECTS_MEASURED_ON = "0.5.22"
"""How a router passes disconnects on was measured in front of this engine version only."""


def derive_router(facts: FactSet, engines: frozenset[str | None] = frozenset()) -> None:
    """Add how the router treats the other half of a pair, from its kind, version and build date.

    `engines` are the versions of the engines behind it (None for one that is not known): what was measured in
    front of other versions is not claimed for them.
    """
    kind, text = facts.text("kind") or "other", facts.text("version")
    if kind not in ("sglang-router", "smg"):
        for name in PAIRING:
            facts.miss(name, f"routers of kind {kind} were not measured", "write `kind:` if it is another")
        return
    if text is None:
        for name in PAIRING:
            facts.miss(name, "the router's version is not known", HOW_PACKAGE)
        return
    try:
        version = Version(text)
    except InvalidVersion:
        version = Version("0.dev0")
    release = (*version.release, 0, 0)[:3]
    plain = not version.is_prerelease
    known = _smg(release) if kind == "smg" else _sglang_router(release, facts.text("built"))
    for name in PAIRING:
        value, note = known.get(name, ("", "")) if plain else ("", "")
        if name == "pairs_disconnects" and value and engines - {DISCONNECTS_MEASURED_ON}:
            facts.miss(name, f"measured in front of engines {DISCONNECTS_MEASURED_ON} only", HOW_MEASURE)
            continue
        if name == "pairs_refusals" and value == "yes" and engines - REFUSALS_MEASURED_ON:
            facts.miss(name, "not measured in front of every engine version behind it", HOW_MEASURE)
            continue
        if not value:
            facts.miss(name, note or f"{kind} of this version was not measured", HOW_PACKAGE)
        else:
            _claim(facts, name, value, note)


def _claim(facts: FactSet, name: str, value: str | int, note: str) -> None:
    """A claim, with the evidence of what it follows from and how that was measured."""
    evidence: list[Evidence] = []
    for source in ("kind", "version", "built"):
        fact = facts.get(source)
        if fact is not None:
            evidence.extend(fact.evidence)
    evidence.append(Evidence("version", "measured on packages (ROUTERS.md)", note or value))
    facts.put(name, Fact(value, Grade.CLAIMED, tuple(evidence)))


Known = dict[str, tuple[Any, str]]


def _smg(release: tuple[int, ...]) -> Known:
    known: Known = {}
    if (1, 12, 0) <= release <= (1, 13, 0):
        known["pairs_refusals"] = ("yes", "1.12.0 and 1.13.0: the decode half is aborted within 4 s")
    elif (1, 4, 1) <= release < (1, 12, 0):
        known["pairs_refusals"] = ("no", "1.4.1 to 1.11.0: the decode half is held for the waiting timeout")
    if release == (1, 13, 0):
        note = "1.13.0: a streamed request runs on after its client left in mid-transfer"
        known["pairs_disconnects"] = ("not streamed", note)
    return known


def _sglang_router(release: tuple[int, ...], built: str | None) -> Known:
    known: Known = {}
    if release > (0, 3, 2):
        return known
    if built is not None and built >= FIX_PROPOSED and release == (0, 3, 2):
        note = f"built on or after {FIX_PROPOSED}: such a build of 0.3.2 may hold the fix or not"
        known["pairs_refusals"] = ("", note)
    else:
        measured = "0.3.2 as packaged: the decode half is held for the timeout, at each try"
        older = "packaged before a fix was proposed (2026); 0.3.2 was measured, this one was not"
        known["pairs_refusals"] = ("no", measured if release == (0, 3, 2) else older)
    if release == (0, 3, 2):
        note = "0.3.2: decode ends within 2 s, but prefill is not always told"
        known["pairs_disconnects"] = ("not always", note)
    if release >= (0, 2, 4):
        known["retries"] = (5, "its default; streamed requests are not tried again")
    return known
