"""The exercises by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pdguard.exercise.engine import doors, handshake, holds, main, results, serving

CONTRACTS: dict[str, Callable[..., Mapping[str, Any]]] = {
    "door.prefill": doors.prefill,
    "door.decode": doors.decode,
    "result.prefill": results.prefill,
    "handshake": handshake.both,
    "hold.failure": holds.failure,
    "hold.timeout": holds.timeout,
    "hold.fast-ack": holds.fast_ack,
    "hold.fake": holds.fake,
    "hold.agreement": holds.agreement,
    "transfer.batch-cap": holds.batch_cap,
    "hicache.restore-consensus": holds.restore_consensus,
}


def start() -> None:
    """Serve the runner on standard input and output."""
    main.serve(CONTRACTS, serving.serve)
