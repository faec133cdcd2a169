"""Slows down chosen TCP connections on the loopback of the lab's network namespace, with `tc`."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from types import TracebackType

from . import netns
from .errors import LabError

_ROOT = ("dev", "lo", "root")
_PARENT = ("dev", "lo", "parent", "1:")
_FULL, _SLOW = "1:10", "1:20"
_LET_GO = 0.5
_SENT = re.compile(rf"class htb {_SLOW} .*?Sent (\d+) bytes", re.DOTALL)


class SlowLink:
    """While the block runs, all that is sent to the ports shares `rate` (tc's notation, as `1mbit`).

    So a new connection is slow from its first byte, unless it is named to `spare`. All other traffic goes
    on at full speed. Leaving the block lets what waits in the queue go, then takes everything away.
    """

    def __init__(self, rate: str, ports: Iterable[int]) -> None:
        self._rate = rate
        self._ports = sorted(ports)
        self._spared: set[int] = set()

    def __enter__(self) -> SlowLink:
        netns.require_isolated()
        if shutil.which("tc") is None:
            raise LabError("the command tc is missing: install the system package iproute2")
        # r2q only chooses how many bytes a class sends in one turn; the default makes tc warn here.
        _tc("qdisc", "add", *_ROOT, "handle", "1:", "htb", "default", "10", "r2q", "1000")
        try:
            _tc("class", "add", *_PARENT, "classid", _FULL, "htb", "rate", "10gbit", "burst", "1m")
            # Not less than one segment of the loopback, which would never fit.
            _tc("class", "add", *_PARENT, "classid", _SLOW, "htb", "rate", self._rate, "burst", "70k")
            for port in self._ports:
                _send_into(_SLOW, "dport", port, priority=2)
        except BaseException:
            _tc("qdisc", "del", *_ROOT)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def spare(self, local_ports: Iterable[int]) -> None:
        """Leave at full speed what is sent from these ports; ports named before stay spared."""
        for port in set(local_ports) - self._spared:
            _send_into(_FULL, "sport", port, priority=1)
            self._spared.add(port)

    def sent(self) -> int:
        """Bytes that have passed the slow part so far."""
        match = _SENT.search(_tc("-s", "class", "show", "dev", "lo"))
        return int(match[1]) if match else 0

    def _remove(self) -> None:
        try:
            # Not dropped: TCP would send it again only seconds later, into somebody else's measurement.
            _tc("class", "change", *_PARENT, "classid", _SLOW, "htb", "rate", "10gbit", "burst", "1m")
            time.sleep(_LET_GO)
        finally:
            _tc("qdisc", "del", *_ROOT)


def _send_into(part: str, which: str, port: int, priority: int) -> None:
    match = ("u32", "match", "ip", which, str(port), "0xffff", "flowid", part)
    _tc("filter", "add", *_PARENT, "protocol", "ip", "prio", str(priority), *match)


def _tc(*arguments: str) -> str:
    done = subprocess.run(["tc", *arguments], capture_output=True, text=True, check=False, timeout=20)
    if done.returncode != 0:
        raise LabError(f"tc {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout
