"""Loads and counters of an engine, and whether it lets go."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import httpx
import pytest

from pdguard.facts._fetch import Fetcher
from pdguard.probe.context import Context
from pdguard.probe.counters import CounterLines, Counters, read_counters
from pdguard.probe.interface import Role, Target
from pdguard.probe.state import OTHERS, Load, at_rest, read_load, until_released
from pdguard.simulator import Live
from pdguard.simulator.spec import ClusterSpec
from tests.probe.sim import in_context, targets
from tests.simulator.helpers import decode, pair, prefill

TP2 = """\
# HELP sglang:num_transfer_failed_reqs_total The number of transfer failed requests.
# TYPE sglang:num_transfer_failed_reqs_total counter
sglang:num_transfer_failed_reqs_total{engine_type="decode",model_name="m",pp_rank="0",tp_rank="0"} 1.0
sglang:num_transfer_failed_reqs_total{engine_type="decode",model_name="m",pp_rank="0",tp_rank="1"} 1.0
sglang:decode_deferred_kv_release_total{engine_type="decode",outcome="drained",tp_rank="0"} 1.0
sglang:num_decode_deferred_kv_release_reqs{engine_type="decode",pp_rank="0",tp_rank="0"} 0.0
sglang:decode_deferred_kv_release_seconds_sum{engine_type="decode",tp_rank="0"} 7.348891335999724
sglang:decode_deferred_kv_release_seconds_bucket{engine_type="decode",le="10.0",tp_rank="0"} 1.0
sglang:decode_deferred_kv_release_seconds_count{engine_type="decode",tp_rank="0"} 1.0
sglang:generation_tokens_total{engine_type="decode",is_streaming="false",model_name="m"} 64.0
sglang:generation_tokens_total{engine_type="decode",is_streaming="true",model_name="m"} 6.0
sglang:num_aborted_requests_total{engine_type="decode",model_name="m"} 1.0
"""


def page(text: str, piece: int = 100) -> Counters | None:
    lines = CounterLines()
    raw = text.encode()
    for start in range(0, len(raw), piece):
        lines.feed(raw[start : start + piece])
    lines.close()
    return read_counters(lines)


def test_a_request_counts_once_with_two_tensor_ranks() -> None:
    found = page(TP2)
    assert found is not None
    assert (found.aborted, found.failed_transfers, found.failed_bootstraps) == (1, 1, 0)
    assert (found.releases, found.hold_count, found.held) == ({"drained": 1}, 1, 0)
    assert found.hold_seconds == pytest.approx(7.3489, abs=1e-3)
    assert found.generated == 70


def test_data_parallel_ranks_add_up() -> None:
    lines = "".join(
        f'sglang:num_transfer_failed_reqs_total{{dp_rank="{dp}",tp_rank="{tp}"}} {count}\n'
        for dp, count in ((0, 2), (1, 3))
        for tp in (0, 1)
    )
    found = page(lines)
    assert found is not None
    assert found.failed_transfers == 5


def test_what_a_page_before_0_5_22_does_not_tell_is_not_zero() -> None:
    found = page('sglang:num_running_reqs{tp_rank="0"} 1.0\n')
    assert found == Counters(aborted=0, failed_transfers=0, failed_bootstraps=0, generated=0)


@pytest.mark.parametrize("bad", ["NaN", "-1", "+Inf", "words", "1e300"])
def test_a_value_that_is_no_count_costs_itself_only(bad: str) -> None:
    found = page(f"sglang:num_aborted_requests_total {bad}\nsglang:num_transfer_failed_reqs_total 2\n")
    assert found is not None
    assert (found.aborted, found.failed_transfers) == (None, 2)


def test_a_page_of_something_else_has_no_counters() -> None:
    assert page("vllm:num_requests 1\n") is None


def answered(status: int, loads: bytes, metrics: bytes = b"") -> Load:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, content=loads if request.url.path == "/v1/loads" else metrics)

    async def body() -> Load:
        fetcher = Fetcher(timeout=1.0, connections=1, transport=httpx.MockTransport(answer))
        return await read_load(fetcher, Target("d0", Role.DECODE, "http://d0"))

    return asyncio.run(body())


@pytest.mark.parametrize(
    "loads",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'{"loads": {}}',
        b'{"loads": []}',
        b'{"loads": "MARKER"}',
        b"[" * 100_000,
        b'{"loads": [' + b"1," * 5000 + b"1]}",
    ],
)
def test_hostile_loads_are_trouble_without_a_word_of_theirs(loads: bytes) -> None:
    load = answered(200, loads, b"MARKER " * 100)
    assert load.queued(Role.DECODE) is None
    assert load.counters is None
    assert "/v1/loads" in load.trouble
    assert "MARKER" not in load.trouble


@pytest.mark.parametrize("value", ["1", True, -1, 1.5, None, [1], 10**30])
def test_a_queue_that_is_no_count_is_unknown(value: object) -> None:
    entry = {"disaggregation": {"decode_prealloc_queue_reqs": value, "decode_transfer_queue_reqs": 1}}
    load = answered(200, json.dumps({"loads": [entry]}).encode())
    assert load.decode_transfer == 1
    assert load.queued(Role.DECODE) is None


def test_a_status_other_than_200_is_trouble() -> None:
    load = answered(404, b"", b"")
    assert "/v1/loads: HTTP 404" in load.trouble
    assert "--enable-metrics" in load.trouble


def test_queues_of_all_ranks_and_counters_are_read_with_the_key() -> None:
    spec = ClusterSpec(engines=(prefill("0.5.22"), decode("0.5.22", dp=2, api_key="sesame")))

    async def body(live: Live, context: Context) -> Load:
        live.engines["d0"].state.queues.update({"decode_transfer": 2, "running": 1})
        live.engines["d0"].state.add("num_aborted_requests_total")
        _, target = targets(live)
        shut = await read_load(context.fetcher, replace(target, key=None))
        assert "401" in shut.trouble
        assert shut.counters is not None
        return await read_load(context.fetcher, target)

    load = in_context(spec, body)
    assert (load.decode_transfer, load.running, load.queued(Role.DECODE)) == (2, 1, 2)
    assert load.counters is not None
    assert load.counters.aborted == 1
    assert load.trouble == ""


def test_metrics_off_leaves_the_queues() -> None:
    spec = ClusterSpec(engines=(decode("0.5.22", metrics=False),))

    async def body(live: Live, context: Context) -> Load:
        return await read_load(context.fetcher, targets(live)[0])

    load = in_context(spec, body)
    assert load.queued(Role.DECODE) == 0
    assert load.counters is None
    assert "--enable-metrics" in load.trouble


@pytest.mark.parametrize(("version", "releases"), [("0.5.22", {}), ("0.5.21", None)])
def test_the_release_tells_whether_holds_are_counted(version: str, releases: dict[str, int] | None) -> None:
    async def body(live: Live, context: Context) -> Load:
        return await read_load(context.fetcher, targets(live)[0])

    load = in_context(ClusterSpec(engines=(decode(version),)), body)
    assert load.counters is not None
    assert load.counters.releases == releases


def load_of(queued: int, busy: int = 0) -> Load:
    return Load(0.0, decode_prealloc=0, decode_transfer=queued, running=busy, waiting=0)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (load_of(0), load_of(0, 9), True),
        (load_of(0), load_of(1, 1), False),
        (load_of(0), load_of(1, 3), None),
        (load_of(0), load_of(2, 2), None),
        (load_of(1, 1), load_of(1, 1), True),
        (load_of(1, 1), load_of(1, 2), None),
        (load_of(1, 1), load_of(2, 2), False),
        (Load(0.0), load_of(0), True),
        (Load(0.0), load_of(1), None),
        (load_of(0), Load(0.0), None),
        (None, load_of(1), None),
    ],
)
def test_rest_is_told_only_where_others_do_not_blur_it(
    before: Load | None, now: Load, expected: bool | None
) -> None:
    assert at_rest(before, now, Role.DECODE) is expected


@pytest.mark.parametrize(
    ("after", "released"),
    [
        ({"decode_transfer": 0}, True),
        ({"decode_transfer": 1}, False),
        ({"decode_transfer": 1, "running": 5}, None),
    ],
)
def test_a_release_is_seen_missed_or_blurred(after: dict[str, int], released: bool | None) -> None:
    async def body(live: Live, context: Context) -> None:
        target = targets(live)[1]
        before = await read_load(context.fetcher, target)
        queues = live.engines["d0"].state.queues
        queues["decode_transfer"] = 1

        def change() -> None:
            queues.clear()
            queues.update(after)

        asyncio.get_running_loop().call_later(0.3, change)
        release = await until_released(context, target, before, 1.0)
        assert release.released is released
        if released:
            assert release.after is not None
            assert 0.25 <= release.after <= 0.9
            assert "decode_transfer_queue_reqs" in release.how
        if released is None:
            assert OTHERS in release.how

    in_context(pair("0.5.22"), body)


def test_without_loads_a_release_is_not_known_and_says_why() -> None:
    spec = ClusterSpec(engines=(decode("0.5.5", bootstrap_port=None),))

    async def body(live: Live, context: Context) -> None:
        release = await until_released(context, targets(live)[0], Load(0.0), 0.3)
        assert release.released is None
        assert "/v1/loads: HTTP 404" in release.how

    in_context(spec, body)


def test_an_engine_that_never_answers_costs_no_more_than_the_limit() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def body(live: Live, context: Context) -> None:
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        try:
            port = server.sockets[0].getsockname()[1]
            target = Target("d0", Role.DECODE, f"http://127.0.0.1:{port}")
            began = asyncio.get_running_loop().time()
            release = await until_released(context, target, Load(0.0), 0.4)
            assert release.released is None
            assert asyncio.get_running_loop().time() - began < 1.0
            assert (await read_load(context.fetcher, target, limit=0.1)).trouble == "no answer in time"
        finally:
            server.close()
            await context.fetcher.close()
            await server.wait_closed()
            await asyncio.sleep(0.05)

    in_context(pair("0.5.22"), body)
