"""Names used twice and references that lead nowhere."""

# ruff: noqa: E501 - an error is one line, and is shown as one

from __future__ import annotations

import time

import pytest

from pdguard.cluster.links import link_faults, nearest
from tests.cluster.support import BASE, HEAD, P0, errors_of, parse

NO_NODE = "names no node of this file, expected a name that stands under nodes"
OWN_NAME = "is a name that is taken, expected a name of its own for each engine and router"

TABLE = {
    "an engine twice": (
        BASE + P0,
        [
            f"4:12: engines[1].name {OWN_NAME}, found the same at 3:12",
            "4:36: engines[1].url is the URL of another engine, expected one URL for each engine, "
            "found the same at 3:36",
        ],
    ),
    "the same URL in other letters": (
        BASE + "  - {name: d0, role: decode, url: 'HTTP://A:1/'}\n",
        [
            "4:35: engines[1].url is the URL of another engine, expected one URL for each engine, "
            "found the same at 3:36"
        ],
    ),
    "a router named as an engine": (
        BASE + "routers:\n  - {name: p0, url: 'http://r', kind: other}\n",
        [f"5:12: routers[0].name {OWN_NAME}, found the same at 3:12"],
    ),
    "a near miss of a node": (
        HEAD
        + "  - {name: p0, role: prefill, url: 'http://a', node: gpu-1}\nnodes:\n  gpu-01: {transport: local}\n",
        [
            "3:54: engines[0].node names no node of this file, expected gpu-01, found gpu-1 (did you mean gpu-01?)"
        ],
    ),
    "no nodes at all": (
        HEAD + "  - {name: p0, role: prefill, url: 'http://a', node: gpu-01}\n",
        [f"3:54: engines[0].node {NO_NODE}"],
    ),
    "followers": (
        HEAD
        + "  - {name: p0, role: prefill, url: 'http://a', node: a, followers: [a, b, b, x]}\n"
        + "nodes: {a: {transport: local}, b: {transport: local}}\n",
        [
            "3:69: engines[0].followers[0] is listed already, expected each node once, found the same at 3:54",
            "3:75: engines[0].followers[2] is listed already, expected each node once, found the same at 3:72",
            f"3:78: engines[0].followers[3] {NO_NODE}",
        ],
    ),
    "a router of unknown engines": (
        BASE
        + "routers:\n  - {name: r0, url: 'http://r', kind: smg, engines: [p0, P-0, zzzz, p0], node: q}\n",
        [
            "5:58: routers[0].engines[1] names no engine of this file, expected p0, found P-0 (did you mean p0?)",
            "5:63: routers[0].engines[2] names no engine of this file, expected a name that stands under engines",
            "5:69: routers[0].engines[3] is listed already, expected each engine once, found the same at 5:54",
            f"5:80: routers[0].node {NO_NODE}",
        ],
    ),
    "beside faults of fields": (
        HEAD + "  - {name: p0, role: perfill, url: 'http://a', node: q}\n",
        [
            "3:22: engines[0].role is not one of its values, expected prefill or decode, found perfill",
            f"3:54: engines[0].node {NO_NODE}",
        ],
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_exact_errors(name: str) -> None:
    text, expected = TABLE[name]
    assert errors_of(text) == expected


def test_clusters_without_a_half_load() -> None:
    assert parse(BASE).decodes == ()
    assert parse(BASE.replace("prefill", "decode")).prefills == ()


@pytest.mark.parametrize(
    "data",
    [
        None,
        3,
        [],
        {"engines": 3},
        {"engines": [3, {"name": 3, "url": 3, "node": [], "followers": 3}], "nodes": []},
    ],
)
def test_any_shape_is_survived(data: object) -> None:
    assert list(link_faults(data)) == []


def test_nearest() -> None:
    assert nearest("bootstrapPort", ["bootstrap_port", "node"]) == "bootstrap_port"
    assert nearest("ROLE", ["role"]) == "role"
    assert nearest("nmae", ["name", "node"]) == "name"
    assert nearest("zzz", ["name"]) == ""
    assert nearest("x" * 100_000, ["x" * 100]) == ""


def test_a_thousand_dangling_references_are_told_quickly() -> None:
    engines = "".join(
        f"  - {{name: engine-{i}, role: decode, url: 'http://h{i}', node: nod-{i}}}\n" for i in range(1000)
    )
    nodes = "nodes:\n" + "".join(f"  node-{i}: {{transport: local}}\n" for i in range(1000))
    began = time.perf_counter()
    assert len(errors_of(HEAD + engines + nodes)) == 101
    assert time.perf_counter() - began < 5
