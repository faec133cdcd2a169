"""Windows read from the engines' own /metrics: counts equal the engines' own, whatever happens in between."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable

import httpx
import pytest

from pdguard.cluster.loader import parse_cluster
from pdguard.facts import metrics
from pdguard.outcomes import direct
from pdguard.outcomes import series as s
from pdguard.outcomes.direct import read_direct
from pdguard.outcomes.interface import Gap
from pdguard.outcomes.read import read_outcomes
from pdguard.simulator import ClusterSpec, Lie, Live, start_in_thread
from pdguard.simulator.metrics import record_hold, record_transfer
from tests.outcomes.support import cluster_of, decode, gap, prefill, series, times, value

ONE = """
cluster: one
engines: [{name: d0, role: decode, url: 'http://d0:1'}]
"""


def during(seconds: float, act: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, act)
    timer.start()
    return timer


def answered(*pages: str | int, window: float = 2.0) -> s.Scrapes | Gap:
    """What one engine's scrapes give that answers with those pages (a status where it fails)."""
    left = list(pages)

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/metrics"
        assert "authorization" not in request.headers
        page = left.pop(0) if len(left) > 1 else left[0]
        return httpx.Response(page) if isinstance(page, int) else httpx.Response(200, text=page)

    cluster = parse_cluster(ONE, "cluster.yaml")
    return asyncio.run(read_direct(cluster, window, transport=httpx.MockTransport(answer)))["d0"]


def test_a_window_of_a_running_cluster_through_a_restart() -> None:
    engines = (
        decode(tp=2, seed={'decode_deferred_kv_release_total{outcome="timeout"}': 40}),
        prefill(tp=2, seed={"num_transfer_failed_reqs_total": 7, "num_bootstrap_failed_reqs_total": 2}),
    )
    with start_in_thread(ClusterSpec("c", engines)) as live:

        def act() -> None:
            held = live.engines["d0"].state
            for seconds in (0.2, 45.0, 90.0):
                record_hold(held, "timeout" if seconds > 30 else "drained", seconds)
            record_transfer(live.engines["p0"].state, 2.0)
            live.engines["p0"].state.add("num_transfer_failed_reqs_total", (), 3)
            live.engines["p0"].state.add("num_bootstrap_failed_reqs_total")

        def restart() -> None:
            live.restart("d0")
            record_hold(live.engines["d0"].state, "drained", 8.0)

        timers = [during(0.5, act), during(1.6, restart)]
        found = read_outcomes(cluster_of(live), {}, window=3.0, source="engines", versions={})
        for timer in timers:
            timer.join()
        d0, p0 = found.engines
        assert {outcome: value(read) for outcome, read in d0.holds.items()} == {
            "drained": 2,
            "timeout": 2,
            "error": 0,
        }
        held = times(d0.hold_times)
        assert [held.count, held.total_seconds] == pytest.approx([4, 143.2])
        assert dict(held.buckets)[60.0] == 3
        assert d0.resets == 1
        assert p0.resets == 0
        assert (value(p0.failed_transfers), value(p0.failed_bootstraps)) == (3, 1)
        sent = times(p0.transfer_seconds)
        assert (sent.count, sent.total_seconds, dict(sent.buckets)[2.5]) == (1, 2.0, 1)
        assert (p0.holds, gap(p0.held_now).why) == ({}, "only a decode holds")
        assert d0.seconds == pytest.approx(3.0, abs=0.5)
        assert found.notes == ()


def test_since_the_start_takes_one_scrape() -> None:
    seed = {'decode_deferred_kv_release_total{outcome="error"}': 4, "num_aborted_requests_total": 9}
    with start_in_thread(
        ClusterSpec("c", (decode(seed=seed, pools=(4096, 2048), dp=2, page_size=64),))
    ) as live:
        before = live.engines["d0"].state.calls["GET", "/metrics"]
        found = read_outcomes(cluster_of(live), {}, window=0, source="engines", versions={})
        assert live.engines["d0"].state.calls["GET", "/metrics"] == before + 1
    (d0,) = found.engines
    assert (value(d0.holds["error"]), value(d0.aborts)) == (4, 9)
    assert (value(d0.pool), value(d0.page_size)) == (6144, 64)
    assert gap(d0.held_now).why.endswith("it appears with the first request")
    assert found.notes == ("counts are since each engine started, so there is no rate",)


