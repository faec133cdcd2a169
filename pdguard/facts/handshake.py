"""How an abort in mid-transfer ends between a decode and a prefill of given versions.

The cells were obtained by running the abort and acknowledgement code of each package against each other's.
Letters, in this order: the room is quiet; a write is in flight; prefill's scheduler cleared the request
before the drain; cleared before the ABORT came; a send failed; two decode ranks wait.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdguard.facts.versions import EngineVersion

WORDS = {"D": "drained", "T": "timeout", "N": "no hold", "E": "early ack", "P": "partial"}

ERAS = {"before 0.5.19": 0, "0.5.19-0.5.20": 1, "0.5.21": 2, "0.5.22": 3, "0.5.23": 4}
_ERA_TABLE = {
    (0, 4, 10): "before 0.5.19",
    (0, 5, 19): "0.5.19-0.5.20",
    (0, 5, 21): "0.5.21",
    (0, 5, 22): "0.5.22",
    (0, 5, 23): "0.5.23",
}

_NONE = "NNNNNN"
_WAIT = "TTTTTT"
# Rows: era of decode; columns: era of prefill. The hold is on at both.
_MOONCAKE = (
    (_NONE, _NONE, _NONE, _NONE, _NONE),
    ("TTTTNT", "DDTTNP", "DDDDND", "TTTTNT", "TTTTNT"),
    (_WAIT, "DDTTEP", "DDDDED", _WAIT, _WAIT),
    (_WAIT, _WAIT, _WAIT, "DDDDTD", "DDDDTD"),
    (_WAIT, _WAIT, _WAIT, "DDDDTD", "DDDDTD"),
)
_NIXL_OLD = ("TTTT-T", "DDTT-P", "DDDT-D", "TTTT-T", "TTTT-T")
_NIXL_NEW = ("TTTT-T", "TTTT-T", "TTTT-T", "DDDD-D", "DDDD-D")
_NIXL = (("NNNN-N",) * 5, _NIXL_OLD, _NIXL_OLD, _NIXL_NEW, _NIXL_NEW)
_MORI_NEW = (_WAIT, _WAIT, _WAIT, "DDDDED", "DDDDTD")
_MORI = ((_NONE,) * 5, ("TTTTNT",) * 5, (_NONE,) * 5, _MORI_NEW, _MORI_NEW)
_TABLES = {"mooncake": _MOONCAKE, "ascend": _MOONCAKE, "nixl": _NIXL, "mori": _MORI}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Words for the four cases that checks look at; None where the case was not modelled."""

    in_flight: str | None
    cleared: str | None
    failed_send: str | None
    ranks: str | None


def outcome(
    backend: str, decode: EngineVersion, prefill: EngineVersion, decode_holds: bool, prefill_holds: bool
) -> Outcome | None:
    """The outcome of the abort handshake, or None where versions or backend leave it open.

    `decode_holds` and `prefill_holds` are the holds in force: a prefill with its hold off sends no drain
    acknowledgement, so a decode that holds waits the whole timeout.
    """
    table = _TABLES.get(backend)
    eras = decode.lookup(_ERA_TABLE), prefill.lookup(_ERA_TABLE)
    if table is None or eras[0] is None or eras[1] is None:
        return None
    row = ERAS[eras[0]]
    if not decode_holds:
        cells = table[0][0]
    elif prefill_holds:
        cells = table[row][ERAS[eras[1]]]
    else:
        cells = table[row][0]
    return Outcome(
        in_flight=WORDS.get(cells[1]),
        cleared=WORDS.get("T" if "T" in cells[2:4] else cells[2]),
        failed_send=WORDS.get(cells[4]),
        ranks=WORDS.get(cells[5]),
    )
