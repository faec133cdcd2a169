"""What hardening costs at run time: requests a second of a stock and a hardened pair, in turns. Never gates.

`python -m tests.lab.run test tests/lab/test_throughput.py -- -m "lab and bench"`
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest

from . import traffic
from .cache import Cache
from .hardened import harden_engine, stock, with_hold
from .lab import Lab
from .session import LabSession
from .test_harden_live import LONGEST, UNEQUAL

pytestmark = [pytest.mark.lab, pytest.mark.bench, pytest.mark.timeout(3600)]
ROUNDS = 3
REQUESTS = 300
WARM_UP = 60
CLIENTS = 4


@pytest.mark.parametrize("version", ["0.5.19", "0.5.20"])
def test_requests_a_second(version: str, lab_session: LabSession, tmp_path: Path) -> None:
    plain = stock(version, UNEQUAL)
    root = harden_engine(Cache.default(), version, tmp_path / version)
    specs = {"stock": plain, "hardened": with_hold(plain, root)}
    rates: dict[str, list[float]] = {name: [] for name in specs}
    for _ in range(ROUNDS):
        for name, spec in specs.items():
            rates[name].append(rate(lab_session.get(spec)))
            lab_session.say(f"{version} {name}: {rates[name][-1]:.2f} requests/s")
    mix = f"{REQUESTS} requests of 1 to {LONGEST} tokens, {CLIENTS} clients, {ROUNDS} rounds"
    lab_session.say(f"{version}: {mix}")
    for name, found in rates.items():
        low, middle, high = min(found), statistics.median(found), max(found)
        lab_session.say(f"  {name}: {middle:.2f} requests/s ({low:.2f} to {high:.2f})")
    ratio = statistics.median(rates["hardened"]) / statistics.median(rates["stock"])
    lab_session.say(f"  hardened / stock {ratio:.3f}")
    assert all(len(found) == ROUNDS for found in rates.values())


def rate(lab: Lab) -> float:
    traffic.send(lab, traffic.mix(WARM_UP, LONGEST, seed=1), CLIENTS)
    asks = traffic.mix(REQUESTS, LONGEST)
    start = time.monotonic()
    replies = traffic.send(lab, asks, CLIENTS)
    seconds = time.monotonic() - start
    assert {reply.status for reply in replies.values()} == {200}
    return len(replies) / seconds
