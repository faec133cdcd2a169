"""The tools of the proofs, without an engine: these run in the ordinary test suite."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from . import traffic
from .client import Answer, generate_body, prompt, send_only
from .run import ROOT
from .sockets import Connection, Listening, connections, listening


def test_the_mix_is_the_same_every_time() -> None:
    asks = traffic.mix(220, 1000, given_up=44)
    assert asks == traffic.mix(220, 1000, given_up=44)
    assert [ask.number for ask in asks] == list(range(264))
    answered = [ask for ask in asks if ask.ending == "answered"]
    assert len(answered) == 220
    assert sum(ask.ending == "left" for ask in asks) == sum(ask.ending == "aborted" for ask in asks) == 22
    assert {ask.stream for ask in answered} == {ask.routed for ask in answered} == {True, False}
    lengths = [ask.length for ask in asks]
    assert min(lengths) < 50
    assert max(lengths) == 1000
    assert sum(length >= 990 for length in lengths) > 40


def test_a_streamed_answer_is_its_last_event() -> None:
    meta = {"prompt_tokens": 3, "finish_reason": {"type": "length", "length": 2}}
    events = [{"output_ids": [1], "meta_info": {}}, {"output_ids": [1, 2], "meta_info": meta}]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    answer = Answer(200, body, 0.1)
    assert answer.tokens == [1, 2]
    assert (answer.prompt_tokens, answer.finish) == (3, "length")
    assert Answer(200, json.dumps(events[1]), 0.1).tokens == [1, 2]


def test_a_client_that_leaves() -> None:
    seen: list[bytes] = []
    gone = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.rfile.read(int(self.headers["Content-Length"])))
            if not self.rfile.read(1):
                gone.set()

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        body = generate_body(prompt(5), 2)
        client = send_only(f"http://127.0.0.1:{server.server_port}/generate", body)
        time.sleep(0.1)
        assert not gone.is_set()
        client.close()
        assert gone.wait(10)
        server.shutdown()
    assert json.loads(seen[0]) == body


def test_whose_connection_it_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port, mine = server.getsockname()[1], [os.getpid()]
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert Listening(port, False) in listening(mine)
            assert Connection(client.getsockname()[1], port) in connections(mine)
            assert not listening([])
            assert not connections([])


SLOWED = """
    import os, socket, threading, time
    from tests.lab import netns
    from tests.lab.sockets import Listening, listening
    from tests.lab.throttle import SlowLink
    netns.prepare(22000)
    SIZE = 200_000

    def seconds(server, before):
        client = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        with client, peer:
            before(client.getsockname()[1])
            start = time.monotonic()
            threading.Thread(target=client.sendall, args=(bytes(SIZE),), daemon=True).start()
            left = SIZE
            while left:
                left -= len(peer.recv(65536))
            return time.monotonic() - start

    def nothing(port):
        pass

    here = ("127.0.0.1", 0)
    with socket.create_server(here) as named, socket.create_server(here) as other:
        with SlowLink("1mbit", [named.getsockname()[1]]) as link:
            slow, unnamed = seconds(named, nothing), seconds(other, nothing)
            assert link.sent() >= SIZE
            spared = seconds(named, lambda port: link.spare([port]))
        after = seconds(named, nothing)
    found = [slow > 0.8, unnamed < 0.5, spared < 0.5, after < 0.5]
    with socket.create_server(("", 0)) as server:
        everywhere = Listening(server.getsockname()[1], True) in listening([os.getpid()])
    print(all(found), everywhere, flush=True)
"""


def test_only_named_connections_are_slow_and_only_in_the_block() -> None:
    if os.geteuid() != 0 or shutil.which("tc") is None or shutil.which("unshare") is None:
        pytest.skip("needs root, unshare and tc")
    command = ["unshare", "--net", "--", sys.executable, "-c", textwrap.dedent(SLOWED)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True True\n"
