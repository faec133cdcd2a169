"""The exercises by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pdguard.exercise.engine import (
    doors,
    drains,
    handshake,
    holds,
    main,
    ranks,
    refusals,
    restores,
    results,
    retraction,
    serving,
    transfers,
)

CONTRACTS: dict[str, Callable[..., Mapping[str, Any]]] = {
    "door.prefill": doors.prefill,
    "door.decode": doors.decode,
    "result.prefill": results.prefill,
    "handshake": handshake.both,
    "refusal": refusals.refusals,
    "drain": drains.drain,
    "hold.failure": holds.failure,
    "hold.timeout": holds.timeout,
    "hold.fast-ack": holds.fast_ack,
    "hold.fake": holds.fake,
    "hold.agreement": holds.agreement,
    "ranks": ranks.together,
    "transfer.batch-cap": holds.batch_cap,
    "transfer.batch-cap-of-a-path": transfers.batch_cap,
    "transfer.siblings": transfers.siblings,
    "hicache.restore-consensus": restores.consensus,
    "hicache.retraction-drain": retraction.drain,
}


def start() -> None:
    """Serve the runner on standard input and output."""
    main.serve(CONTRACTS, serving.serve)
