"""How an abort in mid-transfer ends, from what the two halves do.

The rules reproduce, cell by cell, what was obtained by running the abort and acknowledgement code of each
package against each other's; a test holds them to those tables.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdguard.facts.history import NO_FORMAT, OLD_FORMAT

DRAINED, TIMEOUT, NO_HOLD, EARLY_ACK, PARTIAL = "drained", "timeout", "no hold", "early ack", "partial"


@dataclass(frozen=True, slots=True)
class Decode:
    """The half that holds: whether it does, on every failure or only on its own aborts, and its format.

    `reads` says that it takes an acknowledgement in the older format, which only MORI does not by itself.
    """

    holds: bool
    every_failure: bool
    wire: str
    reads: bool = True


@dataclass(frozen=True, slots=True)
class Prefill:
    """The half that acknowledges.

    `keeps` says that the acknowledgement outlives a request that the scheduler has cleared, `every_rank` that
    it goes to each decode rank that waits, `early` that it also goes out after a failed send. A prefill whose
    hold is off (`holds`) sends no drain acknowledgement at all.
    """

    holds: bool
    wire: str
    keeps: bool
    every_rank: bool
    early: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """Words for the four cases that checks look at; None where the case was not modelled."""

    in_flight: str
    cleared: str
    failed_send: str | None
    ranks: str


def outcome(backend: str, decode: Decode, prefill: Prefill) -> Outcome | None:
    """The outcome of the abort handshake, or None for a backend whose handshake was not run."""
    if backend not in ("mooncake", "ascend", "nixl", "mori"):
        return None
    modelled = backend != "nixl"  # a failed NIXL send was not modelled
    if not decode.holds or decode.wire == NO_FORMAT:
        return Outcome(NO_HOLD, NO_HOLD, NO_HOLD if modelled else None, NO_HOLD)
    # Before the generation tag, MORI has a drain acknowledgement only where pdguard brought one.
    older = backend == "mori" and OLD_FORMAT in (decode.wire, prefill.wire)
    mute = older and not (decode.reads and prefill.keeps)
    failed = TIMEOUT if decode.every_failure else NO_HOLD
    if mute or not prefill.holds or prefill.wire != decode.wire:
        return Outcome(TIMEOUT, TIMEOUT, failed if modelled else None, TIMEOUT)
    if decode.every_failure and prefill.early:
        failed = EARLY_ACK
    return Outcome(
        in_flight=DRAINED,
        cleared=DRAINED if prefill.keeps else TIMEOUT,
        failed_send=failed if modelled else None,
        ranks=DRAINED if prefill.every_rank else PARTIAL,
    )
