"""The contracts: what each runs, with which arguments, and which upstream fixes it is about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pdguard.errors import SelectionError
from pdguard.exercise.engine.situations import SITUATIONS

BACKENDS = ("mooncake", "nixl", "mori")
_CAP = "SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES"
_MORI_LIMIT = "SGLANG_MORI_TRANSFER_TIMEOUT_MS"

DOORS = {
    "prefill": ("rejected", "streaming-session", "valid", "metadata-held", "kv-held", "preempted"),
    "decode": (
        *("rejected", "streaming-session", "valid", "metadata-held", "kv-held", "preempted"),
        *("retracted", "rebootstrap"),
    ),
}
DRAINS = ("unknown-room", "failed-room", "concluded-room", "skip-after-submit", "broken-submit", "time-limit")
RESULTS = ("valid", "aborted", "aborted-twice", "aborted-middle-chunk")
RETRACTIONS = (
    *("memory", "pause", "nothing-copied", "pause-nothing-copied"),
    *("two-ranks", "two-ranks-pause", "copied-on-one"),
)
REFUSALS = {
    "prefill": ("refused-by-prefill", "refused-by-prefill-late"),
    "decode": ("refused-by-decode", "refused-by-decode-late"),
    "reuse": (
        *("refused-by-both", "refused-by-prefill", "refused-by-decode-late"),
        *("refused-by-both-late", "refused-by-prefill-late", "refused-by-decode"),
    ),
}
RANKS = (
    *("nothing-to-hold-on-one", "acknowledged-on-one", "crossed", "different-clocks"),
    *("one-dies", "one-stands-still", "idle"),
)
ORIGINS = ("prefill-failure", "waiting-timeout", "transport", "hicache-restore")

_HANDSHAKE_FIXES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "quiescent": {"mooncake": ("27372", "35049"), "nixl": ("27372", "35360"), "mori": ("27372", "37077")},
    "in-flight": {"mooncake": ("35049",), "nixl": ("35360",), "mori": ("37077",)},
    "cleared-before-drain": {"mooncake": ("40645",), "nixl": ("40645",), "mori": ("37077",)},
    "cleared-before-abort": {"mooncake": ("40645",), "nixl": ("40645", "37077"), "mori": ("37077",)},
    "failed-send": {"mooncake": ("41404", "43719"), "nixl": ("41404", "X3"), "mori": ("41404", "X2")},
    "two-decode-ranks": {"mooncake": ("41402",), "nixl": ("41402",), "mori": ("37077",)},
}


@dataclass(frozen=True, slots=True)
class Contract:
    """One contract; it runs in a process of its own."""

    id: str
    run: str
    """The engine-side function, by its name in `engine/contracts.py`."""
    fixes: tuple[str, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    backend: str = "any"
    hold: str = "any"
    environment: Mapping[str, str] = field(default_factory=dict)


def _admission() -> Iterator[Contract]:
    for side, cases in DOORS.items():
        for case in cases:
            yield Contract(f"door.{side}.{case}", f"door.{side}", ("38935",), {"case": case})
    for case in RESULTS:
        yield Contract(f"result.prefill.{case}", "result.prefill", ("36988",), {"case": case})


def handshake_fixes(backend: str, situation: str, hold: str) -> tuple[str, ...]:
    """The fixes that a cell of the handshake table is about; by default the default itself is one of them."""
    return (*_HANDSHAKE_FIXES[situation][backend], *(("41023",) if hold == "default" else ()))


def _handshakes() -> Iterator[Contract]:
    for hold in ("on", "default"):
        for backend in BACKENDS:
            for situation in SITUATIONS:
                yield Contract(
                    f"handshake.{backend}.{hold}.{situation}",
                    "handshake",
                    handshake_fixes(backend, situation, hold),
                    {"backend": backend, "situation": situation, "hold": hold},
                    backend,
                    hold,
                )


def _holds() -> Iterator[Contract]:
    for backend in BACKENDS:
        for origin in ORIGINS:
            arguments = {"backend": backend, "origin": origin, "hold": "on"}
            fixes: tuple[str, ...] = ("35049",) if origin == "waiting-timeout" else ("41404",)
            yield Contract(
                f"hold.failure.{backend}.{origin}", "hold.failure", fixes, arguments, backend, "on"
            )
        arguments = {"backend": backend, "hold": "on"}
        yield Contract(f"hold.timeout.{backend}", "hold.timeout", ("35049",), arguments, backend, "on")
        yield Contract(
            f"hold.fast-ack.{backend}", "hold.fast-ack", ("41402",), {"backend": backend}, backend, "on"
        )
        yield Contract(
            f"hold.rank-agreement.{backend}", "hold.agreement", ("X1",), {"backend": backend}, backend, "on"
        )
    for hold in ("default", "on"):
        fixes = ("37454", "41618", "X4")
        yield Contract(f"hold.fake-receiver.{hold}", "hold.fake", fixes, {"hold": hold}, "any", hold)


def _refusals() -> Iterator[Contract]:
    """MORI tells decode of no failure by a message that all releases with it read alike."""
    for name, cases in REFUSALS.items():
        for backend in ("mooncake", "nixl"):
            arguments = {
                "backend": backend,
                "cases": list(cases),
                "hold": "default",
                "one_room": name == "reuse",
            }
            yield Contract(f"refusal.{name}.{backend}", "refusal", ("X6",), arguments, backend, "default")


def _drains() -> Iterator[Contract]:
    """MORI's counting is its own; how the other two get to an acknowledgement, the handshakes show."""
    for case in DRAINS:
        limit = {_MORI_LIMIT: "200"} if case == "time-limit" else {}
        yield Contract(
            f"drain.mori.{case}",
            "drain",
            ("37077",),
            {"backend": "mori", "case": case},
            "mori",
            "on",
            limit,
        )


