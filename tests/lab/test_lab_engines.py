"""What real engines do, version by version: the yardstick for everything else."""

from __future__ import annotations

import pytest

from .client import Answer, prompt
from .lab import Lab, another_router
from .session import versions_from_env
from .spec import pair

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

WAIT = 8
POOLS = (1024, 4096)
OVER_LIMIT = prompt(1500)
TRIES = 5
"""How often sglang-router 0.3.2 sends a request before it gives up."""
LIMIT_MESSAGE = "exceeds the maximum allowed length (1018 tokens)"

PAIRS = [
    pair(version, POOLS, router="sglang-router", waiting_timeout=WAIT) for version in versions_from_env()
]
each_version = pytest.mark.parametrize("lab", PAIRS, indirect=True, scope="session", ids=lambda s: s.version)


def at_once(answer: Answer) -> bool:
    return answer.seconds < WAIT / 4


def waited(answer: Answer, times: int = 1) -> bool:
    """The waiting timeout ran out `times` times, with some room for a busy machine."""
    return times * WAIT - 1 <= answer.seconds <= times * (WAIT + 4)


@each_version
@pytest.mark.parametrize("length", [16, 500])
def test_ordinary_requests_are_answered_alike_directly_and_routed(lab: Lab, length: int) -> None:
    direct = lab.direct(prompt(length))
    routed = lab.routed(prompt(length))
    assert (direct.prefill.status, direct.decode.status, routed.status) == (200, 200, 200)
    assert direct.decode.prompt_tokens == routed.prompt_tokens == length
    assert len(direct.decode.tokens) == 16
    assert routed.tokens == direct.decode.tokens


@each_version
def test_over_limit_prompt_sent_to_both_halves(lab: Lab) -> None:
    pair = lab.direct(OVER_LIMIT, 4, timeout=WAIT * 4)
    assert at_once(pair.prefill)
    if lab.spec.version == "0.5.19":
        assert (pair.prefill.status, pair.decode.status) == (200, 200)
        assert (pair.prefill.prompt_tokens, pair.decode.prompt_tokens) == (1, len(OVER_LIMIT))
        return
    assert pair.prefill.status == 400
    assert LIMIT_MESSAGE in pair.prefill.body
    assert pair.decode.status == 500
    assert waited(pair.decode)


@each_version
def test_over_limit_prompt_through_the_router(lab: Lab) -> None:
    answer = lab.routed(OVER_LIMIT, 4, timeout=WAIT * TRIES * 2)
    if lab.spec.version == "0.5.19":
        assert answer.status == 200
        assert answer.prompt_tokens == len(OVER_LIMIT)
        return
    assert answer.status == 500
    assert waited(answer, TRIES)


@each_version
def test_smg_ends_both_halves_of_an_over_limit_request(lab: Lab) -> None:
    with another_router(lab, "smg") as behind_smg:
        ordinary = behind_smg.routed(prompt(16))
        answer = behind_smg.routed(OVER_LIMIT, 4)
    assert (ordinary.status, len(ordinary.tokens)) == (200, 16)
    assert at_once(answer)
    assert answer.status == (200 if lab.spec.version == "0.5.19" else 400)


@each_version
def test_ordinary_requests_still_work_afterwards(lab: Lab) -> None:
    assert lab.routed(prompt(100)).status == 200
