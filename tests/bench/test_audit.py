"""1,000 engines audited, against a bare fetch of the very same URLs in the same run. Prints, never gates."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from pdguard.cluster.loader import load_cluster
from pdguard.cluster.model import Cluster
from pdguard.facts._fetch import BOOTSTRAP_ROUTE
from tests.bench.fleet import AUDIT, BARE, fleet, measure

pytestmark = pytest.mark.bench
ENGINES = 1000
ROUNDS = 3


def urls(cluster: Cluster) -> list[list[str]]:
    """What an audit asks of each engine at the most: one group an engine, asked one after the other."""
    groups = []
    for engine in cluster.engines:
        group = [f"{engine.url}{path}" for path in ("/server_info", "/v1/models", "/metrics")]
        if engine.bootstrap_port:
            host = engine.url.rsplit(":", 1)[0]
            group.append(f"{host}:{engine.bootstrap_port}{BOOTSTRAP_ROUTE}")
        groups.append(group)
    return groups


def test_audit_of_1000_engines(tmp_path: Path) -> None:
    with fleet(ENGINES, tmp_path) as file:
        listed = tmp_path / "urls.json"
        groups = urls(load_cluster(file))
        listed.write_text(json.dumps(groups))
        measure(BARE, str(listed))  # warms the simulator
        rounds = []
        for _ in range(ROUNDS):
            bare, audit = measure(BARE, str(listed)), measure(AUDIT, str(file), "json")
            rounds.append((audit["wall"] / bare["wall"], audit["cpu"] / bare["cpu"], bare, audit))
            time.sleep(1)
    requests = sum(map(len, groups))
    print(f"\n{ENGINES} engines, {requests} requests; audit with verdicts and JSON / bare httpx fetch")
    for wall, cpu, bare, audit in rounds:
        print(
            f"  wall {audit['wall']:.2f} s / {bare['wall']:.2f} s = {wall:.2f}, "
            f"cpu {audit['cpu']:.2f} s / {bare['cpu']:.2f} s = {cpu:.2f}, "
            f"memory {audit['mib']:.0f} MiB, findings {audit['findings']:.0f}"
        )
    assert all(r[3]["reachable"] == ENGINES for r in rounds)
