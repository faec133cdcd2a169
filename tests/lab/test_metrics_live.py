"""`pdguard metrics` on a running pair: from a real Prometheus and the engines, against the raw counters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.outcomes.prometheus_server import PrometheusServer, prometheus

from . import gauges
from .audit_specs import NEWER
from .client import prompt
from .lab import Lab
from .probing import probe
from .race import data_ports
from .throttle import SlowLink

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

ABORTED = "sglang:num_aborted_requests_total"


def metrics(lab: Lab, folder: Path, server: PrometheusServer, *options: str) -> dict[str, Any]:
    """The document of the command; the cluster file names the Prometheus."""
    file = folder / "cluster.yaml"
    file.write_text(lab.cluster_yaml() + f'prometheus: {{url: "{server.url}"}}\n', encoding="utf-8")
    command = [sys.executable, "-m", "pdguard", "metrics", str(file), "--format", "json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode in (0, 12), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def of(document: dict[str, Any], name: str) -> dict[str, Any]:
    (engine,) = (e for e in document["engines"] if e["name"] == name)
    return dict(engine)


def counts(lab: Lab) -> dict[str, Any]:
    """What the pair itself has counted so far."""
    decode = lab.decode
    return {
        "releases": gauges.releases(decode),
        "aborts": sum(value for _, value in gauges.samples(decode, ABORTED)),
        "failed": gauges.failed_transfers(decode),
    }


@pytest.mark.parametrize("lab", [NEWER], indirect=True, scope="session")
def test_a_hold_is_counted_as_the_engine_counts_it(lab: Lab, tmp_path: Path) -> None:
    """A client leaves in mid-transfer: the probe, Prometheus and the engine see one hold alike."""
    hosts = {e.name: urlsplit(e.url).netloc for e in lab.engines}
    with prometheus(tmp_path / "prometheus", {"sglang": list(hosts.values())}) as server:
        server.wait_scrapes(list(hosts.values()))
        before = counts(lab)
        with SlowLink("128kbit", data_ports(lab)):
            assert lab.direct(prompt(100), 2).decode.ok
            found = probe(lab, tmp_path, "--abort", "--accept-exposure", "--stream", "yes", "--wait", "40")
        (left,) = found.of_kind("abort")
        assert left["verdict"] == "both halves were told", left
        gauges.drain(lab.engines)
        server.wait_scrapes(list(hosts.values()))
        document = metrics(lab, tmp_path, server, "--window", "10m", "--source", "prometheus")
        alone = metrics(lab, tmp_path, server, "--window", "0", "--source", "engines")
        after = counts(lab)
        decode = of(document, lab.decode.name)

        held = {name: count - before["releases"].get(name, 0) for name, count in after["releases"].items()}
        assert {name: read["value"] for name, read in decode["holds"].items()} == {
            **{"drained": 0, "timeout": 0, "error": 0},
            **held,
        }
        assert held == {"drained": 1}
        assert decode["figures"]["aborts"]["value"] == after["aborts"] - before["aborts"]
        assert decode["figures"]["failed_transfers"]["value"] == after["failed"] - before["failed"]
        assert decode["hold_seconds"]["count"] == 1
        (figures,) = found.measures("abort")
        assert decode["hold_seconds"]["sum"] == pytest.approx(figures["hold_seconds"], abs=0.05)

        # The engines' client library writes an underscore for the colon when OpenMetrics is asked for.
        name = '__name__=~"sglang[:_]decode_deferred_kv_release_total"'
        where = f'instance="{hosts[lab.decode.name]}",outcome="drained"'
        by_hand = server.number(f"max({{{name},{where}}})")
        assert by_hand == after["releases"]["drained"]
        since_start = of(alone, lab.decode.name)
        assert since_start["holds"]["drained"]["value"] == after["releases"]["drained"]
        assert since_start["figures"]["aborts"]["value"] == after["aborts"]
        assert decode["figures"]["pool"]["value"] == lab.spec.decode.pool
