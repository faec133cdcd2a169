"""The contracts: what each runs, with which arguments, and which upstream fixes it is about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pdguard.errors import SelectionError
from pdguard.exercise.engine.situations import SITUATIONS

BACKENDS = ("mooncake", "nixl", "mori")
_CAP = "SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES"

DOORS = {
    "prefill": ("rejected", "streaming-session", "valid", "metadata-held", "kv-held", "preempted"),
    "decode": (
        *("rejected", "streaming-session", "valid", "metadata-held", "kv-held", "preempted"),
        *("retracted", "rebootstrap"),
    ),
}
RESULTS = ("valid", "aborted", "aborted-twice", "aborted-middle-chunk")
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


def _others() -> Iterator[Contract]:
    yield Contract(
        "transfer.batch-cap.mooncake",
        "transfer.batch-cap",
        ("32758",),
        {"limit": 2},
        "mooncake",
        environment={_CAP: "2"},
    )
    yield Contract("hicache.restore-consensus", "hicache.restore-consensus", ("43562",))


CONTRACTS: tuple[Contract, ...] = (*_admission(), *_handshakes(), *_holds(), *_others())


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
