"""Synthetic prompts, and the bodies of the requests that carry them.

A prompt is made from a number: token ids, or single letters with spaces between them. Nothing in it was
ever written by anybody.

What every engine from 0.5.19 to 0.5.23 takes was read off its request types. From 0.5.22 on /generate has
a strict contract: unknown keys of the body are ignored, unknown keys of `sampling_params` and wrong types
are refused. `ignore_eos` is a known key in all of them; the rank is given under its name of today and the
older one, of which engines take the one they know.
"""

from __future__ import annotations

import json
import random
from typing import Any

from pdguard.probe.interface import Api, Ask

FIRST_ID, IDS = 20, 74
"""The range of token ids: printable signs in most vocabularies, below 256 in all. The first few ids of many
vocabularies mark ends, padding and images, and from 100 on some have further marks."""

LETTERS = "bcdfghjklmnpqrvwxz"
_LEAD = 6
_PIECE = 50_000
_ID_OF_BYTE = bytes(FIRST_ID + byte % IDS for byte in range(256))


def prompt_ids(length: int, seed: int) -> list[int]:
    """So many token ids. Two seeds below 10**11 differ within the first 6 ids, so within the first page."""
    noise = random.Random(seed).randbytes(max(0, length - _LEAD))  # noqa: S311 - no secret
    lead = [FIRST_ID + digit for digit in _digits(seed, IDS)]
    return (lead + list(noise.translate(_ID_OF_BYTE)))[:length]


def prompt_words(words: int, seed: int) -> str:
    """So many single letters with spaces between them; two seeds below 10**7 differ within the first 6.

    With most tokenizers a word is one token; where each byte is a token, N words are 2N - 1.
    """
    chosen = random.Random(seed).choices(LETTERS, k=max(0, words - _LEAD))  # noqa: S311 - no secret
    lead = [LETTERS[digit] for digit in _digits(seed, len(LETTERS))]
    return " ".join((lead + chosen)[:words])


def _digits(number: int, base: int) -> list[int]:
    digits = []
    for _ in range(_LEAD):
        number, digit = divmod(number, base)
        digits.append(digit)
    return digits


def request_body(ask: Ask) -> dict[str, Any]:
    """The JSON object that is posted: greedy, of a fixed length, without any retry or fallback of its own.

    A chat takes no ids on most versions: it gets `words`, or else as many words as `length`.
    """
    body: dict[str, Any] = {"rid": ask.rid, "stream": ask.stream}
    if ask.api is Api.GENERATE:
        body["sampling_params"] = {"max_new_tokens": ask.new_tokens, "temperature": 0, "ignore_eos": True}
    else:
        body |= {
            "model": ask.model,
            "max_tokens": ask.new_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        if ask.stream:
            body["stream_options"] = {"include_usage": True}
    if ask.bootstrap is not None:
        body["bootstrap_host"] = ask.bootstrap.host
        body["bootstrap_port"] = ask.bootstrap.port
        body["bootstrap_room"] = ask.bootstrap.room
    if ask.rank is not None:
        body |= {"routed_dp_rank": ask.rank, "data_parallel_rank": ask.rank}
    return body | _prompt(ask)


def _prompt(ask: Ask) -> dict[str, Any]:
    """The one entry that holds the prompt."""
    if ask.api is Api.CHAT:
        words = prompt_words(ask.length if ask.words is None else ask.words, ask.seed)
        return {"messages": [{"role": "user", "content": words}]}
    if ask.words is not None:
        return {"text" if ask.api is Api.GENERATE else "prompt": prompt_words(ask.words, ask.seed)}
    name = "input_ids" if ask.api is Api.GENERATE else "prompt"
    return {name: prompt_ids(ask.length, ask.seed)}


def request_content(ask: Ask) -> bytes:
    """`request_body` as JSON, made in short steps so that a thread that does it lets others run."""
    rest = request_body(ask)
    # Millions of ids in one call of json.dumps would hold up every other task for most of a second.
    name, prompt = rest.popitem()
    head = json.dumps(rest, separators=(",", ":"))[:-1]
    if not isinstance(prompt, list) or ask.api is Api.CHAT:
        return f"{head},{json.dumps(name)}:{json.dumps(prompt)}}}".encode()
    pieces = (prompt[at : at + _PIECE] for at in range(0, len(prompt), _PIECE))
    ids = ",".join(",".join(map(str, piece)) for piece in pieces)
    return f"{head},{json.dumps(name)}:[{ids}]}}".encode()


def request_headers(ask: Ask, key: str | None) -> dict[str, str]:
    """Headers of the request. The connection serves it alone, so that closing it tells that we left."""
    headers = {
        "accept": "text/event-stream, application/json",
        "accept-encoding": "identity",
        "connection": "close",
        "content-type": "application/json",
        "user-agent": "pdguard",
        "x-request-id": ask.rid,
    }
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    return headers
