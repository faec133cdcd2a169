"""The name under which a server serves its model, which OpenAI's paths want; asked for once a run."""

from __future__ import annotations

import json

from pdguard.facts._fetch import Failed
from pdguard.probe.context import Context
from pdguard.probe.interface import Target

PATH = "/v1/models"
UNKNOWN = "default"
"""Sent where no name is told: an engine takes any."""

_LONGEST = 512


async def served_model(context: Context, target: Target) -> str:
    """The first name that `target` lists, or `default`."""
    if target.name not in context.models:
        answer = await context.fetcher.get(target.base, PATH, key=target.key, tls=target.tls)
        context.models[target.name] = UNKNOWN if isinstance(answer, Failed) else _first(answer.body)
    return context.models[target.name]


def _first(body: bytes) -> str:
    try:
        cards = json.loads(body)["data"]
        name = cards[0]["id"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return UNKNOWN
    fits = isinstance(name, str) and 0 < len(name) <= _LONGEST and name.isprintable()
    return name if fits else UNKNOWN
