"""What each released engine does, by version: the tables behind facts of grade `claimed`.

Every table maps the first examined release that shows a behaviour to that behaviour; None says that the
stretch was never established. Read from the unpacked packages and, where the note says so, run. They are used
only where no source of the running engine was read.
"""

from __future__ import annotations

from collections.abc import Mapping

from pdguard.facts.versions import OLDEST, Release

Table = Mapping[Release, str | None]
Flags = Mapping[Release, bool | None]

WALKS_ON = "walks on"
RETIRED_LATE = "is retired late"
RETIRED_AT_DOOR = "is retired at the door"

REJECT_FATE: Table = {
    OLDEST: None,  # sets finished_reason at intake; what follows was never run
    (0, 5, 5): WALKS_ON,
    (0, 5, 20): RETIRED_LATE,  # sglang#36988
    (0, 5, 21): RETIRED_AT_DOOR,  # sglang#38935
}

REFUSAL_TOLD: Flags = {OLDEST: False}
"""No release tells the other half of a request that it refuses at its door."""

HOLD_CODE: Flags = {OLDEST: False, (0, 5, 19): True}  # sglang#35049, #35360
HOLD_GATE: Flags = {OLDEST: False, (0, 5, 21): True}
"""From 0.5.21 the variable counts only where the backend's class says that it can (sglang#41023)."""

HOLD_GATE_OPEN: Mapping[str, Flags] = {
    "mooncake": {(0, 5, 21): True},
    "nixl": {(0, 5, 21): True},
    "ascend": {(0, 5, 21): True},  # inherits Mooncake's class
    "mori": {(0, 5, 21): False, (0, 5, 22): True},  # sglang#37077
    "fake": {(0, 5, 21): False},
    "other": {(0, 5, 21): False},
}

HOLD_SCOPE: Table = {
    OLDEST: "none",
    (0, 5, 19): "decode aborts",
    (0, 5, 21): "every failure",  # sglang#41404
}

NAN_RELEASES_AT_ONCE: Flags = {OLDEST: None, (0, 5, 19): True, (0, 5, 23): False}

FAKE_RECEIVER_FAULT: Flags = {OLDEST: False, (0, 5, 19): True, (0, 5, 20): False}  # sglang#37454

EARLY_ACK: Mapping[str, Flags] = {
    "mooncake": {OLDEST: False, (0, 5, 19): True, (0, 5, 22): False},  # sglang#43719
    "ascend": {OLDEST: False, (0, 5, 19): True, (0, 5, 22): False},
    "nixl": {OLDEST: None, (0, 5, 21): True, (0, 5, 23): False},  # a rejected post
    "mori": {OLDEST: False, (0, 5, 22): True, (0, 5, 23): False},  # a failed status
    "fake": {OLDEST: False},
}

RANK_LOCAL_HOLD: Flags = {OLDEST: False, (0, 5, 19): True, (0, 5, 23): False}
BATCH_CAP: Flags = {OLDEST: False, (0, 5, 20): True}  # sglang#32758
CHECKSUM_FLAG: Flags = {OLDEST: False, (0, 5, 21): True}  # sglang#39500
OUTCOME_METRIC: Flags = {OLDEST: False, (0, 5, 22): True}  # sglang#41128

PREFILL_TOLD: Mapping[str, Flags] = {
    "mooncake": {OLDEST: False, (0, 5, 13): True},  # sglang#27372
    "ascend": {OLDEST: False, (0, 5, 13): True},
    "nixl": {OLDEST: False, (0, 5, 16): True},  # sglang#30352
    "mori": {OLDEST: False, (0, 5, 19): True},  # sglang#29133
}

NIXL_ABORT_KILLS: Flags = {OLDEST: False, (0, 5, 13): True, (0, 5, 16): False}
OFFLOAD_SLOT_FAULT: Flags = {OLDEST: None, (0, 5, 10): True, (0, 5, 13): False}  # sglang#24226
OFFLOAD_RETRACT_FAULT: Flags = {OLDEST: None, (0, 5, 10): True, (0, 5, 21): False}  # sglang#30899
RESTORE_FAULT: Flags = {OLDEST: None, (0, 5, 17): True, (0, 5, 22): False}  # sglang#43562

CANARY_FLAG: Flags = {OLDEST: False, (0, 5, 12): None, (0, 5, 17): True}
DECODE_RADIX_FLAG: Flags = {OLDEST: False, (0, 5, 12): None, (0, 5, 17): True}
HOST_RECEIVE_FLAG: Flags = {OLDEST: None, (0, 5, 17): False, (0, 5, 21): True}
"""Releases that have these flags at all; where there is none, the thing is off."""

HOST_RECEIVE_OFF_AT_ONE: Flags = {OLDEST: None, (0, 5, 21): False, (0, 5, 22): True}
"""--disaggregation-decode-host-receive-threshold: 0 is off on 0.5.21; from 0.5.22 1 is off, 0 is always."""

NO_FORMAT, OLD_FORMAT, NEW_FORMAT = "none", "three frames", "four frames with a generation"

ACK_FORMAT: Table = {OLDEST: NO_FORMAT, (0, 5, 19): OLD_FORMAT, (0, 5, 22): NEW_FORMAT}  # sglang#37077

BOOTSTRAP_ANSWER: Mapping[Release, int | None] = {OLDEST: None, (0, 5, 19): 1, (0, 5, 22): 2, (0, 5, 23): 3}
"""Generations of prefill's bootstrap answer. A decode refuses one with fields that it does not know (run)."""

ACK_KEPT: Mapping[str, Flags] = {
    "mooncake": {OLDEST: False, (0, 5, 21): True},  # sglang#40645
    "ascend": {OLDEST: False, (0, 5, 21): True},
    "nixl": {OLDEST: False, (0, 5, 22): True},  # its late ABORT and skip branches: sglang#37077
    "mori": {OLDEST: False, (0, 5, 22): True},
    "fake": {OLDEST: False},
}
ACK_EVERY_RANK: Flags = {OLDEST: False, (0, 5, 21): True}  # sglang#41402
