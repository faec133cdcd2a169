"""What the tests of release outcomes share: clusters of the simulator as cluster files, and raw sums."""

from __future__ import annotations

from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from pdguard.cluster.loader import parse_cluster
from pdguard.cluster.model import Cluster
from pdguard.outcomes.interface import Figure, Gap, HoldTimes, Read
from pdguard.simulator import EngineSpec, Live


def cluster_of(live: Live, **more: Any) -> Cluster:
    """The running cluster as its file says, with more keys at the top."""
    return parse_cluster(yaml.safe_dump({**live.cluster(), **more}), "cluster.yaml")


def decode(name: str = "d0", version: str = "0.5.23", **more: Any) -> EngineSpec:
    return EngineSpec(name, "decode", version, **more)


def prefill(name: str = "p0", version: str = "0.5.23", **more: Any) -> EngineSpec:
    return EngineSpec(name, "prefill", version, bootstrap_port=0, **more)


def value(read: Read) -> float:
    assert isinstance(read, Figure), read
    return read.value


def gap(read: Read | HoldTimes) -> Gap:
    assert isinstance(read, Gap), read
    return read


def times(read: HoldTimes | Gap) -> HoldTimes:
    assert isinstance(read, HoldTimes), read
    return read


def address(live: Live, name: str) -> str:
    """What Prometheus calls the engine."""
    return live.url(name).removeprefix("http://")


def raw(text: str, name: str, **labels: str) -> dict[tuple[tuple[str, str], ...], float]:
    """Every sample of that name in a page of metrics, by its labels."""
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    }


def series(name: str, number: object, **labels: str) -> str:
    inner = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{name}{{{inner}}} {number}\n"
