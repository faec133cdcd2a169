"""Runs all collectors over a cluster and derives what follows: from cluster.yaml to the facts policy sees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pdguard.cluster.model import Cluster, Engine, Router
from pdguard.errors import NothingCollected
from pdguard.facts import exercised, process
from pdguard.facts._sources import Sources
from pdguard.facts.access import keys_of, tls_of
from pdguard.facts.cluster_facts import count_contents, derive_cluster
from pdguard.facts.derived import derive_engine
from pdguard.facts.deriving import derive, version_of
from pdguard.facts.environment import ENV_FACTS
from pdguard.facts.fixes import add_fix_facts, miss_fix_facts, weakest
from pdguard.facts.http import HttpResults, Tls, collect_http
from pdguard.facts.interface import Collected, FactSet, Grade, Subject
from pdguard.facts.observed import Observed
from pdguard.facts.pairing import build_pairs, count_pairs
from pdguard.facts.process import Found, NodeReading, collect_processes
from pdguard.facts.router import derive_router
from pdguard.facts.source import apply_source, changed_since_start
from pdguard.fingerprint.notice import hardened_fixes
from pdguard.transport.factory import open_transport
from pdguard.transport.interface import Json

POLICY_NUMBERS = ("t_hold_min", "t_hold_max", "extreme_context", "timeout_ratio", "min_holds")

NO_NODE = "cluster.yaml names no node for it"


@dataclass(slots=True)
class _Readings:
    """What the nodes told: leaders by node, followers by engine and node."""

    nodes: dict[str, NodeReading] = field(default_factory=dict)
    followers: dict[str, dict[str, Found | None]] = field(default_factory=dict)
    sources: Sources | None = None


def collect(
    cluster: Cluster,
    environ: Mapping[str, str],
    progress: Callable[[str], None] | None = None,
    exercise: bool = False,
    observed: Observed | None = None,
) -> Collected:
    """Every fact about `cluster`, each known with its grade or missing with a reason.

    `observed` is what probes and windows of metrics saw before. Raises InputError for a key or certificate
    that cannot be read, NothingCollected where not one engine, router or node gave anything.
    """
    keys, tls = keys_of(cluster, cluster.servers, environ), tls_of(cluster, cluster.servers)
    if progress is not None:
        progress(_intention(cluster))
    http, readings = asyncio.run(_read(cluster, environ, keys, tls))
    if exercise:
        exercised.run_exercises(cluster, http.engines, readings.nodes, progress)
    collected = _assemble(cluster, http, readings, observed or Observed())
    _refuse_nothing(collected, readings)
    return collected


def _intention(cluster: Cluster) -> str:
    counts = ((cluster.engines, "engine"), (cluster.routers, "router"), (cluster.nodes, "node"))
    parts = [f"{len(things):,} {word}{'s' * (len(things) != 1)}" for things, word in counts if things]
    return f"reading {', '.join(parts)} (nothing is changed)"


async def _read(
    cluster: Cluster, environ: Mapping[str, str], keys: Mapping[str, str], tls: Mapping[str, Tls]
) -> tuple[HttpResults, _Readings]:
    policy = cluster.policy
    http = collect_http(
        cluster.engines,
        cluster.routers,
        request_timeout=policy.request_timeout,
        run_timeout=policy.run_timeout,
        concurrency=policy.concurrency,
        keys=keys,
        tls=tls,
    )
    results, readings = await asyncio.gather(http, _read_nodes(cluster, environ))
    return results, readings


async def _read_nodes(cluster: Cluster, environ: Mapping[str, str]) -> _Readings:
    """Leaders and routers first; followers need the leader's --dist-init-addr, so they come second."""
    readings = _Readings()
    if not cluster.nodes:
        return readings
    sources = readings.sources = Sources.open(environ)
    first = {name: _request(cluster, name) for name in cluster.nodes}
    readings.nodes = await _run(cluster, first, sources)
    second: dict[str, dict[str, list[Json]]] = {}
    for engine in cluster.engines:
        leader = _leader(readings, engine)
        args = leader.engine.argv.args if leader and leader.engine else ()
        for node in engine.followers:
            address = _init_address(args)
            item: Json = {"name": engine.name, "port": 0, "follower": True, "dist_init_addr": address}
            second.setdefault(node, {"engines": [], "routers": []})["engines"].append(item)
    for node, reading in (await _run(cluster, second, sources)).items():
        for name in (e.name for e in cluster.engines if node in e.followers):
            found = None if reading.problem else reading.engines.get(name)
            readings.followers.setdefault(name, {})[node] = found
    found_at = [(n, f) for n, r in readings.nodes.items() for f in r.engines.values()]
    found_at += [(n, f) for below in readings.followers.values() for n, f in below.items() if f is not None]
    await asyncio.to_thread(
        sources.fetch,
        found_at,
        lambda node: open_transport(cluster.nodes[node], cluster.base_dir),
        _node_timeout(cluster),
    )
    return readings


