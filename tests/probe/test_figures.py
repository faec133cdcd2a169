from __future__ import annotations

import pytest

from pdguard.probe.figures import in_words, queues_in_words
from pdguard.probe.interface import Measure


@pytest.mark.parametrize(
    ("measure", "words"),
    [
        (Measure("decode_let_go_after", 3.21, "s"), "decode let go after 3.2 s"),
        (Measure("prefill_told_after", 0.04, "s"), "prefill was told after 0.04 s"),
        (Measure("decode_learned_by", "client gone"), "how decode learned of it: its own client went"),
        (Measure("hold_outcome", "drained"), "how the hold ended: drained"),
        (Measure("tries", 2), "tries: 2"),
        (Measure("control steady", True), "control steady: yes"),
        (Measure("answers compared after", 5), "answers compared after: 5"),
    ],
)
def test_figures_in_words(measure: Measure, words: str) -> None:
    assert in_words(measure) == words


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            "d0: /v1/loads decode_prealloc_queue_reqs + decode_transfer_queue_reqs",
            "d0: decode's handoff queues",
        ),
        (
            "/v1/loads prefill_bootstrap_queue_reqs + prefill_inflight_queue_reqs: others",
            "prefill's handoff queues: others",
        ),
        ("/v1/loads queues", "its handoff queues"),
        ("/v1/loads: HTTP 404", "/v1/loads: HTTP 404"),
    ],
)
def test_queues_in_words(how: str, words: str) -> None:
    assert queues_in_words(how) == words
