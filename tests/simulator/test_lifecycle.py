"""Starting, serving many, stopping clean; the incident's shape; the module's command line."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress

import httpx
import pytest
import yaml

from pdguard.simulator import ClusterSpec, EngineSpec, Live, incident_cluster, running, start_in_thread
from pdguard.simulator.spec import HOLD_VARIABLE
from tests.simulator.helpers import in_cluster, prefill

ONE = ClusterSpec(engines=(prefill("0.5.22"),))


def test_three_hundred_engines_start_and_stop_quickly() -> None:
    async def body() -> tuple[int, float]:
        begun = time.monotonic()
        async with running(incident_cluster(300)) as live:
            limits = httpx.Limits(max_connections=50)
            async with httpx.AsyncClient(trust_env=False, limits=limits, timeout=60) as client:
                answers = await asyncio.gather(
                    *(client.get(live.url(engine.name) + "/v1/models") for engine in live.spec.engines)
                )
            assert {answer.status_code for answer in answers} == {200}
            ports = {live.url(engine.name) for engine in live.spec.engines}
        return len(ports), time.monotonic() - begun

    ports, seconds = asyncio.run(body())
    assert ports == 300
    assert seconds < 10


def test_stops_while_requests_are_waiting_and_clients_connected() -> None:
    async def body() -> None:
        async with running(ClusterSpec(engines=(prefill("0.5.23", waiting_timeout=300.0),))) as live:
            port = int(live.url("p0").rsplit(":", 1)[1])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            content = b'{"input_ids":[1],"bootstrap_room":9}'
            head = f"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
            writer.write(head.encode() + content)
            while not live.engines["p0"].state.queues["prefill_bootstrap"]:
                await asyncio.sleep(0.01)
        assert len(live.rooms) == 0
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        with pytest.raises(OSError, match="Connect call failed"):
            await asyncio.open_connection("127.0.0.1", port)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(body())


def test_a_port_that_is_taken_fails_at_the_start_and_leaves_nothing() -> None:
    async def body() -> None:
        async with running(ONE) as live:
            taken = live.bootstrap_ports["p0"]
            spec = ClusterSpec(engines=(EngineSpec("a"), EngineSpec("p", "prefill", bootstrap_port=taken)))
            with pytest.raises(OSError, match="in use"):
                async with running(spec):
                    raise AssertionError

    asyncio.run(body())


def raw(live: Live, data: bytes, *, count: int = 1) -> bytes:
    async def exchange() -> bytes:
        port = int(live.url("p0").rsplit(":", 1)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        answer = b""
        while answer.count(b"HTTP/1.1 ") < count:
            piece = await reader.read(65536)
            if not piece:
                break
            answer += piece
        writer.close()
        await writer.wait_closed()
        return answer

    return asyncio.run(exchange())


def test_protocol_edges() -> None:
    with start_in_thread(ONE) as live:
        assert b"400 Bad Request" in raw(live, b"nonsense\r\n\r\n")
        two = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 2
        assert raw(live, two, count=2).count(b"HTTP/1.1 200") == 2
        closing = raw(live, b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert b"connection: close" in closing
        old = raw(live, b"GET /health HTTP/1.0\r\n\r\n")
        assert b"connection: close" in old
        waiting = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n"
        assert raw(live, waiting).startswith(b"HTTP/1.1 100 Continue")
        content = b'{"input_ids":[1],"bootstrap_room":7}'
        head = f"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
        piped = head.encode() + content
        answers = raw(live, piped + two, count=3)
        assert answers.count(b"HTTP/1.1 ") == 3
        assert answers.index(b"500 Internal") < answers.index(b"200 OK")


def test_in_a_thread_for_callers_without_a_loop() -> None:
    before = threading.active_count()
    with start_in_thread(incident_cluster(6)) as live:
        with urllib.request.urlopen(live.url("d0") + "/v1/models") as response:
            assert response.status == 200
        url = live.url("d0")
    assert threading.active_count() == before
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url + "/v1/models")


def test_a_failure_to_start_in_a_thread_reaches_the_caller() -> None:
    with start_in_thread(ONE) as live:
        spec = ClusterSpec(engines=(EngineSpec("p", "prefill", bootstrap_port=live.bootstrap_ports["p0"]),))
        with pytest.raises(OSError, match="in use"), start_in_thread(spec):
            raise AssertionError


def test_cluster_file_names_everything() -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        content = yaml.safe_load(live.cluster_yaml())
        assert content["cluster"] == "incident"
        assert [engine["name"] for engine in content["engines"]] == ["p0", "d0", "p1", "d1", "p2", "d2"]
        for engine in content["engines"]:
            assert ("bootstrap_port" in engine) == (engine["role"] == "prefill")
            assert (await client.get(engine["url"] + "/v1/models")).status_code == 200
        assert content["routers"] == [
            {"name": "r0", "url": live.url("r0"), "kind": "sglang-router", "version": "0.3.2"}
        ]

    in_cluster(incident_cluster(), body)


class TestIncident:
    def test_has_every_trait_of_the_incident(self) -> None:
        spec = incident_cluster()
        assert {engine.context_length for engine in spec.engines} == {1_048_576}
        assert spec.engine("p0").pools == (681_280,)
        assert spec.engine("p0").max_req_input_len == 681_274
        assert {engine.version for engine in spec.engines} == {
            "0.5.19",
            "0.5.20",
            "0.5.21",
            "0.5.22",
            "0.5.23",
        }
        believed = [
            engine for engine in spec.engines if (engine.exposed_env or {}).get(HOLD_VARIABLE) == "on"
        ]
        assert [(engine.version, engine.holds) for engine in believed] == [("0.5.20", False)]
        assert [engine.name for engine in spec.engines if not engine.metrics] == ["p1"]
        assert [engine.name for engine in spec.engines if engine.admin_api_key and not engine.api_key] == [
            "d2"
        ]
        assert (spec.engine("p1").version, spec.engine("d1").version) == ("0.5.21", "0.5.22")
        assert not spec.routers[0].pairs_failures

    def test_grows_by_repeating_and_is_the_same_each_time(self) -> None:
        assert incident_cluster(20) == incident_cluster(20)
        large = incident_cluster(1000)
        assert len({engine.name for engine in large.engines}) == 1000
        assert [engine.version for engine in large.engines[6:12]] == [
            engine.version for engine in large.engines[:6]
        ]
        with pytest.raises(ValueError, match="at least one"):
            incident_cluster(0)


def test_command_line_serves_until_it_is_told_to_stop() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "pdguard.simulator", "--engines", "3"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            if line == "# ready\n":
                break
            lines.append(line)
        content = yaml.safe_load("".join(lines))
        assert len(content["engines"]) == 3
        with urllib.request.urlopen(content["engines"][0]["url"] + "/server_info") as response:
            assert response.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