def test_data_ranks_add_up() -> None:
    with start_in_thread(ClusterSpec("c", (decode(dp=2, tp=2),))) as live:

        def act() -> None:
            for dp, count in (("0", 2), ("1", 3)):
                labels = (("dp_rank", dp), ("outcome", "timeout"))
                live.engines["d0"].state.add("decode_deferred_kv_release_total", labels, count)
                live.engines["d0"].state.add("num_transfer_failed_reqs_total", (("dp_rank", dp),), count)

        timer = during(0.4, act)
        found = read_outcomes(cluster_of(live), {}, window=1.5, source="engines", versions={})
        timer.join()
        (d0,) = found.engines
        assert (value(d0.holds["timeout"]), value(d0.failed_transfers)) == (5, 5)


def test_requests_and_the_mean_prompt_are_those_that_ran() -> None:
    with start_in_thread(ClusterSpec("c", (decode(live_role="null"),))) as live:

        def act() -> None:
            for length in (10, 20, 60):
                body = {"input_ids": [1] * length, "sampling_params": {"max_new_tokens": 1}}
                httpx.post(live.url("d0") + "/generate", json=body, trust_env=False).raise_for_status()

        timer = during(0.3, act)
        found = read_outcomes(cluster_of(live), {}, window=5.0, source="engines", versions={})
        timer.join()
        (d0,) = found.engines
        assert (value(d0.requests), value(d0.prompt_tokens)) == (3, 30)


@pytest.mark.parametrize(
    ("version", "known"), [("0.5.19", False), ("0.5.21", False), ("0.5.22", True), ("0.5.23", True)]
)
def test_a_release_that_counts_no_releases_is_a_gap_and_later_ones_count_none_as_zero(
    version: str, known: bool
) -> None:
    with start_in_thread(ClusterSpec("c", (decode(version=version),))) as live:
        (d0,) = read_outcomes(cluster_of(live), {}, window=0, source="engines").engines
    assert d0.version == version
    if known:
        assert {value(read) for read in d0.holds.values()} == {0.0}
        assert times(d0.hold_times).count == 0
    else:
        assert gap(d0.holds["timeout"]).how == "0.5.22 or newer, a hardened engine, or --log d0=FILE"
        assert gap(d0.hold_times) == gap(d0.held_now) == d0.holds["drained"]


def test_a_hardened_engine_has_them_under_the_same_names() -> None:
    page = series(s.HOLDS, 3, outcome="timeout", tp_rank="0") + series(s.POOL, 10, tp_rank="0")
    made = answered(page, window=0)
    assert isinstance(made, s.Scrapes)
    from pdguard.outcomes.figures import Engine, count
    from pdguard.outcomes.interface import Source

    found = count(Engine("d0", "decode", "0.5.19"), made, 0, Source.ENGINE, lambda name, _: name)
    assert [value(found.holds[o]) for o in ("drained", "timeout", "error")] == [0, 3, 0]


def test_the_queues_of_older_releases_had_other_names() -> None:
    page = series("sglang:num_prefill_prealloc_queue_reqs", 2) + series(
        "sglang:num_prefill_infight_queue_reqs", 5
    )
    made = answered(page, window=0)
    assert isinstance(made, s.Scrapes)
    from pdguard.outcomes.figures import Engine, count
    from pdguard.outcomes.interface import Source

    found = count(Engine("p0", "prefill", "0.4.10"), made, 0, Source.ENGINE, lambda name, _: name)
    assert {name: value(read) for name, read in found.queues.items()} == {
        "prefill_bootstrap": 2,
        "prefill_inflight": 5,
    }


def test_one_engine_down_costs_its_own_figures_alone() -> None:
    engines = (
        decode(),
        decode("d1", lie=Lie.REFUSED),
        decode("d2", metrics=False),
        decode("d3", lie=Lie.HTML),
    )
    with start_in_thread(ClusterSpec("c", engines)) as live:
        found = read_outcomes(cluster_of(live), {}, window=1.0, source="engines", versions={"d1": "0.5.23"})
    d0, d1, d2, d3 = found.engines
    assert value(d0.aborts) == 0
    assert gap(d1.aborts).why == "/metrics: connection refused"
    assert gap(d2.holds["drained"]) == Gap("/metrics: HTTP 404", metrics.HOW)
    assert gap(d3.pool).why == "/metrics holds no series of SGLang"


