from __future__ import annotations

import asyncio

import pytest

from pdguard.probe.calibrate import Scale, calibrate, counted, side_of
from pdguard.probe.interface import Api, Ask, End, ErrorClass, Length, Seen, Side, Target
from tests.probe import kit

LENGTH = kit.BETWEEN


def test_two_short_texts_give_tokens_a_word_and_what_a_template_adds() -> None:
    def script(target: Target, ask: Ask) -> Seen:
        assert ask.words is not None
        return kit.answered(prompt_tokens=2 * ask.words - 1 + 18 if target.name == "d0" else 1)

    wire = kit.FakeWire(script)
    context = kit.context(wire)
    scale = asyncio.run(calibrate(context, kit.DIRECT, Api.CHAT))
    assert scale == Scale(2.0, 17.0)
    assert [ask.words for _, ask in wire.asked] == [16, 16, 64, 64]
    assert len({ask.rid for _, ask in wire.asked}) == 2
    # asked for once a run
    assert asyncio.run(calibrate(context, kit.DIRECT, Api.CHAT)) is scale
    assert len(wire.asked) == 4


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (Seen(End.COMPLETE, 0.1, 400, error=ErrorClass.NOT_TAKEN), "chat template"),
        (Seen(End.NO_CONNECTION, 0.1, trouble="connection refused"), "connection refused"),
        (kit.answered(prompt_tokens=None), "no usage told"),
        (kit.answered(prompt_tokens=7), "7 and 7 tokens"),
        (kit.answered(prompt_tokens=7, ended_after=11.0), "a text of 16 words took 11 s"),
    ],
)
def test_a_path_without_a_scale_says_why(seen: Seen, reason: str) -> None:
    found = asyncio.run(calibrate(kit.context(kit.FakeWire(lambda *_: seen)), kit.THROUGH, Api.CHAT))
    assert isinstance(found, str)
    assert reason in found


@pytest.mark.parametrize(
    ("side", "tokens", "words"),
    [(Side.PREFILL, 1018, 510), (Side.ADMITTED, 1018, 509), (Side.BOTH, 1019, 510), (Side.ADMITTED, 1, 1)],
)
def test_words_stay_on_the_side_that_was_wanted(side: Side, tokens: int, words: int) -> None:
    assert Scale(2.0, -1.0).words(Length(side, tokens, 1018, 4090, 4096)) == words


@pytest.mark.parametrize(
    ("tokens", "side"),
    [
        (1017, Side.ADMITTED),
        (1018, Side.PREFILL),
        (4089, Side.PREFILL),
        (4090, Side.BOTH),
        (4096, Side.CONTEXT),
    ],
)
def test_sides(tokens: int, side: Side) -> None:
    assert side_of(tokens, LENGTH) is side
    mirrored = Length(Side.DECODE, 1500, 4090, 1018, 4096)
    assert side_of(1500, mirrored) is Side.DECODE


def test_a_refusal_quotes_the_true_length_and_a_stub_does_not() -> None:
    stub, refusal = kit.answered(prompt_tokens=1), Seen(End.COMPLETE, 0.1, 400, said_tokens=1500)
    assert counted({"p0": stub, "d0": refusal}) == 1500
    assert counted({"p0": stub, "d0": kit.answered(prompt_tokens=1500)}) == 1500
    assert counted({"p0": Seen(End.CLOSED, 1.0)}) is None
