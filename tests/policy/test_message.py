"""Messages: placeholders are filled, a missing fact prints as a question mark."""

from __future__ import annotations

import pytest

from pdguard.policy.message import Message


@pytest.mark.parametrize(
    ("template", "value", "text"),
    [
        ("pool {engine.pool:,}", 1048576, "pool 1,048,576"),
        ("pool {engine.pool}", None, "pool ?"),
        ("T_hold {engine.t_hold}", 30.0, "T_hold 30"),
        ("T_hold {engine.t_hold}", 2.5, "T_hold 2.5"),
        ("share {engine.t_hold:.1f}", 2.0, "share 2.0"),
        ("{pair.differs}", ("page_size", "backend"), "page_size, backend"),
        ("{pair.differs}", (), "none"),
        ("{cluster.prefill_limits}", tuple(range(9)), "0, 1, 2, 3, 4, 5 … (9)"),
        ("{cluster.prefill_limits:,}", (1018, 4090), "1,018 and 4,090"),
        ("{not.a_fact} {engine}", 1, "{not.a_fact} {engine}"),
        ("hold {engine.hold:,}", "on", "hold on"),
    ],
)
def test_fill(template: str, value: object, text: str) -> None:
    assert Message(template).fill(lambda _: value) == text
