"""The path with messages, usage at the end of a stream, and request ids that are under way already."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from pdguard.simulator import ClusterSpec, EngineSpec, Live
from tests.simulator.helpers import in_cluster

CHAT = {"model": "m", "messages": [{"role": "user", "content": "abcd"}], "max_tokens": 3}
#: The keys of a real answer to a chat, version 0.5.20.
RECORDED = ["id", "object", "created", "model", "choices", "usage", "metadata"]
RECORDED_CHOICE = ["index", "message", "logprobs", "finish_reason", "matched_stop"]


def single(**more: Any) -> ClusterSpec:
    return ClusterSpec("one", (EngineSpec("e0", version="0.5.22", **more),))


def post(spec: ClusterSpec, path: str, body: dict[str, Any]) -> httpx.Response:
    async def ask(live: Live, client: httpx.AsyncClient) -> httpx.Response:
        return await client.post(live.url("e0") + path, json=body)

    return in_cluster(spec, ask)


def test_a_chat_is_answered_as_recorded() -> None:
    answer = post(single(), "/v1/chat/completions", CHAT).json()
    assert list(answer) == RECORDED
    assert answer["object"] == "chat.completion"
    (choice,) = answer["choices"]
    assert list(choice) == RECORDED_CHOICE
    assert len(choice["message"]["content"]) == 3
    # the template's own signs are counted too
    assert answer["usage"]["prompt_tokens"] > 4


@pytest.mark.parametrize("usage", [False, True])
def test_a_streamed_chat_opens_with_the_role_and_may_end_with_usage(usage: bool) -> None:
    body = {**CHAT, "stream": True, "stream_options": {"include_usage": usage}}
    text = post(single(), "/v1/chat/completions", body).text
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    counted = [event for event in events if event.get("usage")]
    assert len(counted) == usage
    if usage:
        assert counted == events[-1:]
        assert counted[0]["choices"] == []
    last = [event for event in events if event["choices"]][-1]["choices"][0]
    assert last["finish_reason"] == "length"


def test_without_a_template_a_chat_is_refused_and_a_completion_is_not() -> None:
    refused = post(single(chat_template=False), "/v1/chat/completions", CHAT)
    assert refused.status_code == 400
    assert refused.json()["object"] == "error"
    assert post(single(chat_template=False), "/v1/completions", {"prompt": "abcd"}).status_code == 200


def test_a_chat_over_the_context_is_refused() -> None:
    body = {**CHAT, "messages": [{"role": "user", "content": "a" * 5000}]}
    assert "longer than" in post(single(), "/v1/chat/completions", body).json()["message"]


def test_a_request_id_that_is_under_way_is_refused() -> None:
    async def ask(live: Live, client: httpx.AsyncClient) -> list[int]:
        body = {"text": "abc", "rid": "same", "sampling_params": {"max_new_tokens": 4}}
        url = live.url("e0") + "/generate"
        both = await asyncio.gather(client.post(url, json=body), client.post(url, json=body))
        later = await client.post(url, json=body)
        return [*sorted(one.status_code for one in both), later.status_code]

    assert in_cluster(single(token_seconds=0.1), ask) == [200, 400, 200]