def _request(cluster: Cluster, node: str) -> dict[str, list[Json]]:
    def items(things: Sequence[Engine | Router]) -> list[Json]:
        return [_item(t) for t in things if t.node == node]

    return {"engines": items(cluster.engines), "routers": items(cluster.routers)}


def _item(one: Engine | Router) -> dict[str, Json]:
    parts = urlsplit(one.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return {"name": one.name, "port": port, "host": parts.hostname or ""}


def _init_address(args: Sequence[str]) -> str:
    for i, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name.replace("_", "-") == "--dist-init-addr":
            return value if equals else next(iter(args[i + 1 : i + 2]), "")
    return ""


def _node_timeout(cluster: Cluster) -> float:
    return min(max(15.0, 3 * cluster.policy.request_timeout), cluster.policy.run_timeout)


async def _run(
    cluster: Cluster, requests: Mapping[str, dict[str, list[Json]]], sources: Sources
) -> dict[str, NodeReading]:
    limit = asyncio.Semaphore(min(16, cluster.policy.concurrency))
    timeout = _node_timeout(cluster)

    async def one(name: str) -> NodeReading:
        async with limit:
            transport = open_transport(cluster.nodes[name], cluster.base_dir)
            request = {**requests[name], **sources.request()}
            return await asyncio.to_thread(collect_processes, transport, request, timeout)

    names = list(requests)
    readings = await asyncio.gather(*(one(n) for n in names))
    return dict(zip(names, readings, strict=True))


def _leader(readings: _Readings, engine: Engine) -> Found | None:
    reading = readings.nodes.get(engine.node or "")
    return None if reading is None else reading.engines.get(engine.name)


def _assemble(cluster: Cluster, http: HttpResults, readings: _Readings, observed: Observed) -> Collected:
    for engine, subject in zip(cluster.engines, http.engines, strict=True):
        _engine(engine, subject, readings, observed)
    for router, subject in zip(cluster.routers, http.routers, strict=True):
        reading = readings.nodes.get(router.node or "")
        if router.node is None:
            for name in ("version", "built"):
                subject.facts.miss(name, "neither cluster.yaml nor a node tells it")
        else:
            process.apply_router(subject.facts, reading.routers.get(router.name) if reading else None)
        if router.tries is not None:
            subject.facts.add("retries", router.tries, Grade.CLAIMED, "cluster", "tries")
        names = set(router.engines or ()) or {e.name for e in http.engines}
        behind = [e for e in http.engines if e.name in names]
        derive_router(subject.facts, frozenset(e.facts.text("version") for e in behind))
        observed.router(subject, behind)
        told = [e.facts.get("refusal_told") for e in behind]
        seen = subject.facts.get("pairs_refusals")
        if seen is not None and seen.grade is Grade.OBSERVED and seen.value == "no":
            told = [seen]  # A half was seen waiting behind these engines, whatever they hold.
        every = bool(told) and all(fact is not None and fact.value is True for fact in told)
        derive(subject.facts, "refusals_released", every, told)
    nodes = [Subject("node", name) for name in cluster.nodes]
    for node in nodes:
        process.apply_node(node.facts, readings.nodes[node.name], cluster.nodes[node.name].transport)
    prefills = [e for e in http.engines if _role(e) == "prefill"]
    decodes = [e for e in http.engines if _role(e) == "decode"]
    fronts = [(s, frozenset(r.engines or ())) for r, s in zip(cluster.routers, http.routers, strict=True)]
    pairs = build_pairs(prefills, decodes, fronts, [w.target for w in cluster.waivers])
    observed.pairs(pairs, http.engines)
    paired = {name for pair in pairs for names in pair.members for name in names}
    for one in http.engines:
        one.facts.add("in_pair", one.name in paired, Grade.CLAIMED, "cluster", "routers, engines")
    whole = Subject("cluster", cluster.cluster)
    count = count_pairs(prefills, decodes, fronts)
    named = cluster.prometheus is not None
    derive_cluster(whole, prefills, decodes, pairs, count, len(cluster.routers), named)
    observed.cluster(whole)
    for role, engines in (("prefill", prefills), ("decode", decodes)):
        count_contents(whole, role, [_contents(readings, cluster.engine(e.name)) for e in engines])
    policy = {name: getattr(cluster.policy, name) for name in POLICY_NUMBERS}
    notes = observed.notes()
    if http.unfinished:
        late = f"{http.unfinished} engines or routers were not read before the run's deadline"
        late += f" of {cluster.policy.run_timeout:g} s; raise policy.run_timeout or policy.concurrency"
        notes = (late, *notes)
    return Collected(whole, http.engines, pairs, http.routers, nodes, policy, notes)


def _contents(readings: _Readings, engine: Engine) -> frozenset[tuple[str, str]] | None:
    every = [_leader(readings, engine), *readings.followers.get(engine.name, {}).values()]
    contents: set[tuple[str, str]] = set()
    for found in every:
        source = None if found is None else found.source
        if source is None or source.unread() or changed_since_start(source):
            return None
        contents.update(source.hashes().items())
    return frozenset(contents)


def _role(engine: Subject) -> str | None:
    return engine.facts.text("role") or engine.facts.text("declared_role")


def _engine(engine: Engine, subject: Subject, readings: _Readings, observed: Observed) -> None:
    facts = subject.facts
    facts.add("declared_role", engine.role, Grade.CLAIMED, "cluster", f"engines {engine.name} role")
    version = version_of(facts)
    reading = readings.nodes.get(engine.node or "")
    if reading is None:
        for name in (*process.PROCESS_FACTS, "env_read", *ENV_FACTS):
            facts.miss(name, NO_NODE)
    elif reading.problem is not None:
        for name in (*process.PROCESS_FACTS, "env_read", *ENV_FACTS):
            facts.miss(name, reading.problem.what, reading.problem.todo)
    else:
        process.apply_engine(facts, reading.engines.get(engine.name), version)
    if engine.followers:
        leader, followers = _leader(readings, engine), readings.followers.get(engine.name, {})
        process.apply_followers(facts, leader, followers, version)
    found = _leader(readings, engine)
    _source(facts, reading, found)
    _fixes(facts, engine, readings, found)
    observed.engine(subject)
    derive_engine(facts)


def _fixes(facts: FactSet, engine: Engine, readings: _Readings, found: Found | None) -> None:
    """What the source holds, unless the process began before the source was what it is now."""
    source = None if found is None else found.source
    if readings.sources is None or source is None or source.status != "found":
        why = facts.why_missing("source_root_kind")
        miss_fix_facts(facts, why.reason if why else "its source was not read", why.how if why else "")
        return
    followers = readings.followers.get(engine.name, {})
    every = [source, *(f.source for f in followers.values() if f is not None and f.source is not None)]
    if len(every) <= len(followers):
        lost = sorted(n for n, f in followers.items() if f is None or f.source is None)
        miss_fix_facts(facts, f"the source of its followers on {', '.join(lost)} was not read")
        return
    for one in every:
        why_not = one.unread() if one.status != "found" else changed_since_start(one)
        if why_not:
            miss_fix_facts(facts, f"what it runs is not what is on the disk: {why_not}", "restart the engine")
            return
    sources = readings.sources
    readers = [sources.reader(one) for one in every]
    watched = sources.matcher.watched()
    hardened = frozenset.intersection(*(hardened_fixes(read, watched) for read in readers))
    add_fix_facts(facts, weakest([sources.matcher.find(read) for read in readers]), hardened)


def _source(facts: FactSet, reading: NodeReading | None, found: Found | None) -> None:
    if reading is None:
        apply_source(facts, None, NO_NODE)
    elif reading.problem is not None:
        apply_source(facts, None, reading.problem.what)
    else:
        why = "its node's answer does not mention it" if found is None else found.why or found.status
        apply_source(facts, None if found is None else found.source, why)


def _refuse_nothing(collected: Collected, readings: _Readings) -> None:
    answered = any(s.facts.flag("reachable") for s in (*collected.engines, *collected.routers))
    read = any(
        f.engine or f.router
        for r in readings.nodes.values()
        for f in (*r.engines.values(), *r.routers.values())
    )
    if answered or read:
        return
    reasons: dict[str, int] = {}
    for engine in collected.engines:
        why = engine.facts.why_missing("version")
        reason = why.reason if why else "no answer"
        reasons[reason] = reasons.get(reason, 0) + 1
    told = "; ".join(f"{reason} ({count} engines)" for reason, count in sorted(reasons.items())[:5])
    raise NothingCollected(
        "nothing could be collected: no engine, router or node gave an answer",
        found=told,
        todo="Check the URLs in the cluster file, and `auth:` if the engines want a key.",
    )
