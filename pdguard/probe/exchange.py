"""Sending one request to everybody that a route names, at once, and seeing all of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pdguard.probe.context import Context
from pdguard.probe.interface import Ask, End, Route, Seen


async def exchange(
    context: Context, route: Route, ask: Ask, *, to_the_end: bool = False
) -> Mapping[str, Seen]:
    """Book `ask` and send it to the router, or to both halves at once; what was seen, by server.

    `to_the_end` is for prompts that are served: they are not closed while one half may be writing.
    Raises BudgetSpent before anything is sent. When it is cancelled, every connection is closed first.
    """
    targets = Context.halves(route)
    context.book(route, *(ask for _ in targets))
    wait = context.to_the_end if to_the_end else context.wait
    async with asyncio.TaskGroup() as group:
        tasks = {t.name: group.create_task(context.wire.send(t, ask, wait)) for t in targets}
    return {name: task.result() for name, task in tasks.items()}


def answering(seen: Mapping[str, Seen], route: Route) -> Seen:
    """The answer that a client would get: the router's, or decode's."""
    if route.router is not None:
        return seen[route.router.name]
    return seen[route.decode.name if route.decode is not None else next(iter(seen))]


def no_answer(seen: Mapping[str, Seen]) -> str:
    """Why a request that should have been answered was not, naming the server; empty if nothing is wrong."""
    for name, one in seen.items():
        if one.end is not End.COMPLETE:
            return f"{name}: {one.trouble or one.end.value}"
        if not one.answered:
            what = one.error.value if one.error.value != "none" else "an empty answer"
            return f"{name}: HTTP {one.inner_status or one.status}, {what}"
    return ""
