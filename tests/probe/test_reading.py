"""Reading answers: the forms that engines and routers were seen to give, and any JSON at all."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdguard.probe.interface import Api, ErrorClass, Finish, Role
from pdguard.probe.reading import MARKS, MOST_OUTPUTS, Reader, Reading, Unreadable, parse

KEY = b"k" * 32
OVER = (
    "Input length (1500 tokens) exceeds the maximum allowed length (1018 tokens). "
    "Use a shorter input or enable --allow-auto-truncate."
)
CONTEXT = "The input (5000 tokens) is longer than the model's context length (4096 tokens)."
TOTAL = (
    "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total "
    "of 4099 tokens: 4095 tokens from the input messages and 4 tokens for the completion. Please reduce the "
    "number of tokens in the input messages or the completion to fit within the limit."
)
_DECODE = (
    "Decode transfer failed for request rank=0 decode_req.req.rid='ab' decode_req.req.bootstrap_room=77 "
    "with exception KVTransferError(bootstrap_room=77): "
)
_PREFILL = (
    "Prefill bootstrap failed for request rank=0 req.rid='ab' req.bootstrap_room=77 with exception "
    "KVTransferError(bootstrap_room=77): "
)
WAITED_DECODE = _DECODE + "Request 77 timed out after 8.0s in KVPoll.WaitingForInput"
WAITED_PREFILL = _PREFILL + "Request 77 timed out after 25.0s in KVPoll.Bootstrapping"
CONFLICT = (
    _PREFILL
    + "follow_bootstrap_room conflict: dispatched to dp_rank 0 but bootstrap_room 77 implies dp_rank "
    "1. Set SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK=1 to allow mixed routing."
)
LOST = _DECODE + "Lost connection with prefill instance (bootstrap_addr: 127.0.0.1:8998)"


NO_NUMBERS = (None, None, None)


def read(api: Api, *values: Any, status: int = 200) -> Reading:
    reader = Reader(api, KEY)
    for value in values:
        if isinstance(value, str):
            reader.text(value, status=status)
        else:
            reader.value(value, status=status)
    return reader.reading()


def generated(ids: list[int] | None, done: int | None, **more: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {"id": "ab", "finish_reason": None, "prompt_tokens": 100}
    if done is not None:
        meta["completion_tokens"] = done
    value: dict[str, Any] = {"text": "s" * (done or 0), "meta_info": meta | more}
    return value if ids is None else value | {"output_ids": ids}


def flat(message: str, code: int = 400, kind: str = "BadRequestError") -> dict[str, Any]:
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def test_a_whole_answer_of_generate() -> None:
    seen = read(Api.GENERATE, generated([82, 9, 222, 5], 4, finish_reason={"type": "length", "length": 4}))
    assert (seen.error, seen.finish, seen.outputs) == (ErrorClass.NONE, Finish.LENGTH, 4)
    assert (seen.prompt_tokens, seen.completion_tokens) == (100, 4)
    assert len(seen.marks) == 4
    assert len(seen.digest) == 32


def test_the_fault_of_0_5_19_can_be_seen() -> None:
    value = generated([29], 1, prompt_tokens=1, finish_reason={"type": "length", "length": 0})
    assert read(Api.GENERATE, value).prompt_tokens == 1


def test_hashes_tell_outputs_apart_and_hide_them() -> None:
    first = read(Api.GENERATE, generated([29, 186, 20], 3))
    same = read(Api.GENERATE, generated([29, 186, 20], 3))
    other = read(Api.GENERATE, generated([29, 23, 20], 3))
    assert first == same
    assert first.digest != other.digest
    assert [a == b for a, b in zip(first.marks, other.marks, strict=True)] == [True, False, True]
    assert all(0 <= mark < 2**53 for mark in first.marks)
    reader = Reader(Api.GENERATE, b"another key")
    reader.value(generated([29, 186, 20], 3))
    assert not set(reader.reading().marks) & set(first.marks)
    assert (
        read(Api.GENERATE, generated([1, 23], 2)).digest != read(Api.GENERATE, generated([12, 3], 2)).digest
    )


def test_cumulative_events_and_increments_give_the_same() -> None:
    whole = read(Api.GENERATE, generated([5, 5, 5, 7], 4))
    cumulative = [generated([5, 5, 5, 7][:n], n) for n in (1, 2, 3, 4)]
    increments = [generated([one], n + 1) for n, one in enumerate([5, 5, 5, 7])]
    assert read(Api.GENERATE, *cumulative) == _known(whole, 4)
    assert read(Api.GENERATE, *increments) == _known(whole, 4)
    uncounted = [generated([5, 6, 7][:n], None) for n in (1, 2, 3)]
    assert read(Api.GENERATE, *uncounted).outputs == 3
    assert read(Api.GENERATE, generated([5], None), generated([6], None)).outputs == 2


def _known(reading: Reading, known: int) -> Reading:
    return replace(reading, known=known)


def test_text_stands_in_where_there_are_no_ids() -> None:
    first, second = generated(None, 1) | {"text": "ab"}, generated(None, 2) | {"text": "abc"}
    seen = read(Api.GENERATE, first, second)
    assert (seen.outputs, len(seen.marks)) == (3, 3)


def completion(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "matched_stop": None}
    return {"id": "ab", "object": "text_completion", "choices": [choice], "usage": None} | more


def test_completions() -> None:
    usage = {"prompt_tokens": 1500, "total_tokens": 1504, "completion_tokens": 4}
    whole = read(Api.COMPLETIONS, completion("ab\ufffdd", "length", usage=usage))
    assert (whole.outputs, whole.prompt_tokens, whole.completion_tokens) == (4, 1500, 4)
    assert whole.finish is Finish.LENGTH
    events = [completion(""), completion("a"), completion("b\ufffd"), completion("d", "length")]
    streamed = read(Api.COMPLETIONS, *events, {"choices": [], "usage": usage})
    assert streamed == _known(whole, 5)


def test_chats() -> None:
    whole = read(
        Api.CHAT,
        {
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": "abc"}, "finish_reason": "stop"}
            ]
        },
    )
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, {"content": "ab"}, {"content": "c"}]
    events: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    events.append({"choices": [{"index": 0, "delta": {"content": None}, "finish_reason": "stop"}]})
    assert read(Api.CHAT, *events) == _known(whole, 4)
    assert whole.outputs == 3
    thought = {"choices": [{"delta": {"reasoning_content": "xy", "content": None}}]}
    assert read(Api.CHAT, thought).outputs == 2


@pytest.mark.parametrize(
    ("message", "kind", "tokens", "limit", "seconds"),
    [
        (OVER, ErrorClass.OVER_LIMIT, 1500, 1018, None),
        (CONTEXT, ErrorClass.OVER_CONTEXT, 5000, 4096, None),
        (TOTAL, ErrorClass.OVER_TOTAL, 4095, 4096, None),
        (WAITED_DECODE, ErrorClass.WAITED_DECODE, None, None, 8.0),
        (WAITED_PREFILL, ErrorClass.WAITED_PREFILL, None, None, 25.0),
        (CONFLICT, ErrorClass.RANK_CONFLICT, None, None, None),
        (LOST, ErrorClass.TRANSFER, None, None, None),
        (_DECODE + "prefill has refused the request at its door", ErrorClass.RELEASED, *NO_NUMBERS),
        # The limit that follows is the other half's.
        (
            _PREFILL + f"decode has refused the request at its door: {OVER}",
            ErrorClass.RELEASED,
            *NO_NUMBERS,
        ),
        ("KV checksum mismatch", ErrorClass.CHECKSUM, None, None, None),
        (_DECODE + "Aborted by AbortReq.", ErrorClass.ABORTED, None, None, None),
        ("No available workers", ErrorClass.UNAVAILABLE, None, None, None),
        ("The request queue is full.", ErrorClass.UNAVAILABLE, None, None, None),
        ("unknown field `x`, expected one of `a`, `b`", ErrorClass.NOT_TAKEN, None, None, None),
        (
            "Request ab exceeds the maximum number of tokens: 1500 > 1000",
            ErrorClass.OVER_LIMIT,
            1500,
            1000,
            None,
        ),
        ("something else", ErrorClass.OTHER, None, None, None),
        (
            f"Input length ({'9' * 40} tokens) exceeds the maximum allowed length",
            ErrorClass.OVER_LIMIT,
            *NO_NUMBERS,
        ),
    ],
)
def test_sentences_in_every_form(
    message: str, kind: ErrorClass, tokens: int | None, limit: int | None, seconds: float | None
) -> None:
    abort = {"type": "abort", "message": message, "status_code": 400, "err_type": "BadRequestError"}
    forms = [
        read(Api.GENERATE, {"error": {"message": message}}, status=400),
        read(Api.GENERATE, {"error": message}, status=400),
        read(Api.GENERATE, {"detail": message}, status=500),
        read(Api.COMPLETIONS, flat(message), status=400),
        read(Api.COMPLETIONS, {"error": flat(message)}),
        read(Api.COMPLETIONS, {"error": {"type": "x", "code": "decode_bad_request", "message": message}}),
        read(Api.GENERATE, {"error": {"message": message, "code": 400, "retryable": False}}),
        read(Api.COMPLETIONS, "{'error': " + json.dumps({"message": flat(message)}) + "}", status=400),
        read(Api.GENERATE, message, status=422 if kind is ErrorClass.NOT_TAKEN else 400),
        read(Api.GENERATE, {"error": {"message": json.dumps({"error": {"message": message}})}}, status=400),
    ]
    if kind is not ErrorClass.OTHER:
        forms.append(read(Api.GENERATE, generated([], 0, finish_reason=abort)))
    for seen in forms:
        wanted = (kind, tokens, limit, seconds)
        assert (seen.error, seen.said_tokens, seen.said_limit, seen.said_seconds) == wanted
        assert message not in repr(seen)


def test_an_abort_in_a_stream() -> None:
    reason = {"type": "abort", "message": OVER, "status_code": 400}
    seen = read(Api.GENERATE, generated([], 0, prompt_tokens=1, finish_reason=reason))
    assert (seen.error, seen.inner_status, seen.finish) == (ErrorClass.OVER_LIMIT, 400, Finish.ABORT)
    assert seen.outputs == 0
    assert read(Api.GENERATE, {"error": {"message": "Aborted"}}, status=400).error is ErrorClass.ABORTED
    bare = read(Api.GENERATE, generated([3], 1, finish_reason={"type": "abort", "message": "x"}))
    assert (bare.error, bare.finish, bare.outputs) == (ErrorClass.ABORTED, Finish.ABORT, 1)
    assert read(Api.COMPLETIONS, completion("a", "abort")).error is ErrorClass.ABORTED


def test_the_first_known_sentence_stays() -> None:
    both = read(Api.COMPLETIONS, {"error": flat(OVER)}, {"error": flat(CONTEXT)})
    assert (both.error, both.said_limit) == (ErrorClass.OVER_LIMIT, 1018)
    late = read(Api.COMPLETIONS, {"error": flat("x")}, {"error": flat(CONTEXT)})
    assert late.error is ErrorClass.OVER_CONTEXT


def test_a_routers_code_names_the_half() -> None:
    router = {"error": {"type": "Bad Request", "code": "decode_bad_request", "message": OVER}}
    assert read(Api.GENERATE, router, status=400).error_side is Role.DECODE
    router["error"]["code"] = "prefill_internal_error"
    assert read(Api.GENERATE, router, status=500).error_side is Role.PREFILL
    assert read(Api.GENERATE, json.dumps(router)[:-3], status=500).error_side is Role.PREFILL
    assert read(Api.GENERATE, {"error": {"message": WAITED_DECODE}}, status=500).error_side is None


def test_a_quoted_error_that_was_cut() -> None:
    body = json.dumps(flat(CONTEXT), separators=(",", ":"))
    text = "{'error': {\"message\":" + body
    seen = read(Api.COMPLETIONS, text[: len(body) - len("data: ")], status=400)
    assert (seen.error, seen.said_tokens, seen.said_limit) == (ErrorClass.OVER_CONTEXT, 5000, 4096)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, ErrorClass.UNAUTHORIZED),
        (403, ErrorClass.UNAUTHORIZED),
        (404, ErrorClass.NOT_TAKEN),
        (422, ErrorClass.NOT_TAKEN),
        (503, ErrorClass.UNAVAILABLE),
        (500, ErrorClass.OTHER),
        (400, ErrorClass.OTHER),
    ],
)
def test_a_status_tells_where_no_sentence_does(status: int, kind: ErrorClass) -> None:
    assert read(Api.GENERATE, "", status=status).error is kind
    assert read(Api.GENERATE, {"error": {"message": "x"}}, status=status).error is kind
    assert read(Api.GENERATE, {}, status=status).error is kind
    assert read(Api.GENERATE, [1], status=status).error is kind
    assert read(Api.COMPLETIONS, {"error": flat("x", status)}).error is kind


def test_output_that_quotes_an_error_is_output() -> None:
    seen = read(Api.COMPLETIONS, completion(OVER, "stop"))
    assert (seen.error, seen.outputs) == (ErrorClass.NONE, len(OVER))
    reader = Reader(Api.COMPLETIONS, KEY)
    assert not reader.text(OVER)
    assert reader.reading() == Reading()


def test_what_cannot_be_a_count_is_none() -> None:
    counts: tuple[Any, ...] = (True, -1, 10**13, 1.0, "4", None, [], float("nan"))
    for bad in counts:
        seen = read(Api.GENERATE, generated([1], None, prompt_tokens=bad, completion_tokens=bad))
        assert (seen.prompt_tokens, seen.completion_tokens, seen.outputs) == (None, None, 1)
    lists: tuple[Any, ...] = ([True], ["1"], [1.5], [[1]], [None], [10**13], {})
    for ids in lists:
        assert read(Api.GENERATE, {"output_ids": ids, "meta_info": {}}).outputs == 0
    assert read(Api.GENERATE, {"error": {"message": "x", "code": 10**6}}).inner_status is None


def test_outputs_are_bounded() -> None:
    seen = read(Api.GENERATE, generated(list(range(MOST_OUTPUTS + 100)), None))
    assert (seen.outputs, len(seen.marks)) == (MOST_OUTPUTS, MARKS)
    seen = read(Api.COMPLETIONS, *[completion("x" * 40_000)] * 3)
    assert seen.outputs == MOST_OUTPUTS


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000, b'"\xc3"', b"nope"],
    ids=["empty", "open", "utf", "nested", "objects", "digits", "half", "word"],
)
def test_what_is_no_json(data: bytes) -> None:
    assert parse(data) is Unreadable


KEYS = st.sampled_from(
    [
        "error",
        "message",
        "code",
        "detail",
        "status_code",
        "object",
        "meta_info",
        "output_ids",
        "text",
        "finish_reason",
        "type",
        "prompt_tokens",
        "completion_tokens",
        "choices",
        "usage",
        "delta",
        "content",
    ]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from(["abort", "length", "error", "decode_", OVER, "400"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=25,
)


@given(st.sampled_from(list(Api)), st.lists(VALUES, max_size=4), st.sampled_from([200, 302, 400, 500]))
def test_any_json_gives_a_reading(api: Api, values: list[Any], status: int) -> None:
    reader = Reader(api, KEY)
    for value in values:
        reader.value(value, status=status)
    seen = reader.reading()
    assert isinstance(seen.error, ErrorClass)
    assert isinstance(seen.finish, Finish)
    assert (seen.outputs > 0) == bool(seen.digest)
    assert len(seen.marks) == min(seen.outputs, MARKS)
    assert seen.known <= len(values)
    assert reader.outputs == 0


@given(st.text(max_size=60), st.sampled_from(["message", "detail", "error"]))
def test_no_error_text_is_kept(text: str, name: str) -> None:
    marker = f"mk{text}mk"
    seen = read(Api.GENERATE, {"error": {name: marker}, "rid": marker}, marker, status=400)
    assert marker not in repr(seen)