def _ranks() -> Iterator[Contract]:
    """All backends have one queue; over Mooncake everything is tried, over NIXL what hangs on its manager."""
    for backend, cases in (("mooncake", RANKS), ("nixl", RANKS[:2])):
        for case in cases:
            arguments = {"backend": backend, "case": case}
            yield Contract(f"ranks.{case}.{backend}", "ranks", ("X1",), arguments, backend, "on")


def _others() -> Iterator[Contract]:
    yield Contract(
        "transfer.batch-cap.mooncake",
        "transfer.batch-cap",
        ("32758",),
        {"limit": 2},
        "mooncake",
        environment={_CAP: "2"},
    )
    paths = (("slice", "mooncake"), ("layers", "mooncake"), ("dcp", "mooncake"), ("ascend", "ascend"))
    for path, backend in paths:
        yield Contract(
            f"transfer.batch-cap.{path}",
            "transfer.batch-cap-of-a-path",
            ("X7",),
            {"path": path, "limit": 2},
            backend,
        )
    siblings = {"backend": "ascend"}
    yield Contract("transfer.siblings.ascend", "transfer.siblings", ("X8",), siblings, "ascend", "on")
    yield Contract("hicache.restore-consensus", "hicache.restore-consensus", ("43562",))
    for case in RETRACTIONS:
        name = f"hicache.retraction-drain.{case}"
        yield Contract(name, "hicache.retraction-drain", ("30899",), {"case": case})


CONTRACTS: tuple[Contract, ...] = (
    *_admission(),
    *_handshakes(),
    *_holds(),
    *_refusals(),
    *_drains(),
    *_ranks(),
    *_others(),
)


def select(names: Sequence[str] | None) -> tuple[Contract, ...]:
    """Contracts by id or by the beginning of it up to a dot (`door`, `handshake.nixl`); all for None.

    Raises SelectionError for a name that matches nothing.
    """
    if names is None:
        return CONTRACTS
    unknown = [name for name in names if not any(_matches(contract, name) for contract in CONTRACTS)]
    if unknown:
        families = sorted({contract.id.partition(".")[0] for contract in CONTRACTS})
        raise SelectionError(
            "no such exercise",
            expected=f"a contract's id or its beginning, from {', '.join(families)}",
            found=", ".join(unknown),
        )
    return tuple(contract for contract in CONTRACTS if any(_matches(contract, name) for name in names))


def _matches(contract: Contract, name: str) -> bool:
    return contract.id == name or contract.id.startswith(name + ".")
