"""The simulated answers against real ones, trimmed and kept in recorded/."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from pdguard.simulator import ClusterSpec, EngineSpec, Live, RouterSpec
from tests.simulator.helpers import (
    both,
    decode,
    events,
    in_cluster,
    pair,
    prefill,
    prompt,
    recorded,
    shape,
    types_of,
)

VERSIONS = ("0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")


def lab_engine(version: str, role: str) -> EngineSpec:
    if role == "prefill":
        spec = prefill(version, 1024)
        return replace(spec, overrides={"max_total_tokens": 1024})
    spec = decode(version, 4096, bootstrap_port=32901)
    return replace(spec, overrides={"max_total_tokens": 4096})


def fetch(spec: EngineSpec, *paths: str) -> dict[str, Any]:
    async def body(live: Live, client: httpx.AsyncClient) -> dict[str, Any]:
        return {path: (await client.get(live.url(spec.name) + path)).json() for path in paths}

    return in_cluster(ClusterSpec(engines=(spec,)), body)


def signature(version: str) -> list[str]:
    """The names and types of a version, which is spelt by its differences from the one before it."""
    content = recorded("server_info")
    before: list[str] = []
    for one in VERSIONS:
        now: list[str] = []
        for piece in content[one]["server_info"]:
            now += before[piece[1] : piece[2]] if piece[0] == "keep" else piece[1].split()
        before = now
        if one == version:
            return now
    raise AssertionError(version)


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("version", VERSIONS)
class TestServerInfo:
    def test_has_the_real_fields_in_the_real_order_with_the_real_types(self, version: str, role: str) -> None:
        info = fetch(lab_engine(version, role), "/server_info")["/server_info"]
        expected = dict(entry.split(":") for entry in signature(version))
        if role == "decode":
            expected |= recorded("server_info")[version]["decode"]
        assert types_of(info) == [f"{name}:{kind}" for name, kind in expected.items()]

    def test_internal_states_mirror_the_arguments_and_add_the_real_fields(
        self, version: str, role: str
    ) -> None:
        info = fetch(lab_engine(version, role), "/server_info")["/server_info"]
        (state,) = info["internal_states"]
        real = recorded("server_info")[version]
        assert [key for key in info if key not in state] == real["internal_missing"]
        assert list(state)[-8:] == real["internal_tail"]
        top, own = dict(t.split(":") for t in types_of(info)), dict(t.split(":") for t in types_of(state))
        expected = real["internal_types"] | (real["internal_decode"] if role == "decode" else {})
        assert {key: kind for key, kind in own.items() if key in expected} == expected
        if role == "prefill":
            assert {key for key, kind in own.items() if top.get(key) != kind} == set(expected)
        assert shape(state["memory_usage"]) == shape(real["memory_usage"])

    def test_shows_the_pool_and_the_limit_that_the_real_engine_showed(self, version: str, role: str) -> None:
        info = fetch(lab_engine(version, role), "/server_info")["/server_info"]
        limits = recorded("server_info")[version]["limits"][role]
        assert [info["max_total_num_tokens"], info["max_req_input_len"]] == limits

    def test_loads_models_and_model_info(self, version: str, role: str) -> None:
        real = recorded("answers")[f"{version}/{role}"]
        paths = {
            "v1_loads": "/v1/loads",
            "v1_models": "/v1/models",
            "model_info": "/model_info",
            "get_load": "/get_load",
        }
        answers = fetch(lab_engine(version, role), *(paths[name] for name in real))
        for name, value in real.items():
            got = answers[paths[name]]
            if name == "v1_loads":
                for entry in (*value["loads"], *got["loads"]):
                    entry.pop("decode_moments")  # null until the first batch
            assert shape(got) == shape(value), name
        if "model_info" in real:
            real["model_info"]["embedding" if "embedding" in real["model_info"] else "bcg"] = None
            got = answers["/model_info"]
            assert {k: v for k, v in got.items() if k not in ("embedding", "bcg")} == {
                k: v for k, v in real["model_info"].items() if k not in ("embedding", "bcg")
            }


@pytest.mark.parametrize("entry", [key for key in recorded("gauges") if key != "about"])
def test_gauges_are_those_of_a_fresh_engine(entry: str) -> None:
    version, role = entry.split("/")
    content = recorded("gauges")
    real: dict[str, str] = dict(content["0.5.20/prefill"])
    if entry != "0.5.20/prefill":
        real = {name: labels for name, labels in real.items() if name not in content[entry]["less"]}
        real |= content[entry]["more"]

    async def body(live: Live, client: httpx.AsyncClient) -> str:
        return (await client.get(live.url(spec.name) + "/metrics")).text

    spec = lab_engine(version, role)
    text = in_cluster(ClusterSpec(engines=(spec,)), body)
    gauges = {
        line.split()[2] for line in text.splitlines() if line.startswith("# TYPE") and line.endswith(" gauge")
    }
    assert gauges == set(real)
    for line in text.splitlines():
        name, _, rest = line.partition("{")
        if name in gauges and rest:
            labels = sorted(part.split("=")[0] for part in rest.split("}")[0].split(","))
            assert ",".join(labels) == real[name]


GENERATION = recorded("generation")
PAIRS = [key for key in GENERATION if key not in ("router", "stream")]


def pools_of(name: str) -> tuple[int, int]:
    folder = name.split("/")[1]
    if folder == "pd_sym1024":
        return 1024, 1024
    first, second = folder.removeprefix("pd_").removeprefix("asym").split("_")
    return int(first), int(second)


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_answers_as_the_real_pair_did(name: str) -> None:
    version = name.split("/", maxsplit=1)[0]
    length, new = name.rsplit("/len", 1)[1].split("_new")
    request = prompt(int(length), int(new))

    async def body(live: Live, client: httpx.AsyncClient) -> dict[str, Any]:
        seen = await both(live, client, request)
        return dict(zip(("prefill", "decode"), seen, strict=True))

    answers = in_cluster(pair(version, pools_of(name)), body)
    for half, real in GENERATION[name].items():
        got = answers[half]
        assert got.status == real["status"], half
        meta = real["body"].get("meta_info")
        if meta:
            meta["cached_tokens_details"] = None  # the double has no radix cache
        assert shape(got.body) == shape(real["body"]), half
        if meta:
            for key in ("finish_reason", "prompt_tokens", "completion_tokens"):
                assert got.body["meta_info"][key] == meta[key]
            assert len(got.body["output_ids"]) == len(real["body"]["output_ids"])
        elif got.status == 400:
            assert got.body == real["body"]


@pytest.mark.parametrize("name", list(GENERATION["stream"]))
def test_a_stream_looks_as_the_real_one_did(name: str) -> None:
    version, case = name.split("/")
    kind, api, half = case.split("_")
    if half == "router":
        half = "r0"
    length = {"ok": 100, "over": 1500, "ctx": 5000}[kind]
    path = "/generate" if api == "gen" else "/v1/completions"
    request = prompt(length, stream=True)
    if api == "cmp":
        request = request | {
            "prompt": "a" * length if half == "r0" else request["input_ids"],
            "max_tokens": 4,
        }
        del request["input_ids"]

    async def body(live: Live, client: httpx.AsyncClient) -> httpx.Response:
        if half == "r0":
            return await client.post(live.url("r0") + path, json=request)
        answers = []
        for url in (live.url("p0"), live.url("d0")):
            answers.append(client.post(url + path, json=request))

        first, second = await asyncio.gather(*answers)
        return first if half == "prefill" else second

    got = in_cluster(pair(version, (1024, 4096), RouterSpec("r0", engines=("p0", "d0"))), body)
    real = GENERATION["stream"][name]
    assert got.status_code == real["status"]
    if not real["events"][-1].endswith("[DONE]"):
        assert (
            got.text == real["events"][0] or got.json() == httpx.Response(200, text=real["events"][0]).json()
        )
        return
    mine, theirs = events(got.text), events("\n".join(real["events"]))
    assert shape(mine[-1]) == shape(theirs[-1])
    assert shape(mine[0]) == shape(theirs[0])
    if "error" in theirs[0] or kind == "ok":
        assert len(mine) == len(theirs)


def test_router_answers_have_the_real_shape() -> None:
    spec = pair(
        "0.5.22",
        (4096, 4096),
        RouterSpec("r0", engines=("p0", "d0")),
        RouterSpec("s0", "smg", "1.13.0", ("p0", "d0")),
    )

    async def body(live: Live, client: httpx.AsyncClient) -> None:
        real = recorded("answers")["router/0.3.2"]
        for name, path in (
            ("workers", "/workers"),
            ("get_server_info", "/get_server_info"),
            ("readiness", "/readiness"),
            ("v1_models", "/v1/models"),
            ("get_loads", "/get_loads"),
        ):
            got = (await client.get(live.url("r0") + path)).json()
            assert shape(got) == shape(real[name]), name
        workers = (await client.get(live.url("r0") + "/workers")).json()["workers"]
        for mine, theirs in zip(workers, real["workers"]["workers"], strict=True):
            assert types_of(mine) == types_of(theirs)
            assert set(mine["metadata"]) == set(theirs["metadata"])
        real = recorded("answers")["smg/1.13.0"]
        got = (await client.get(live.url("s0") + "/workers")).json()
        for mine, theirs in zip(got["workers"], real["workers"]["workers"], strict=True):
            assert types_of(mine) == types_of(theirs)
            assert set(mine["labels"]) == set(theirs["labels"])
            assert shape(mine["models"]) == shape(theirs["models"])
            assert shape(mine["engine_load"]) == shape(theirs["engine_load"])
        assert shape((await client.get(live.url("s0") + "/get_loads")).json()) == shape(real["get_loads"])
        missing = await client.get(live.url("s0") + "/v1/loads")
        assert missing.status_code == 404
        assert missing.json() == real["not_found"]

    in_cluster(spec, body)


@pytest.mark.parametrize("name", list(GENERATION["router"]))
def test_a_router_answers_as_the_real_one_did(name: str) -> None:
    version, folder, case = name.split("/")
    first, second = folder.removeprefix("router_").removeprefix("asym").split("_")
    request = prompt(1500, room=None)
    path = "/generate"
    if "completions" in case:
        path, request = "/v1/completions", {"model": "/models/tiny", "prompt": "a" * 1500, "max_tokens": 4}
    router = RouterSpec("r0", engines=("p0", "d0"), retry_seconds=0.01)

    async def body(live: Live, client: httpx.AsyncClient) -> httpx.Response:
        return await client.post(live.url("r0") + path, json=request)

    got = in_cluster(pair(version, (int(first), int(second)), router), body)
    real = GENERATION["router"][name]
    assert got.status_code == real["status"]
    assert shape(got.json()) == shape(real["body"])
    if got.status_code == 400:
        assert got.json() == real["body"]