def test_a_scrape_that_fails_in_between_is_left_out() -> None:
    first, last = series(s.ABORTS, 4), series(s.ABORTS, 9)
    made = answered(first, 503, last, window=2.0)
    assert isinstance(made, s.Scrapes)
    assert s.Counting(made).increase(s.ABORTS) == 5
    assert len(made.times) == 2


def test_one_scrape_is_not_a_window() -> None:
    made = answered(series(s.ABORTS, 4), 503, window=1.0)
    assert isinstance(made, Gap)
    assert made.why == "one scrape alone answered (HTTP 503); counting needs two"


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ("<html>sglang</html>", "/metrics holds no series of SGLang"),
        ("", "/metrics holds no series of SGLang"),
        (
            'sglang:num_aborted_requests_total{a="',
            "a sample of sglang:num_aborted_requests_total could not be read",
        ),
        (
            "sglang:num_aborted_requests_total NaN\n",
            "a sample of sglang:num_aborted_requests_total could not be read",
        ),
        (
            "sglang:num_aborted_requests_total '3'\n",
            "a sample of sglang:num_aborted_requests_total could not be read",
        ),
    ],
)
def test_hostile_pages_give_gaps(page: str, why: str) -> None:
    from pdguard.outcomes.figures import Engine, count
    from pdguard.outcomes.interface import Source

    made = answered(page, window=0)
    if isinstance(made, Gap):
        assert made.why == why
        return
    found = count(Engine("d0", "decode", "0.5.23"), made, 0, Source.ENGINE, lambda name, _: name)
    assert gap(found.aborts).why == why


def test_a_flood_of_series_is_refused() -> None:
    page = "".join(series(s.ABORTS, 1, n=str(n)) for n in range(100_000))
    began = time.monotonic()
    made = answered(page, window=0)
    assert isinstance(made, Gap)
    assert made.why == "/metrics holds more series than are read here"
    assert time.monotonic() - began < 20


def test_a_restart_ends_requests_and_keeps_the_port() -> None:
    spec = ClusterSpec("c", (prefill(), decode(live_role="null", token_seconds=5.0, api_key=None)))
    failed: list[bool] = []

    def ask(live: Live) -> None:
        body = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 9}}
        try:
            httpx.post(live.url("d0") + "/generate", json=body, trust_env=False, timeout=20)
        except httpx.RemoteProtocolError:
            failed.append(True)

    with start_in_thread(spec) as live:
        url = live.url("d0")
        thread = threading.Thread(target=ask, args=(live,))
        thread.start()
        time.sleep(0.5)
        live.engines["d0"].state.add("num_aborted_requests_total", (), 5)
        live.restart("d0")
        thread.join(10)
        assert failed == [True]
        assert live.url("d0") == url
        page = httpx.get(url + "/metrics", trust_env=False).text
        assert "num_aborted_requests_total" not in page


def test_a_long_window_says_when_it_ends_and_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "TOLD_EVERY", 0.5)
    told: list[str] = []
    with start_in_thread(ClusterSpec("c", (decode(),))) as live:
        read_outcomes(cluster_of(live), {}, window=1.2, source="engines", versions={}, progress=told.append)
    assert re.fullmatch(r"reading /metrics of 1 engine for 1\.2 s, until \d\d:\d\d:\d\d", told[0])
    assert told[1:] == ["0.5 of 1.2 s", "1 of 1.2 s"]


def test_a_histogram_that_contradicts_itself_is_unknown() -> None:
    seed = {'decode_deferred_kv_release_total{outcome="timeout"}': 4}  # with nothing in sum and buckets
    with start_in_thread(ClusterSpec("c", (decode(seed=seed),))) as live:
        (d0,) = read_outcomes(cluster_of(live), {}, window=0, source="engines", versions={}).engines
    assert value(d0.holds["timeout"]) == 4
    assert gap(d0.hold_times).why == "its sum and buckets contradict each other"
