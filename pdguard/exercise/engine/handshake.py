"""The abort handshake between two managers of the installed code, both in this process."""

from __future__ import annotations

from typing import Any

from pdguard.exercise.engine import peers, receiving, situations, stand, wires


def both(backend: str, situation: str, hold: str) -> dict[str, Any]:
    """One situation; `hold` is on, off or default, the same on both sides."""
    stand.switch(hold, situations.HOLD_SECONDS)
    prefill = peers.Prefill(backend)
    wires.lay(wires.Net(), prefill.bootstrap.web)
    prefill.start()
    ranks = 2 if situation == "two-decode-ranks" else 1
    decodes = [receiving.Decode(backend, rank, ranks) for rank in range(ranks)]
    for decode in decodes:
        decode.start()
    try:
        return situations.drive(situation, prefill, list(decodes), 41)
    except situations.Stuck as error:
        return {"outcome": "stuck", "state": "not-run", "why": str(error)}
