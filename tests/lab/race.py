"""The race for pages: a client leaves in the middle of a slow transfer, and another gets its pages.

Request A goes through the first prefill, whose connections to decode are slow. Its client leaves both
halves in mid transfer. Request B follows through the second prefill, at full speed; decode's pool is so
small that B can only have A's pages. Where decode frees them before A's writes have ended, they land in
B's, and B is answered with HTTP 200 and wrong tokens.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .client import Answer, prompt, send_only
from .errors import LabError
from .gauges import drain, failed_transfers, releases
from .lab import Engine, Lab
from .sockets import connections, listening
from .spec import Backend, LabSpec, RoleSpec
from .throttle import SlowLink

HOLD = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"
LENGTH = 3000
NEW_TOKENS = 150
PREFILL_POOL, DECODE_POOL = 4096, 3200
_SEED_A, _SEED_B = 3, 50
_LEAVES_AFTER = 150_000
_GAP = 0.5
_TIMEOUT = 90.0
_WATCH = 0.02
_TRIES = 3
_RATE = "512kbit"
"""A's pages take some 12 s at it. An engine looks for a client that left only every few seconds."""


@dataclass(frozen=True)
class Run:
    """What B got. `first_wrong` is the index of the first wrong token, None when all are right.

    `seconds` is B's time, `held` what decode released during the run, by outcome, and `slow_bytes` what had
    crossed the slow connections when A's client left.
    """

    status: int | None
    first_wrong: int | None
    seconds: float
    held: dict[str, int]
    slow_bytes: int

    @property
    def right(self) -> bool:
        return self.status == 200 and self.first_wrong is None

    def __str__(self) -> str:
        verdict = "right" if self.right else f"WRONG from token {self.first_wrong}, HTTP {self.status}"
        return f"{verdict}, {self.seconds:.1f} s, released {self.held or 'nothing'}, {self.slow_bytes} bytes"


def race_spec(
    version: str, *, hold: bool, backend: Backend = "mooncake", engine_root: Path | None = None
) -> LabSpec:
    """Two prefills and one decode with the hold switched on or off on all of them."""
    env = ((HOLD, "1" if hold else "0"),)
    return LabSpec(
        version=version,
        prefill=RoleSpec(PREFILL_POOL, env=env),
        decode=RoleSpec(DECODE_POOL, env=env),
        prefills=2,
        backend=backend,
        # B waits for A's pages; the short timeouts of other labs would end it first.
        waiting_timeout=None,
        engine_root=engine_root,
    )


class Race:
    """The race on one running deployment; `run` as often as you like."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._slow, self._fast = lab.of_role("prefill")
        self._ports = data_ports(lab)
        self._spared = _scheduler(self._fast)
        self._right = self._send_b().tokens
        if len(self._right) != NEW_TOKENS or self._right != self._send_b().tokens:
            raise AssertionError("B's right answer is not the same twice")
        # A once at full speed: its prompt is then in the first prefill's cache, as at every later run.
        lab.direct(prompt(LENGTH, _SEED_A), 2, prefill=self._slow, timeout=_TIMEOUT)

    def still_right(self) -> bool:
        """Whether B alone gets its right answer."""
        return self._send_b().tokens == self._right

    def run(self) -> Run:
        """One race; started again when A's transfer was over before the engines saw its client leave."""
        for _ in range(_TRIES):
            before = failed_transfers(self._lab.decode)
            run = self._run()
            if failed_transfers(self._lab.decode) > before:
                return run
        raise LabError(f"A's transfer was over in time {_TRIES} times")

    def _run(self) -> Run:
        before = releases(self._lab.decode)
        with SlowLink(_RATE, self._ports) as link, ThreadPoolExecutor(1) as other:
            self._spare_the_fast(link)
            self._leave_in_mid_transfer(link)
            crossed = link.sent()
            time.sleep(_GAP)
            asked = other.submit(self._send_b)
            while not asked.done():
                self._spare_the_fast(link)
                time.sleep(_WATCH)
            answer = asked.result()
        drain(self._lab.engines)
        after = releases(self._lab.decode)
        held = {k: n - before.get(k, 0) for k, n in after.items() if n > before.get(k, 0)}
        got = answer.tokens if answer.status == 200 else []
        return Run(answer.status, _first_difference(got, self._right), answer.seconds, held, crossed)

    def _spare_the_fast(self, link: SlowLink) -> None:
        link.spare(c.local_port for c in connections(self._spared) if c.remote_port in self._ports)

    def _leave_in_mid_transfer(self, link: SlowLink) -> None:
        """Send A to both halves, and hang up once a part of its pages has crossed the slow link."""
        halves = self._lab.halves(prompt(LENGTH, _SEED_A), 4, prefill=self._slow)
        clients = [send_only(url, halves.body) for url in halves.urls]
        try:
            give_up = time.monotonic() + _TIMEOUT
            while link.sent() < _LEAVES_AFTER:
                if time.monotonic() > give_up:
                    raise LabError("A's transfer did not begin")
                time.sleep(_WATCH)
        finally:
            for client in clients:
                client.close()

    def _send_b(self) -> Answer:
        ask = prompt(LENGTH, _SEED_B)
        return self._lab.direct(ask, NEW_TOKENS, prefill=self._fast, timeout=_TIMEOUT).decode


def _first_difference(got: list[int], right: list[int]) -> int | None:
    if got == right:
        return None
    pairs = zip(got, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(got), len(right)))


def _scheduler(engine: Engine) -> list[int]:
    """The processes of an engine that move KV."""
    return [pid for pid in engine.server.members() if "sglang::sched" in _title(pid)]


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def data_ports(lab: Lab) -> set[int]:
    """Where decode receives KV.

    Mooncake listens on every interface, and nothing else there does. UCX listens on the loopback, as the
    control channel does; of these ports the prefills have the most connections to UCX's.
    """
    own = listening(_scheduler(lab.decode))
    if lab.spec.backend == "mooncake":
        return {port.port for port in own if port.everywhere}
    count: dict[int, int] = {port.port: 0 for port in own}
    for engine in lab.of_role("prefill"):
        for connection in connections(_scheduler(engine)):
            if connection.remote_port in count:
                count[connection.remote_port] += 1
    return {max(count, key=lambda port: count[port])}
