"""`pdguard metrics` as a user calls it, against simulated engines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from pdguard.outcomes.document import metrics_schema
from pdguard.simulator import ClusterSpec, EngineSpec, start_in_thread
from pdguard.simulator.spec import HOLD_SECONDS_VARIABLE, HOLD_VARIABLE
from tests.cli.test_commands import pdguard

RELEASES = "decode_deferred_kv_release_total"
ENV = {HOLD_VARIABLE: "1", HOLD_SECONDS_VARIABLE: "60"}


def cluster(drained: int, timeout: int) -> ClusterSpec:
    seed = {f'{RELEASES}{{outcome="drained"}}': drained, f'{RELEASES}{{outcome="timeout"}}': timeout}
    return ClusterSpec(
        "sim",
        engines=(
            EngineSpec("p0", "prefill", exposed_env=ENV),
            EngineSpec("d0", "decode", tp=2, exposed_env=ENV, seed=seed),
        ),
    )


@pytest.fixture(scope="module")
def bad() -> Iterator[str]:
    with start_in_thread(cluster(80, 20)) as live:
        yield live.cluster_yaml()


@pytest.fixture(scope="module")
def good() -> Iterator[str]:
    with start_in_thread(cluster(99, 1)) as live:
        yield live.cluster_yaml()


def test_a_bad_ratio_is_exit_12_and_said_first(bad: str) -> None:
    done = pdguard("metrics", "-", "--window", "0", stdin=bad)
    assert done.returncode == 12, done.stderr
    first, second = done.stdout.splitlines()[:2]
    assert first == "AT RISK  sim: too many holds ended without proof on d0"
    assert second.startswith("next: find out why prefill's word does not reach d0")
    assert "  ! d0: 20.0% of 100 holds ended without proof, above 5.0%" in done.stdout
    assert "its sum and buckets contradict each other" in " ".join(done.stdout.split())
    assert "drained 80, timeout 20, error 0" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_policy_of_the_cluster_file_decides(bad: str) -> None:
    lenient = bad + "\npolicy: {timeout_ratio: 0.3}\n"
    assert pdguard("metrics", "-", "--window", "0", stdin=lenient).returncode == 0
    few = bad + "\npolicy: {min_holds: 101}\n"
    assert pdguard("metrics", "-", "--window", "0", stdin=few).returncode == 0


def test_a_window_gives_rates_and_sizing(good: str) -> None:
    done = pdguard(
        "metrics",
        "-",
        "--window",
        "1s",
        "--what-if",
        "90",
        "--prompt-tokens",
        "100",
        "--aborts-per-second",
        "0.5",
        "--detail",
        stdin=good,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("QUIET  sim: nothing was held on 1 of 1 decode")
    text = " ".join(done.stdout.split())
    assert "aborts 0.5/s assumed: --aborts-per-second" in text
    assert "T_hold to set 60 s" in text
    assert "of the pool at the assumed 0.5 aborts/s;" in text.partition("if T_hold 90 s")[2]
    assert "T_hold in force 60 s; sufficient, with 25 s to spare, by what is assumed" in text
    assert "for 1 s, until" in done.stderr


def test_json_meets_its_schema_and_an_audit_takes_it(good: str, tmp_path: Path) -> None:
    file = tmp_path / "metrics.json"
    done = pdguard("metrics", "-", "--window", "0", "-f", "json", "-o", str(file), stdin=good)
    assert (done.returncode, done.stdout) == (0, "")
    told = f"CLEAN sim: 1 of 100 holds ended without proof on 1 of 1 decode; written to {file}\n"
    assert told in done.stderr
    assert "pdguard: next: " in done.stderr
    made = json.loads(file.read_text())
    jsonschema.validate(made, metrics_schema())
    assert made["engines"][1]["holds"]["drained"]["value"] == 99
    audited = pdguard("audit", "-", "--with", str(file), "-f", "json", stdin=good)
    assert "Traceback" not in audited.stderr
    (engine,) = (e for e in json.loads(audited.stdout)["engines"] if e["name"] == "d0")
    assert engine["window_holds_drained"] == 99


@pytest.mark.parametrize(
    "arguments",
    [
        ["--window", "soon"],
        ["--window", "-5"],
        ["--window", "99999d"],
        ["--log", "d0"],
        ["--log", "nobody=x.log"],
        ["--window", "11m"],
        ["--source", "engines", "--window", "1h"],
        ["--aborts-per-second", "-1"],
        ["-o", "no-such-folder/metrics.json"],
        ["--log", "d0=no-such-file.log"],
        ["--what-if", "-1"],
        ["--source", "prometheus"],
        ["--format", "yaml"],
        ["--watch", "--every", "0"],
    ],
)
def test_usage_errors_are_exit_2(good: str, arguments: list[str]) -> None:
    done = pdguard("metrics", "-", "--window", "0", *arguments, stdin=good)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_files_are_checked_before_anything_is_asked(good: str) -> None:
    done = pdguard("metrics", "-", "--window", "5m", "--log", "d0=no-such-file.log", stdin=good)
    assert done.returncode == 2
    assert done.stderr.startswith("pdguard: the log of d0 cannot be read")


def test_a_long_window_without_a_prometheus_says_what_to_do(good: str) -> None:
    done = pdguard("metrics", "-", "--window", "3h", stdin=good)
    assert "Name `prometheus:` in the cluster file, or take --window 0" in done.stderr
    assert "reading" not in done.stderr


def test_nothing_collected_is_exit_3() -> None:
    text = "cluster: x\nengines: [{name: d0, role: decode, url: 'http://127.0.0.1:9'}]\n"
    done = pdguard("metrics", "-", "--window", "0", stdin=text)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


def test_watch_writes_a_line_a_reading_and_ends_with_ctrl_c(good: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(good)
    process = subprocess.Popen(
        [sys.executable, "-m", "pdguard", "metrics", str(file), "--watch", "--every", "1s"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ},
        # A shell ignores SIGINT for what it starts in the background, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    with process:
        assert process.stdout is not None
        head = process.stdout.readline()
        first = process.stdout.readline()
        second = process.stdout.readline()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert head.startswith("each engine: verdict over the last 60 readings")
    assert "d0 UNKNOWN holds ?" in first
    assert "d0 QUIET holds 0/s" in second
    assert process.returncode == 0
    assert told.endswith("pdguard: stopped\n")
    assert "Traceback" not in told
