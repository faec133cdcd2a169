"""`pdguard probe` as a user calls it, against simulated clusters: verdicts, exit codes, consent, silence."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pdguard.probe.document import probe_schema
from pdguard.simulator import ClusterSpec, Live, RouterSpec, bodies, start_in_thread
from tests.probe.live import ROUTER, SMG, pair

UNEQUAL, EQUAL = (1024, 4096), (1024, 1024)
MARKER = "PLANTED-7f3a"
QUICK = ("--stream", "no")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pdguard", "probe", *arguments]


def probe(*arguments: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **env},
    )


@contextmanager
def cluster(folder: Path, spec: ClusterSpec) -> Iterator[tuple[Live, str]]:
    with start_in_thread(spec) as live:
        file = folder / "cluster.yaml"
        file.write_text(live.cluster_yaml())
        yield live, str(file)


def asked(live: Live) -> int:
    """Prompts that reached an engine."""
    return sum(
        count for app in live.engines.values() for (method, _), count in app.state.calls.items()
        if method == "POST"
    )  # fmt: skip


def test_without_a_word_of_consent_nothing_is_sent(tmp_path: Path) -> None:
    with cluster(tmp_path, pair("0.5.22", UNEQUAL)) as (live, file):
        done = probe(file, "--over-pool")
        assert done.returncode == 2
        assert done.stdout.startswith("PLAN  pair: ")
        assert "nothing was sent: add --yes" in done.stderr
        planned = probe(file, "--over-pool", "--plan", "-f", "json")
        assert planned.returncode == 0
        document = json.loads(planned.stdout)
        jsonschema.validate(document, probe_schema())
        assert document["plan"]["steps"]
        assert document["stopped"] == "nothing was sent"
        assert asked(live) == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "--over-pool"),
        (("--over-pool", "--api", "embeddings"), "generate"),
        (("--over-pool", "--stream", "maybe"), "yes | no | both"),
        (("--over-pool", "--format", "yaml"), "table or json"),
        (("--over-pool", "--max-requests", "501"), "--max-requests"),
        (("--over-pool", "--router", "r1"), "no router of that name"),
        (("--over-pool", "--pair", "p0/d7"), "p0→d0"),
        (("--over-pool", "-o", "/nonexistent/x"), "cannot be written"),
        (("--over-pool", "--save", "/nonexistent/x"), "cannot be written"),
        (("--over-pool", "--save", "-"), "--save wants a file"),
        (("--over-pool", "--save", "same.json", "-o", "same.json"), "name the same file"),
        (("--abort", "--api", "chat"), "--api goes with --over-pool"),
    ],
)
def test_what_is_wrong_with_a_call_is_told(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    with cluster(tmp_path, pair("0.5.22", UNEQUAL)) as (live, file):
        done = probe(file, *arguments, "--yes")
        assert asked(live) == 0
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cluster_that_is_not_there_is_exit_3(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("cluster: x\nengines: [{name: p0, role: prefill, url: 'http://127.0.0.1:9'}]\n")
    done = probe(str(file), "--over-pool", "--yes")
    assert done.returncode == 3
    assert "nothing could be collected" in done.stderr


@pytest.mark.parametrize(
    ("version", "pools", "router", "more", "code", "word"),
    [
        ("0.5.19", UNEQUAL, ROUTER, (), 3, "UNKNOWN"),
        ("0.5.19", UNEQUAL, ROUTER, ("--direct",), 12, "AT RISK"),
        ("0.5.19", UNEQUAL, ROUTER, ("--accept-exposure",), 20, "EXPOSED"),
        ("0.5.20", EQUAL, ROUTER, ("--direct",), 12, "AT RISK"),
        ("0.5.21", EQUAL, ROUTER, ("--direct",), 0, "CLEAN"),
        ("0.5.22", EQUAL, ROUTER, ("--direct",), 0, "CLEAN"),
        ("0.5.23", EQUAL, ROUTER, ("--direct",), 0, "CLEAN"),
        ("0.5.21", UNEQUAL, ROUTER, ("--direct",), 12, "AT RISK"),
        ("0.5.23", UNEQUAL, ROUTER, ("--direct",), 12, "AT RISK"),
        ("0.5.23", UNEQUAL, ROUTER, (), 12, "AT RISK"),
        ("0.5.23", UNEQUAL, SMG, (), 0, "CLEAN"),
    ],
)
def test_versions_and_pools(
    tmp_path: Path,
    version: str,
    pools: tuple[int, int],
    router: RouterSpec,
    more: tuple[str, ...],
    code: int,
    word: str,
) -> None:
    with cluster(tmp_path, pair(version, pools, router)) as (_, file):
        done = probe(file, "--over-pool", "--yes", *QUICK, *more)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout.startswith(f"{word}  pair: ")
    assert "PLAN  pair: " in done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 100
    if version == "0.5.19" and "--accept-exposure" not in more:
        assert "(--accept-exposure)" in done.stdout


def test_truncation_is_told_and_is_exit_11(tmp_path: Path) -> None:
    with cluster(tmp_path, pair("0.5.22", EQUAL, reserved=4, allow_auto_truncate=True)) as (_, file):
        done = probe(file, "--over-pool", "--yes", "--direct", *QUICK)
    assert done.returncode == 11, done.stdout
    assert "truncated by configuration" in done.stdout


def test_a_held_half_is_closed_checked_and_told(tmp_path: Path) -> None:
    with cluster(tmp_path, pair("0.5.22", UNEQUAL, waiting_timeout=60.0)) as (live, file):
        began = time.monotonic()
        done = probe(file, "--over-pool", "--yes", "--pair", "p0/d0", "--wait", "1", *QUICK)
        assert time.monotonic() - began < 15
        assert len(live.rooms) == 0
    assert done.returncode == 12
    assert "still held after 1.0 s" in done.stdout
    assert "after the probe had closed the request" in done.stdout


def test_json_meets_its_schema_and_an_audit_takes_it(tmp_path: Path) -> None:
    target = tmp_path / "probe.json"
    with cluster(tmp_path, pair("0.5.22", EQUAL)) as (_, file):
        done = probe(
            file, "--over-pool", "--canary", "--yes", "--api", "generate,chat", "--max-requests", "400",
            *QUICK, "-f", "json", "-o", str(target),
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
    assert f"--with {target}" in done.stderr
    document = json.loads(target.read_text())
    jsonschema.validate(document, probe_schema())
    kinds = {one["kind"]: one["verdict"] for one in document["results"]}
    assert kinds["canary"] == "the same answers"
    assert {step["api"] for step in document["plan"]["steps"]} == {"/generate", "/v1/chat/completions"}


def test_save_writes_the_document_beside_the_table_and_names_the_audit(tmp_path: Path) -> None:
    saved = tmp_path / "probe.json"
    with cluster(tmp_path, pair("0.5.22", EQUAL)) as (live, file):
        planned = probe(file, "--over-pool", "--plan", "--save", str(saved))
        assert (planned.returncode, saved.exists(), asked(live)) == (0, False, 0)
        done = probe(file, "--over-pool", "--yes", *QUICK, "--save", str(saved))
        again = probe(file, "--canary", "--yes", *QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("CLEAN  pair: ")
    flat = " ".join(done.stdout.split())
    assert f"pdguard audit {file} --with {saved}".replace(" ", "") in flat.replace(" ", "")
    assert f"next: pdguard audit {file} --with {saved}" in done.stderr
    document = json.loads(saved.read_text())
    jsonschema.validate(document, probe_schema())
    assert document["spent"]["sent"] == sum(1 for _ in document["results"])
    assert document["spent"]["requests"] > document["spent"]["sent"]
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []
    assert again.returncode == 0, again.stdout
    assert "known answers did not drift; limits were not probed" in " ".join(again.stdout.split())
    assert "add --save probe.json next time" in again.stdout


def test_a_budget_that_leaves_out_what_tells_is_no_pass(tmp_path: Path) -> None:
    with cluster(tmp_path, pair("0.5.22", EQUAL)) as (_, file):
        done = probe(file, "--over-pool", "--yes", "--direct", *QUICK, "--max-requests", "5")
    assert done.returncode == 3, done.stdout
    flat = " ".join(done.stdout.split())
    assert "UNKNOWN pair: not probed: over-pool, both reject, through r0; unknown is not a pass" in flat
    assert "next: probe again with --max-seconds" in flat or "next: probe again with --max-requests" in flat
    # what loses nothing was told with the plan alone
    assert "controls" in done.stderr
    assert "controls, the first" not in done.stdout


def heed_ctrl_c() -> None:
    """A shell ignores SIGINT for what it starts in the background, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_closes_everything_and_prints_what_was_seen(tmp_path: Path, sent: signal.Signals) -> None:
    with cluster(tmp_path, pair("0.5.22", UNEQUAL, waiting_timeout=60.0)) as (live, file):
        running = subprocess.Popen(
            command(file, "--over-pool", "--yes", "--direct", *QUICK),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=heed_ctrl_c,  # noqa: PLW1509
        )
        try:
            deadline = time.monotonic() + 30
            while not len(live.rooms) or not live.engines["d0"].state.queues["decode_transfer"]:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            time.sleep(0.3)
            running.send_signal(sent)
            out, err = running.communicate(timeout=10)
        finally:
            running.kill()
        deadline = time.monotonic() + 5
        while len(live.rooms) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(live.rooms) == 0
    assert running.returncode == 130, err
    assert "STOPPED  interrupted" in out
    assert "not done: " in out
    assert "Traceback" not in err


