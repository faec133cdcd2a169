"""A real Prometheus for tests: Debian's, on loopback, with a folder of its own, ended by its process id."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

NEEDS = "PDGUARD_NEEDS_PROMETHEUS"
SCRAPE_SECONDS = 0.25
_START_SECONDS = 60.0


def binary() -> str:
    """The path of prometheus; without it the test is skipped, or fails where it must not be missing."""
    found = shutil.which("prometheus") or shutil.which("/usr/bin/prometheus")
    if found is None:
        if os.environ.get(NEEDS) == "1":
            pytest.fail(f"prometheus is not installed, and {NEEDS}=1 wants it")
        pytest.skip("prometheus is not installed (Debian: apt-get install prometheus)")
    return found


class PrometheusServer:
    """One running Prometheus."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> Any:
        """The JSON at a path."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise AssertionError(f"Prometheus: HTTP {response.status} {body[:200]!r}")
        return json.loads(body)

    def query(self, text: str, at: float | None = None) -> list[dict[str, Any]]:
        """The series of an instant query that somebody wrote by hand."""
        when = "" if at is None else f"&time={at:.3f}"
        result: list[dict[str, Any]] = self.get(f"/api/v1/query?query={quote(text)}{when}")["data"]["result"]
        return result

    def number(self, text: str, at: float | None = None) -> float:
        """The one value of a query; 0 where it has no series."""
        result = self.query(text, at)
        assert len(result) <= 1, result
        return float(result[0]["value"][1]) if result else 0.0

    def wait_scrapes(self, instances: Sequence[str], count: int = 2, limit: float = 30.0) -> None:
        """Wait until each target was scraped that often from now on."""
        began = time.time()
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            span = max(1, round((time.time() - began) * 1000))
            seen = self.query(f"count_over_time(up[{span}ms]) and up == 1")
            many = {one["metric"]["instance"]: float(one["value"][1]) for one in seen}
            if all(many.get(instance, 0) >= count for instance in instances):
                return
            time.sleep(0.05)
        raise AssertionError(f"not scraped {count} times within {limit:g} s")


@contextmanager
def prometheus(
    folder: Path,
    targets: Mapping[str, Sequence[str]],
    *,
    labels: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> Iterator[PrometheusServer]:
    """Scrape targets (host:port by job) for the length of a block."""
    program = binary()
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "global": {"scrape_interval": f"{round(SCRAPE_SECONDS * 1000)}ms"},
        "scrape_configs": [
            {
                "job_name": job,
                "scrape_timeout": f"{round(SCRAPE_SECONDS * 1000)}ms",
                "static_configs": [{"targets": list(hosts), "labels": dict(labels or {})}],
            }
            for job, hosts in targets.items()
        ],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    command = [
        program,
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
        *arguments,
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    server = PrometheusServer(port)
    try:
        _wait_ready(server, process, folder / "log")
        yield server
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


def _wait_ready(server: PrometheusServer, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"prometheus ended: {log.read_text(errors='replace')[-500:]}")
        with suppress(OSError, AssertionError, http.client.HTTPException, ValueError):
            if server.get("/api/v1/query?query=1"):
                return
        time.sleep(0.05)
    raise AssertionError("prometheus did not start")
