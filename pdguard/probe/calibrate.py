"""How many tokens a text of so many words is, found with two short requests; for paths that take no ids."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pdguard.probe.context import Context
from pdguard.probe.exchange import exchange, no_answer
from pdguard.probe.interface import Api, Ask, ErrorClass, Length, Route, Seen, Side
from pdguard.probe.served_model import served_model

FEW, MANY = 16, 64
"""Words of the two requests."""

SLOW_SECONDS = 10.0
"""A path that takes longer for so short a text is not asked again."""

_GUESS = 4
"""Tokens that a word is booked as before it is known."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A text of `w` words is `offset + w * per_word` tokens; `offset` is what a template adds."""

    per_word: float
    offset: float

    def words(self, length: Length) -> int:
        """The words that come nearest to `length` without leaving its side of the limits."""
        exact = (length.tokens - self.offset) / self.per_word
        rounded = math.floor(exact) if length.side is Side.ADMITTED else math.ceil(exact)
        return max(1, rounded)

    def tokens(self, words: int) -> int:
        """What `words` words are expected to be."""
        return round(self.offset + words * self.per_word)


async def calibrate(context: Context, route: Route, api: Api) -> Scale | str:
    """The scale of one path, asked for once a run, or the reason why there is none.

    Raises BudgetSpent where the run cannot afford it.
    """
    key = (route.name, api)
    if key not in context.scales:
        context.scales[key] = await _ask(context, route, api)
    return context.scales[key]


async def _ask(context: Context, route: Route, api: Api) -> Scale | str:
    counts = []
    for words in (FEW, MANY):
        ask = Ask(
            api=api,
            length=words * _GUESS,
            rid=context.rid(),
            words=words,
            model=await served_model(context, Context.halves(route)[-1]),
            bootstrap=None if route.router is not None else context.bootstrap(route, None),
        )
        seen = await exchange(context, route, ask, to_the_end=True)
        count = counted(seen)
        slowest = max((one.ended_after for one in seen.values()), default=0.0)
        if slowest > SLOW_SECONDS:
            return f"a text of {words} words took {slowest:.0f} s on {api.value}"
        if any(_not_taken(one) for one in seen.values()):
            chat = ": a chat template may be missing" if api is Api.CHAT else ""
            return f"{api.value} does not take a text here{chat} ({no_answer(seen)})"
        if count is None:
            return f"no token count came for a text of {words} words: {no_answer(seen) or 'no usage told'}"
        counts.append(count)
    per_word = (counts[1] - counts[0]) / (MANY - FEW)
    if per_word <= 0:
        return f"texts of {FEW} and {MANY} words were counted as {counts[0]} and {counts[1]} tokens"
    return Scale(per_word, counts[0] - FEW * per_word)


def _not_taken(seen: Seen) -> bool:
    """A 4xx to a short text without a reason that has to do with limits or keys."""
    return 400 <= seen.status < 500 and seen.error in (ErrorClass.NOT_TAKEN, ErrorClass.OTHER)


def counted(seen: Mapping[str, Seen]) -> int | None:
    """The prompt's tokens as the servers counted them: what a refusal quotes, else the usage.

    A server that has replaced a refused prompt by a stub counts 1: the largest count is the true one.
    """
    said = [one.said_tokens for one in seen.values() if one.said_tokens is not None]
    used = [one.prompt_tokens for one in seen.values() if one.prompt_tokens is not None]
    return max(said or used, default=None)


def side_of(tokens: int, length: Length) -> Side:
    """The side of the limits on which a prompt of so many tokens lies."""
    if tokens >= length.context:
        return Side.CONTEXT
    over_prefill, over_decode = tokens >= length.prefill_limit, tokens >= length.decode_limit
    if over_prefill and over_decode:
        return Side.BOTH
    if over_prefill:
        return Side.PREFILL
    return Side.DECODE if over_decode else Side.ADMITTED
