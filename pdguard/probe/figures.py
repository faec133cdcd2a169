"""Figures and readings of a step in words, for people; documents keep the names."""

from __future__ import annotations

import re

from pdguard.probe.interface import Measure

_AFTER = {
    "decode_let_go_after": "decode let go after {}",
    "prefill_let_go_after": "prefill let go after {}",
    "transfer_ended_after": "the transfer ended after {}",
    "decode_told_after": "decode was told after {}",
    "prefill_told_after": "prefill was told after {}",
    "left_after": "the client left after {}",
    "client_answered_after": "the client had its answer after {}",
    "waited": "waited for {}",
    "hold_seconds": "the hold lasted {}",
    "tokens_after_leaving": "tokens generated after the client left: {}",
    "hold_outcome": "how the hold ended: {}",
    "decode_learned_by": "how decode learned of it: {}",
    "prefill_learned_by": "how prefill learned of it: {}",
    "tries": "tries: {}",
}
_VALUES = {
    "drained": "drained",
    "client gone": "its own client went",
    "failed transfer": "the transfer failed",
    "never": "not at all",
}
_QUEUES = re.compile(r"/v1/loads (?P<role>prefill|decode)_\w+_queue_reqs(?: \+ \w+_queue_reqs)*")


def in_words(measure: Measure) -> str:
    """`decode let go after 3.2 s`; a figure without words of its own keeps its name."""
    value = _value(measure)
    known = _AFTER.get(measure.name)
    if known is None:
        return f"{measure.name}: {value}"
    return known.format(_VALUES.get(value, value))


def queues_in_words(how: str) -> str:
    """What was read of an engine's load, without the names of its fields."""
    text = _QUEUES.sub(lambda found: f"{found['role']}'s handoff queues", how)
    return text.replace("/v1/loads queues", "its handoff queues")


def _value(measure: Measure) -> str:
    value = measure.value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return f"{value} {measure.unit}".rstrip()
    figure = f"{value:.2f}" if value < 1 else f"{value:.1f}"
    return f"{figure} {measure.unit}".rstrip()
