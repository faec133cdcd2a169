"""Routers: shapes of their lists, comparison with cluster.yaml, and what a package is known to do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pdguard.facts.http import collect_http
from pdguard.facts.interface import FactSet, Grade, Subject
from pdguard.facts.router import LISTED, PAIRING, add_declared, address, derive_router
from pdguard.simulator import EngineSpec, RouterSpec
from tests.facts.catalogue_check import assert_in_catalogue
from tests.facts.http_help import MODELS, Engine, Reply, Router, info, reason, simulate, transport

P0, D0 = Engine("p0", "prefill", "http://p:1"), Engine("d0", "decode", "http://d:2")


def worker(url: str, kind: Any = "prefill", healthy: Any = True) -> dict[str, Any]:
    return {"url": url, "worker_type": kind, "is_healthy": healthy, "metadata": {}}


def listed(reply: Reply, router: Router | None = None, path: str = "/workers", **engine: Any) -> Subject:
    replies = {path: reply, "/server_info": info(**engine), "/v1/models": MODELS}
    run = collect_http([P0, D0], [router or Router()], transport=transport(replies))
    (subject,) = asyncio.run(run).routers
    assert_in_catalogue(subject)
    return subject


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://P:80/", "http://p"),
        ("https://p", "https://p:443"),
        ("http://p:1@3", "http://p:1"),
        ("p:1", "http://p:1"),
        ("grpc://p:1", "http://p:1"),
        ("http://[::1]:5", "http://[::1]:5/"),
    ],
)
def test_same_address(one: str, other: str) -> None:
    assert address(one) == address(other) != ""


def test_different_addresses() -> None:
    assert (
        len({address(u) for u in ("http://p:1", "http://p:2", "http://q:1", "http://p:1/x", "https://p")})
        == 5
    )
    assert address("http://p:99999") == address("http://[::1") == ""


def test_workers_against_the_file() -> None:
    workers = [worker("http://p:1"), worker("http://d:2", "decode", healthy=False), worker("http://x:3")]
    facts = listed({"workers": workers}).facts
    assert facts.flag("reachable") is True
    names = ("workers", "workers_unknown", "workers_unhealthy")
    assert [facts.integer(n) for n in names] == [3, 1, 1]
    assert (facts.items("engines_unlisted"), facts.items("role_conflicts")) == (
        (),
        ("d0",),
    )  # both say prefill here


def test_only_the_engines_behind_it_are_missed() -> None:
    assert listed({"workers": []}).facts.items("engines_unlisted") == ("d0", "p0")
    assert listed({"workers": []}, Router(engines=("p0",))).facts.items("engines_unlisted") == ("p0",)


def test_ranks_of_one_engine_are_one_engine() -> None:
    facts = listed({"workers": [worker("http://p:1@0"), worker("http://p:1@1")]}).facts
    assert (facts.integer("workers"), facts.integer("workers_unknown")) == (2, 0)


@pytest.mark.parametrize("reply", [{"urls": ["http://p:1", "http://d:2"]}, ["http://p:1", "http://d:2"]])
def test_old_list(reply: Any) -> None:
    subject = listed(reply, path="/list_workers")
    assert (subject.facts.integer("workers"), subject.facts.items("engines_unlisted")) == (2, ())
    assert "only URLs" in reason(subject, "workers_unhealthy")
    assert "only URLs" in reason(subject, "role_conflicts")


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ({"workers": {}}, "expected a list of workers, an object came"),
        ({}, "expected a list of workers, nothing came"),
        ({"workers": [{"url": 5}]}, "expected a worker's URL, a whole number came"),
        ({"workers": [None]}, "expected a worker's URL, null came"),
        (b"<html>", "HTML came"),
        ((500, b""), "HTTP 500"),
        ((401, b""), "HTTP 401"),
        ((404, b""), "does not list its workers"),
    ],
)
def test_no_list(reply: Reply, words: str) -> None:
    subject = listed(reply)
    assert subject.facts.flag("reachable") is True
    for name in LISTED:
        assert words in reason(subject, name)


def test_odd_entries_cost_what_they_concern() -> None:
    subject = listed(
        {"workers": [worker("http://p:1", "other"), worker("http://d:2", "decode", healthy="yes")]}
    )
    assert subject.facts.integer("workers") == 2
    assert "not a known value" in reason(subject, "role_conflicts")
    assert "a string came" in reason(subject, "workers_unhealthy")


def test_a_dead_router() -> None:
    async def body() -> Subject:
        return (await collect_http([], [Router(url="http://127.0.0.1:1")], request_timeout=2)).routers[0]

    subject = asyncio.run(body())
    assert subject.facts.flag("reachable") is False
    assert "connection refused" in reason(subject, "workers")


def test_simulated_routers() -> None:
    engines = (EngineSpec("p0", role="prefill"), EngineSpec("d0", role="decode", live_role="prefill"))
    routers = (
        RouterSpec("a", engines=("p0", "d0")),
        RouterSpec("b", kind="smg", version="1.12.0", engines=("p0",)),
    )
    a, b = simulate(*engines, routers=routers).routers
    assert (a.facts.integer("workers"), b.facts.integer("workers")) == (2, 1)
    assert_in_catalogue(a, b)


def derived(kind: str, version: str | None, built: str | None = None) -> list[Any]:
    subject = Subject("router", "r0", FactSet())
    add_declared(subject.facts, kind, version, built)
    derive_router(subject.facts)
    assert_in_catalogue(subject)
    for name in PAIRING:
        fact = subject.facts.get(name)
        assert fact is None or fact.grade is Grade.CLAIMED
        assert fact is not None or reason(subject, name)
    return [subject.facts.value(name) for name in PAIRING]


@pytest.mark.parametrize(
    ("kind", "version", "built", "expected"),
    [
        ("sglang-router", "0.3.2", None, ["no", "not always", 5]),
        ("sglang-router", "0.3.2", "2026-01-15", ["no", "not always", 5]),
        ("sglang-router", "0.3.2", "2026-06-22", ["no", "not always", 5]),
        ("sglang-router", "0.3.2", "2026-09-01", [None, "not always", 5]),
        ("sglang-router", "0.2.4", None, ["no", None, 5]),
        ("sglang-router", "0.1.9", None, ["no", None, None]),
        ("sglang-router", "0.4.0", None, [None, None, None]),
        ("sglang-router", None, None, [None, None, None]),
        ("smg", "1.13.0", None, ["yes", "not streamed", None]),
        ("smg", "1.12.0", None, ["yes", None, None]),
        ("smg", "1.14.0", None, [None, None, None]),
        ("smg", "99.0", None, [None, None, None]),
        ("smg", "1.11.0", None, ["no", None, None]),
        ("smg", "1.4.1", None, ["no", None, None]),
        ("smg", "1.1.0", None, [None, None, None]),
        ("smg", "1.12.0rc1", None, [None, None, None]),
        ("sgl-router", "1.0", None, [None, None, None]),
        ("mini-lb", None, None, [None, None, None]),
        ("other", None, None, [None, None, None]),
    ],
)
def test_what_a_package_does(kind: str, version: str | None, built: str | None, expected: list[Any]) -> None:
    assert derived(kind, version, built) == expected
