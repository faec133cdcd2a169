"""Engines that are dead, slow or lying: they cost their own facts only, and every loss has a plain reason."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest

from pdguard.facts import _engine, _server_info
from pdguard.facts.http import collect_http
from pdguard.simulator import EngineSpec, Lie
from tests.facts.catalogue_check import assert_in_catalogue
from tests.facts.http_help import MODELS, Engine, ask, info, of, reason, simulate, transport

WORDS = {
    Lie.REFUSED: "connection refused",
    Lie.UNAUTHORIZED: "HTTP 401",
    Lie.SERVER_ERROR: "HTTP 500",
    Lie.HTML: "expected JSON, HTML came",
    Lie.ENDLESS: "the answer did not end within 0.5 s",
    Lie.TRICKLE: "the answer did not end within 0.5 s",
    Lie.NUMBERS_AS_STRINGS: "expected a whole number, a string came",
    Lie.NAN: "expected a whole number, NaN or infinity came",
    Lie.TRUNCATED_JSON: "breaks off or is malformed",
    Lie.WRONG_TYPE: "expected a JSON object, a list came",
    Lie.REDIRECT_LOOP: "HTTP 307: a redirect",
    Lie.SLOW: "no answer within 0.5 s",
    Lie.HUGE: "longer than 4 MiB",
}


def test_every_lie_at_once_leaves_the_honest_ones_whole() -> None:
    liars = [EngineSpec(lie.name, role="decode", lie=lie) for lie in Lie if lie is not Lie.NONE]
    honest = [EngineSpec(f"d{n}", role="decode") for n in range(3)]
    began = time.monotonic()
    results = simulate(*liars, *honest, request_timeout=0.5, concurrency=4)
    assert time.monotonic() - began < 20
    assert results.unfinished == 0
    assert_in_catalogue(*results.engines)
    by_name = {s.name: s for s in results.engines}
    for one in honest:
        assert by_name[one.name].facts.integer("admission_limit") == 4090
    for lie, words in WORDS.items():
        assert words in reason(by_name[lie.name], "admission_limit"), lie
    half = by_name[Lie.MISSING_KEYS.name].facts
    assert half.flag("reachable") is True
    for subject in results.engines:
        assert all("pdguard failed" not in r for r in _reasons(subject.facts.entries))


def _reasons(entries: Any) -> list[str]:
    return [e.reason for e in entries.values() if hasattr(e, "reason")]


def test_the_run_ends_at_its_deadline() -> None:
    engines = [EngineSpec(f"t{n}", lie=Lie.TRICKLE) for n in range(4)] + [EngineSpec("d0")]
    began = time.monotonic()
    results = simulate(*engines, request_timeout=30.0, run_timeout=0.6)
    assert time.monotonic() - began < 5
    assert results.unfinished == 4
    assert reason(results.engines[0], "reachable") == "the run's deadline of 0.6 s passed"
    assert results.engines[4].facts.flag("reachable") is True


def test_what_came_before_the_deadline_is_kept() -> None:
    async def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/server_info":
            await asyncio.sleep(60)
        return httpx.Response(200, json=info())

    run = collect_http([Engine()], run_timeout=0.2, request_timeout=90, transport=httpx.MockTransport(handle))
    results = asyncio.run(run)
    (subject,) = results.engines
    assert (results.unfinished, subject.facts.integer("admission_limit")) == (1, 1018)
    assert "deadline" in reason(subject, "context_length")


def test_a_defect_of_our_own_costs_one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    real = _server_info.read_flags

    def broken(facts: Any, answer: Any, *args: Any, **more: Any) -> None:
        if answer["page_size"] == 7:
            raise RuntimeError("a secret")
        real(facts, answer, *args, **more)

    monkeypatch.setattr(_server_info, "read_flags", broken)
    engines = [EngineSpec("a", page_size=7, pools=(7000,)), EngineSpec("b")]
    one, two = simulate(*engines).engines
    assert reason(one, "pool") == "pdguard failed while reading it (RuntimeError); please report this"
    assert two.facts.integer("pool") == 4096


def test_on_done_and_order() -> None:
    seen: list[str] = []
    results = simulate(*(EngineSpec(f"e{n}") for n in range(5)), on_done=seen.append, concurrency=2)
    assert sorted(seen) == [s.name for s in results.engines] == [f"e{n}" for n in range(5)]
    assert asyncio.run(collect_http([], [])).engines == []


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, "expected a whole number, true or false came"),
        ("1018", "expected a whole number, a string came"),
        (1018.0, "expected a whole number, a decimal number came"),
        (0, "expected 1 or more, a smaller number came"),
        (-5, "expected 1 or more, a smaller number came"),
        (10**30, "far too big"),
        (None, "expected a whole number, null came"),
        ([1], "expected a whole number, a list came"),
        ({}, "expected a whole number, an object came"),
        (..., "has no max_req_input_len"),
    ],
)
def test_numbers(value: Any, words: str) -> None:
    subject = of(max_req_input_len=value)
    assert words in reason(subject, "admission_limit")
    assert subject.facts.integer("page_size") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"max_req_input_len": 1018, "max_req_input_len": 5, "version": "0.5.22"}', "the key twice"),
        ('{"max_req_input_len": Infinity, "version": "0.5.22"}', "NaN or infinity"),
        ('{"max_req_input_len": 1e400, "version": "0.5.22"}', "NaN or infinity"),
        ('{"max_req_input_len": ' + "9" * 5000 + ', "version": "0.5.22"}', "a number far too big"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a":' * 200_000, "nested too deeply"),
        ("", "an empty answer"),
        ("\xff\xfe{", "not JSON"),
        ("hello", "something else came"),
        ("  <html>", "HTML came"),
        ('"text"', "expected a JSON object, a string came"),
        ("12", "expected a JSON object, a whole number came"),
        ("{}", "an object with none of them came"),
        ('{"detail": "x"}', "an object with none of them came"),
    ],
)
def test_texts(text: str, words: str) -> None:
    subject = ask({"/server_info": text.encode("latin-1"), "/v1/models": MODELS})
    assert words in reason(subject, "admission_limit")
    assert_in_catalogue(subject)


def test_a_number_too_long_costs_only_itself() -> None:
    text = json.dumps(info()).replace("1018", "9" * 5000)
    facts = ask({"/server_info": text, "/v1/models": MODELS}).facts
    assert (facts.get("admission_limit"), facts.integer("page_size")) == (None, 1)


@pytest.mark.parametrize("states", [None, "x", [], [1, None], [{}], [{"memory_usage": []}], {"0": {}}])
def test_internal_states_of_any_shape(states: Any) -> None:
    facts = of(internal_states=states).facts
    assert facts.items("pools") == (1024,)  # one rank, so the top level speaks for it
    assert of(internal_states=states, dp_size=2).facts.get("pools") is None


def test_unusable_urls_and_keys() -> None:
    for url in (
        "ftp://x",
        "http://",
        "http://x/?q=",
        "http://x/#f",
        "http://[::1",
        "nonsense",
        "http://x\n/",
    ):
        subject = ask({"/server_info": info()}, Engine(url=url))
        assert subject.facts.flag("reachable") is False, url
    for key in ("a\nb", "schlüssel"):
        subject = ask({"/server_info": info()}, key=key)
        assert "cannot be sent" in reason(subject, "pool")
        assert key not in repr(subject)


def test_a_reason_for_every_fact() -> None:
    for replies in (
        {},
        {"/server_info": {"version": "0.5.22"}},
        {"/server_info": info(), "/v1/models": MODELS},
    ):
        subject = asyncio.run(collect_http([Engine()], transport=transport(replies))).engines[0]
        for name in _engine.ENGINE_FACTS:
            why = subject.facts.why_missing(name)
            assert why is None or why.reason != "no answer told it", name
            assert name in subject.facts.entries
