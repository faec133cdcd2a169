"""Where outcomes are read from: Prometheus if there is one, engines if not, logs where nothing counts."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from pdguard.errors import InputError, NothingCollected
from pdguard.outcomes import read as reading
from pdguard.outcomes import series as s
from pdguard.outcomes.client import PrometheusProblem
from pdguard.outcomes.interface import Source
from pdguard.outcomes.read import read_outcomes
from pdguard.simulator import ClusterSpec, Lie, start_in_thread
from tests.outcomes.fake_prometheus import sample, serving
from tests.outcomes.support import address, cluster_of, decode, gap, prefill, value
from tests.outcomes.test_logs import other, timed_out


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def test_a_prometheus_that_is_away_gives_way_to_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "FALLBACK_SECONDS", 1.0)
    told: list[str] = []
    with start_in_thread(ClusterSpec("c", (decode(),))) as live:
        cluster = cluster_of(live, prometheus={"url": f"http://127.0.0.1:{free_port()}"})
        found = read_outcomes(cluster, {}, window=3600, versions={}, progress=told.append)
        with pytest.raises(PrometheusProblem, match="connection refused"):
            read_outcomes(cluster, {}, window=3600, source="prometheus", versions={})
    assert found.notes == (
        "Prometheus could not be asked: connection refused, so the engines were asked, "
        "for 1 s instead of 3600 s",
    )
    assert found.seconds == pytest.approx(1.0, abs=0.5)
    aborts = found.engines[0].aborts
    assert getattr(aborts, "source", None) is Source.ENGINE
    assert any("1 engine for 1 s" in line for line in told)


def test_a_key_that_is_missing_is_no_reason_to_look_elsewhere() -> None:
    with start_in_thread(ClusterSpec("c", (decode(),))) as live:
        cluster = cluster_of(live, prometheus={"url": "http://127.0.0.1:1", "auth": {"api_key_env": "NONE"}})
        with pytest.raises(InputError, match="NONE is not set"):
            read_outcomes(cluster, {}, window=1, versions={})


def test_without_prometheus_in_the_cluster_file() -> None:
    with start_in_thread(ClusterSpec("c", (decode(),))) as live:
        with pytest.raises(PrometheusProblem, match="names no Prometheus"):
            read_outcomes(cluster_of(live), {}, window=1, source="prometheus", versions={})
        found = read_outcomes(cluster_of(live), {}, window=0, versions={})
    assert found.engines[0].name == "d0"


def test_versions_come_from_the_engines_with_their_key() -> None:
    with start_in_thread(
        ClusterSpec("c", (decode(version="0.5.21", api_key="k1"), prefill(api_key="k1")))
    ) as live:
        cluster = cluster_of(live, auth={"api_key_env": "KEY"})
        found = read_outcomes(cluster, {"KEY": "k1"}, window=0)
        assert [engine.version for engine in found.engines] == ["0.5.21", "0.5.23"]
        unknown = read_outcomes(cluster, {"KEY": "other"}, window=0).engines[0]
    assert unknown.version == ""
    # The gauge of current holds is not there either, so nothing tells that this engine counts.
    assert gap(unknown.holds["drained"]).why == "it has no counter of releases, and its version is not known"


def test_a_log_for_an_engine_that_counts_none(tmp_path: Path) -> None:
    log = tmp_path / "d0.log"
    log.write_text(timed_out(1, 1) + timed_out(58, 2, t="45.0") + other(59))
    engines = (decode(version="0.5.20"), decode("d1"))
    with start_in_thread(ClusterSpec("c", engines)) as live:
        d0, d1 = read_outcomes(cluster_of(live), {}, window=0, logs={"d0": log, "d1": log}).engines
        assert (value(d0.holds["timeout"]), value(d0.t_hold)) == (2, 45)
        assert (value(d1.holds["timeout"]), value(d1.t_hold)) == (0, 45)
        with pytest.raises(InputError, match=r"no engine of that name.*Did you mean d0"):
            read_outcomes(cluster_of(live), {}, window=0, logs={"d00": log})


def test_a_log_alone_is_something(tmp_path: Path) -> None:
    log = tmp_path / "d0.log"
    log.write_text(timed_out(1, 1))
    with start_in_thread(ClusterSpec("c", (decode(lie=Lie.REFUSED),))) as live:
        (d0,) = read_outcomes(cluster_of(live), {}, window=0, logs={"d0": log}, versions={}).engines
        assert value(d0.holds["timeout"]) == 1
        assert gap(d0.pool).why == "/metrics: connection refused"
        with pytest.raises(NothingCollected, match="connection refused"):
            read_outcomes(cluster_of(live), {}, window=0, versions={})


def counters(instance: str, value_: str, name: str = s.ABORTS, **more: str) -> dict[str, Any]:
    return sample({"__name__": name, "instance": instance, "job": "j", **more}, value_, 1000.0)


@pytest.mark.parametrize(
    ("value_", "why"),
    [
        ("NaN", f"a sample of {s.ABORTS} could not be read"),
        ("+Inf", f"a sample of {s.ABORTS} could not be read"),
        ("-4", f"a sample of {s.ABORTS} could not be read"),
    ],
)
def test_values_that_are_no_counts_are_gaps(value_: str, why: str) -> None:
    with start_in_thread(ClusterSpec("c", (decode(),))) as live:
        instance = address(live, "d0")

        def answer(query: str) -> Any:
            if query.startswith("vector"):
                return [sample({}, "1000", 1000.0)]
            if query.startswith("up"):
                return [sample({"__name__": "up", "instance": instance, "job": "j"}, "1", 1000.0)]
            if s.ABORTS in query:
                return [counters(instance, value_), counters(instance, "4", s.REQUESTS, is_streaming="true")]
            return [counters("elsewhere:1", "3", s.POOL)]

        with serving(answer) as fake:
            cluster = cluster_of(live, prometheus={"url": fake.url})
            (d0,) = read_outcomes(
                cluster, {}, window=0, source="prometheus", versions={"d0": "0.5.23"}
            ).engines
    assert gap(d0.aborts).why == why
    assert value(d0.requests) == 4
    assert value(d0.holds["timeout"]) == 0
    assert gap(d0.pool).why == f"it has no {s.POOL}, which came with 0.5.10"


@pytest.mark.parametrize("form", [[], [sample({}, "1000", 1000.0)] * 2, {"a": 1}])
def test_a_clock_that_is_none(form: Any) -> None:
    with start_in_thread(ClusterSpec("c", (decode(),))) as live, serving(lambda _: form) as fake:
        cluster = cluster_of(live, prometheus={"url": fake.url})
        with pytest.raises(PrometheusProblem, match="not an answer of Prometheus"):
            read_outcomes(cluster, {}, window=60, source="prometheus", versions={})