def test_an_exposure_is_not_hidden_by_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """The folder goes away while the probe runs; what was seen counts for more."""
    gone = tmp_path / "gone"
    gone.mkdir()
    with cluster(tmp_path, pair("0.5.19", UNEQUAL, waiting_timeout=1.0)) as (_, file):
        options = ("--over-pool", "--yes", "--direct", "--accept-exposure", *QUICK, "-o", str(gone / "x"))
        running = subprocess.Popen(
            command(file, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert running.stderr is not None
        for line in running.stderr:
            if "step 1" in line:
                gone.rmdir()
                break
        _, err = running.communicate(timeout=60)
    assert running.returncode == 20, err
    assert "cannot be written" in err


class LyingServer:
    """Answers every prompt with planted words in headers, errors and events, and passes all else on."""

    def __init__(self, behind: str) -> None:
        host, _, port = behind.removeprefix("http://").partition(":")
        self._behind = (host, int(port))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._count = 0
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def close(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            head = b""
            while b"\r\n\r\n" not in head:
                more = connection.recv(65536)
                if not more:
                    return
                head += more
            if head.startswith(b"POST"):
                self._count += 1
                connection.sendall(self._lie(self._count))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
                return
            head = head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
            with socket.create_connection(self._behind) as behind:
                behind.sendall(head)
                while data := behind.recv(65536):
                    connection.sendall(data)

    def _lie(self, number: int) -> bytes:
        mark = MARKER.encode()
        error = json.dumps({"error": {"message": f"{MARKER} said", "type": MARKER, "code": MARKER}}).encode()
        bodies_ = [
            error,
            b'data: {"text":"' + mark + b'","meta_info":{"finish_reason":{"type":"' + mark + b'"}}}\n\n',
            b"data: " + error + b"\n\ndata: [DONE]\n\n",
            b"<html>" + mark,
            b'{"text": "'
            + mark
            + b'", "output_ids": ["'
            + mark
            + b'"], "meta_info": {"id": "'
            + mark
            + b'"}}',
        ]
        body = bodies_[number % len(bodies_)]
        kind = b"text/event-stream" if body.startswith(b"data:") else b"application/json"
        status = (b"400 " + mark, b"500 " + mark, b"200 OK")[number % 3]
        lines = [b"HTTP/1.1 " + status, b"X-Note: " + mark, b"Content-Type: " + kind + b"; x=" + mark]
        broken = [b"Bad Header " + mark] if number % 7 == 0 else []
        return b"\r\n".join([*lines, *broken, b"Content-Length: %d" % len(body), b"", body])


def _planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer and every refusal of the simulated engines holds the marker."""
    text_of, over_limit = bodies.text_of, bodies.over_limit
    monkeypatch.setattr(bodies, "text_of", lambda tokens: f"{MARKER}{text_of(tokens)}")
    monkeypatch.setattr(bodies, "over_limit", lambda *a: f"{over_limit(*a)} {MARKER}")


@pytest.mark.parametrize("lying", [False, True])
@pytest.mark.parametrize(("form", "debug"), [("table", False), ("table", True), ("json", True)])
def test_nothing_of_any_body_is_printed_or_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, debug: bool, lying: bool
) -> None:
    _planted(monkeypatch)
    env = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    if debug:
        env |= {"PDGUARD_DEBUG": "1", "PYTHONASYNCIODEBUG": "1"}
    with start_in_thread(pair("0.5.19", UNEQUAL)) as live:
        content: dict[str, Any] = live.cluster()
        liars = []
        if lying:
            for one in (*content["engines"], *content["routers"]):
                liars.append(LyingServer(one["url"]))
                one["url"] = liars[-1].url
        file = tmp_path / "cluster.yaml"
        file.write_text(json.dumps(content))
        wanted = ["--over-pool", "--canary", "--staging", "--yes", "--direct", "--accept-exposure"]
        limits = ["--max-seconds", "3600", "--wait", "1", "--max-requests", "500"]
        target = tmp_path / "out"
        runs = [
            probe(str(file), *wanted, *limits, "--api", "completions,chat", "-f", form, cwd=tmp_path, **env),
            probe(str(file), *wanted, *limits, *QUICK, "-f", form, "-o", str(target), cwd=tmp_path, **env),
        ]
        for liar in liars:
            liar.close()
    assert target.stat().st_size > 500
    for done in runs:
        assert done.returncode in ((3, 11, 12, 20) if lying else (20,)), done.stderr
        assert MARKER not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or MARKER.encode() not in path.read_bytes()
