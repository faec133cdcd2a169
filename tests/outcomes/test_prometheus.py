"""A real Prometheus that scrapes the simulator: figures equal the raw counters and hand-written queries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
import yaml

from pdguard.cluster.loader import parse_cluster
from pdguard.cluster.model import Engine
from pdguard.errors import NothingCollected
from pdguard.outcomes import series as s
from pdguard.outcomes.interface import HoldTimes, Outcomes, Source
from pdguard.outcomes.prometheus import instances, quote, selector
from pdguard.outcomes.read import read_outcomes
from pdguard.simulator import ClusterSpec, Live, start_in_thread
from pdguard.simulator.metrics import record_hold, record_transfer
from tests.outcomes.prometheus_server import SCRAPE_SECONDS, PrometheusServer, prometheus
from tests.outcomes.support import address, cluster_of, decode, gap, prefill, raw, times, value

ENGINES = (
    decode("d0", tp=2, seed={'decode_deferred_kv_release_total{outcome="timeout"}': 40}),
    decode("d1", "0.5.22", dp=2, tp=2, pools=(4096, 2048), page_size=64),
    decode("d2", "0.5.19"),
    prefill("p0", tp=2, seed={"num_transfer_failed_reqs_total": 7}),
)
WINDOW = 600.0


@dataclass
class Setting:
    live: Live
    server: PrometheusServer

    def add(self, engine: str, name: str, amount: float = 1.0, **labels: str) -> None:
        self.live.engines[engine].state.add(name, tuple(sorted(labels.items())), amount)

    def settle(self) -> None:
        """Let Prometheus see what is now."""
        self.server.wait_scrapes([address(self.live, name) for name in self.live.urls])

    def page(self, engine: str) -> str:
        return httpx.get(self.live.url(engine) + "/metrics", trust_env=False).text

    def read(self, window: float = WINDOW, **more: object) -> Outcomes:
        cluster = cluster_of(self.live, prometheus={"url": self.server.url, **more})
        return read_outcomes(cluster, {}, window=window, source="prometheus", versions=VERSIONS)


VERSIONS = {engine.name: engine.version for engine in ENGINES}


@contextmanager
def running(folder: Path) -> Iterator[Setting]:
    with start_in_thread(ClusterSpec("c", ENGINES)) as live:
        hosts = [address(live, name) for name in live.urls]
        with prometheus(folder, {"engines": hosts}, labels={"cluster": 'p"r\\od'}) as server:
            made = Setting(live, server)
            made.settle()
            yield made


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Setting]:
    with running(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    """Shared: a test counts in series that no other test touches."""
    with running(tmp_path_factory.mktemp("prometheus")) as made:
        yield made


def test_every_figure_is_what_was_counted_through_a_restart(fresh: Setting) -> None:
    setting = fresh
    live, server = setting.live, setting.server
    d0 = live.engines["d0"].state
    for seconds in (0.2, 45.0, 90.0):
        record_hold(d0, "timeout" if seconds > 30 else "drained", seconds)
    setting.add("d0", "num_aborted_requests_total", 2)
    setting.add("d0", "num_transfer_failed_reqs_total", 3)
    setting.add("p0", "num_transfer_failed_reqs_total", 4)
    setting.add("p0", "num_bootstrap_failed_reqs_total", 5)
    for seconds in (0.004, 2.0, 9.0):
        record_transfer(live.engines["p0"].state, seconds)
    for dp, count in (("0", 2), ("1", 3)):
        setting.add("d1", "decode_deferred_kv_release_total", count, outcome="error", dp_rank=dp)
        setting.add("d1", "num_transfer_failed_reqs_total", count, dp_rank=dp)
    setting.settle()

    before = setting.page("d0")
    live.restart("d0")
    record_hold(live.engines["d0"].state, "drained", 8.0)
    setting.add("d0", "num_aborted_requests_total", 7)  # beyond the old value: alone it looks like a rise
    setting.settle()
    after = setting.page("d0")
    found = setting.read()
    at = time.time()
    one = {engine.name: engine for engine in found.engines}

    assert {o: value(read) for o, read in one["d0"].holds.items()} == {"drained": 2, "timeout": 2, "error": 0}
    assert (value(one["d0"].aborts), value(one["d0"].failed_transfers)) == (9, 3)
    held = times(one["d0"].hold_times)
    assert [held.count, held.total_seconds] == pytest.approx([4, 143.2])
    assert (dict(held.buckets)[60.0], dict(held.buckets)[float("inf")]) == (3, 4)
    assert [engine.resets for engine in found.engines] == [1, 0, 0, 0]
    # The same from the raw pages: what was there before the restart, less the start, and what is there now.
    for outcome, start in (("drained", 0), ("timeout", 40)):
        pages = [max(raw(p, s.HOLDS, outcome=outcome).values(), default=0.0) for p in (before, after)]
        assert value(one["d0"].holds[outcome]) == sum(pages) - start

    assert value(one["d1"].holds["error"]) == 5
    assert value(one["d1"].failed_transfers) == 5
    assert (value(one["d1"].pool), value(one["d1"].page_size)) == (6144, 64)
    assert (value(one["p0"].failed_transfers), value(one["p0"].failed_bootstraps)) == (4, 5)
    sent = times(one["p0"].transfer_seconds)
    assert [sent.count, sent.total_seconds] == pytest.approx([3, 11.004])
    assert [dict(sent.buckets)[bound] for bound in (0.005, 2.5, 5.0, float("inf"))] == [1, 2, 2, 3]
    assert gap(one["d2"].holds["timeout"]).how == "0.5.22 or newer, a hardened engine, or --log d2=FILE"
    assert value(one["d2"].aborts) == 0
    assert {read.source for read in (one["d0"].aborts, one["d0"].pool) if hasattr(read, "source")} == {
        Source.PROMETHEUS
    }

    # Queries by hand. Where nothing restarted, last less first is the count; a sum over ranks is not.
    p0 = f'{{instance="{address(live, "p0")}"}}'
    rise = f"max_over_time({s.FAILED_TRANSFERS}{p0}[10m]) - min_over_time({s.FAILED_TRANSFERS}{p0}[10m])"
    assert server.number(f"max({rise})", at) == value(one["p0"].failed_transfers)
    assert server.number(f"sum({rise})", at) == 2 * value(one["p0"].failed_transfers)
    # With a restart increase() is right about the fall alone, within what it extrapolates.
    timeouts = f'{s.HOLDS}{{instance="{address(live, "d0")}",outcome="timeout"}}'
    assert server.number(f"increase({timeouts}[10m])", at) == pytest.approx(2, rel=0.5)
    d0_aborts = f'{s.ABORTS}{{instance="{address(live, "d0")}"}}'
    assert server.number(f"increase({d0_aborts}[10m])", at) < 9  # it sees 2 become 7, and loses 4
    d1 = f'{s.FAILED_TRANSFERS}{{instance="{address(live, "d1")}"}}'
    assert server.number(f"sum(max by (dp_rank) ({d1}))", at) == value(one["d1"].failed_transfers)
    pool = f'sum(max by (dp_rank) ({s.POOL}{{instance="{address(live, "d1")}"}}))'
    assert server.number(pool, at) == value(one["d1"].pool)


def test_names_may_have_an_underscore_for_the_colon(tmp_path: Path) -> None:
    """As real engines with a newer client library answer a Prometheus that asks for OpenMetrics."""
    spec = ClusterSpec("c", (replace(decode("d0"), escaped_names=True),))
    with (
        start_in_thread(spec) as live,
        prometheus(tmp_path, {"engines": [address(live, "d0")]}) as server,
    ):
        setting = Setting(live, server)
        setting.settle()
        record_hold(live.engines["d0"].state, "timeout", 30.0)
        setting.add("d0", "num_aborted_requests_total", 2)
        setting.settle()
        assert server.query("sglang:max_total_num_tokens") == []
        assert server.number("max(sglang_max_total_num_tokens)") == 4096
        (d0,) = setting.read().engines
        (since,) = setting.read(0).engines
    assert {o: value(read) for o, read in d0.holds.items()} == {"drained": 0, "timeout": 1, "error": 0}
    assert (value(d0.aborts), value(d0.pool)) == (2, 4096)
    assert value(since.holds["timeout"]) == 1
    assert isinstance(d0.hold_times, HoldTimes)
    assert d0.hold_times.count == 1


def test_a_reference_is_a_query_that_gives_the_samples(setting: Setting) -> None:
    setting.add("d0", "num_aborted_requests_total", 2)
    setting.settle()
    read = setting.read(window=60.0).engines[0].aborts
    query = getattr(read, "ref", "")
    text, _, at = query.rpartition(" @ ")
    (answer,) = setting.server.query(text, float(at))
    assert {sample[1] for sample in answer["values"]} == {"2"}
    assert value(read) == 2


def test_the_window_begins_with_the_last_sample_before_it(setting: Setting) -> None:
    setting.add("d1", "num_aborted_requests_total", 100)
    setting.settle()
    began = time.time()
    time.sleep(6 * SCRAPE_SECONDS)
    setting.add("d1", "num_aborted_requests_total", 4)
    setting.settle()
    window = time.time() - began - 2 * SCRAPE_SECONDS
    found = setting.read(window=window)
    assert value(found.engines[1].aborts) == 4
    assert found.engines[1].seconds == pytest.approx(window)
    assert found.notes == ()


def test_as_the_counters_stand(setting: Setting) -> None:
    found = setting.read(window=0)
    assert value(found.engines[0].holds["timeout"]) == 40
    assert value(found.engines[3].failed_transfers) == 7


def test_a_selector_narrows_every_query(setting: Setting) -> None:
    assert value(setting.read(selector={"cluster": 'p"r\\od'}).engines[3].pool) == 4096
    with pytest.raises(NothingCollected, match="no series of SGLang"):
        setting.read(selector={"cluster": "other"})


def test_an_engine_by_its_declared_instance(setting: Setting) -> None:
    content = setting.live.cluster()
    content["engines"][0] |= {"url": "http://10.9.9.9:1", "metrics_instance": address(setting.live, "d0")}
    content["engines"][1] |= {"url": "http://10.9.9.9:2"}
    content["prometheus"] = {"url": setting.server.url}
    cluster = parse_cluster(yaml.safe_dump(content), "cluster.yaml")
    d0, d1, *_ = read_outcomes(cluster, {}, window=60, source="prometheus", versions=VERSIONS).engines
    assert value(d0.pool) == 4096
    assert gap(d1.pool).why == (
        "Prometheus has no series of SGLang with instance=10.9.9.9:2; it has 1 other instances"
    )
    assert address(setting.live, "d1") in gap(d1.pool).how


def test_two_jobs_that_scrape_one_engine_count_it_once(tmp_path: Path) -> None:
    with start_in_thread(ClusterSpec("c", (decode("d0"),))) as live:
        hosts = [address(live, "d0")]
        with prometheus(tmp_path, {"a": hosts, "b": hosts}) as server:
            setting = Setting(live, server)
            setting.settle()
            setting.settle()
            setting.add("d0", "num_aborted_requests_total", 3)
            setting.settle()
            time.sleep(2 * SCRAPE_SECONDS)
            found = setting.read().engines[0]
            by_hand = f"sum(max_over_time({s.ABORTS}[10m]))"
            assert (value(found.aborts), value(found.pool)) == (3, 4096)
            assert server.number(by_hand) == 6


def test_a_long_window_is_asked_for_in_pieces_that_prometheus_can_carry(tmp_path: Path) -> None:
    with start_in_thread(ClusterSpec("c", (decode("d0"),))) as live:
        few = ["--query.max-samples=30"]
        with prometheus(tmp_path, {"a": [address(live, "d0")]}, arguments=few) as server:
            setting = Setting(live, server)
            setting.settle()
            deadline = time.monotonic() + 9
            count = 0
            while time.monotonic() < deadline:
                setting.add("d0", "num_aborted_requests_total")
                count += 1
                time.sleep(0.1)
            setting.settle()
            with pytest.raises(AssertionError, match="HTTP 422"):
                server.query(f"{s.ABORTS}[420s]")
            found = setting.read(window=120)
            assert value(found.engines[0].aborts) == count
            assert found.engines[0].seconds < 40
            assert "d0 was scraped for the last" in found.notes[0]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://10.0.0.1:30000", ("10.0.0.1:30000",)),
        ("http://Engine-1/prefix", ("engine-1:80", "engine-1")),
        ("https://[fd00::1]", ("[fd00::1]:443", "[fd00::1]")),
        ("https://e:443", ("e:443", "e")),
    ],
)
def test_instances(url: str, expected: tuple[str, ...]) -> None:
    assert instances(Engine(name="d0", role="decode", url=url)) == expected


def test_quoting() -> None:
    assert quote('a"\\\n') == '"a\\"\\\\\\n"'[1:-1]
    assert selector({"a": 'x"y', "b": "z"}, "c=~1") == '{c=~1,a="x\\"y",b="z"}'
