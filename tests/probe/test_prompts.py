"""Prompts: made from numbers, valid everywhere, apart from the first page on; bodies that engines take."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdguard.probe.interface import Api, Ask, Bootstrap
from pdguard.probe.prompts import (
    prompt_ids,
    prompt_words,
    request_body,
    request_content,
    request_headers,
)

RID = "pdguard-probe-ab-001"
PAGE = 16
# What the strict contract of 0.5.22 and 0.5.23 knows of sampling_params; it refuses every other key.
SAMPLING_KEYS = {"max_new_tokens", "temperature", "ignore_eos"}


@given(st.integers(0, 400), st.integers(0, 10**10))
def test_ids_are_short_and_valid_everywhere(length: int, seed: int) -> None:
    ids = prompt_ids(length, seed)
    assert len(ids) == length
    assert all(20 <= one < 94 for one in ids)
    assert ids == prompt_ids(length, seed)


@given(st.integers(0, 10**7), st.integers(0, 10**7))
def test_two_seeds_differ_in_the_first_page(one: int, other: int) -> None:
    assert (prompt_ids(PAGE, one) == prompt_ids(PAGE, other)) == (one == other)
    assert (prompt_words(PAGE, one) == prompt_words(PAGE, other)) == (one == other)


@given(st.integers(0, 400), st.integers(0, 10**6))
def test_words_are_single_letters(words: int, seed: int) -> None:
    text = prompt_words(words, seed)
    assert len(text.split()) == words
    assert len(text) == max(0, 2 * words - 1)
    assert text == prompt_words(words, seed)


def test_the_tail_of_a_prompt_is_its_seeds_own_too() -> None:
    assert prompt_ids(200, 1)[6:] != prompt_ids(200, 2)[6:]


def test_generate_takes_ids() -> None:
    body = request_body(Ask(Api.GENERATE, 40, RID, seed=3, new_tokens=7))
    assert body == {
        "rid": RID,
        "stream": False,
        "sampling_params": {"max_new_tokens": 7, "temperature": 0, "ignore_eos": True},
        "input_ids": prompt_ids(40, 3),
    }
    assert set(body["sampling_params"]) == SAMPLING_KEYS


def test_a_direct_request_names_room_and_rank() -> None:
    body = request_body(
        Ask(Api.GENERATE, 40, RID, bootstrap=Bootstrap("127.0.0.1", 8998, 2**62 + 1), rank=1, words=5)
    )
    assert (body["bootstrap_host"], body["bootstrap_port"], body["bootstrap_room"]) == (
        "127.0.0.1",
        8998,
        2**62 + 1,
    )
    assert body["routed_dp_rank"] == body["data_parallel_rank"] == 1
    assert body["text"] == prompt_words(5, 0)
    assert "input_ids" not in body


def test_completions_take_ids_or_words() -> None:
    ids = request_body(Ask(Api.COMPLETIONS, 40, RID, model="m"))
    assert ids["prompt"] == prompt_ids(40, 0)
    assert (ids["model"], ids["max_tokens"], ids["temperature"], ids["ignore_eos"]) == ("m", 4, 0, True)
    assert "stream_options" not in ids
    words = request_body(Ask(Api.COMPLETIONS, 40, RID, words=9, stream=True))
    assert words["prompt"] == prompt_words(9, 0)
    assert words["stream"] is True
    assert words["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(("words", "sent"), [(None, 40), (9, 9)])
def test_a_chat_takes_words(words: int | None, sent: int) -> None:
    body = request_body(Ask(Api.CHAT, 40, RID, words=words))
    assert body["messages"] == [{"role": "user", "content": prompt_words(sent, 0)}]


@pytest.mark.parametrize("api", list(Api))
@pytest.mark.parametrize("words", [None, 3])
@pytest.mark.parametrize("length", [0, 1, 120_000])
def test_the_bytes_are_the_body(api: Api, words: int | None, length: int) -> None:
    ask = Ask(api, length, RID, words=words, rank=0, stream=True)
    assert json.loads(request_content(ask)) == request_body(ask)


def test_headers() -> None:
    ask = Ask(Api.GENERATE, 4, RID)
    assert request_headers(ask, None)["x-request-id"] == RID
    assert request_headers(ask, None)["connection"] == "close"
    assert "authorization" not in request_headers(ask, None)
    assert request_headers(ask, "k")["authorization"] == "Bearer k"
