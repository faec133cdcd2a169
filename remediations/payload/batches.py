"""Fixes 32758 and X7: one synchronous call of Mooncake carries a bounded number of pages, on every path.

A call that outlives the hold of decode writes into pages that have a new owner. The bound is off by default
and set by SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES, as in the releases that have it. Off, every path makes
the one call that the engine itself would make.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

_VARIABLE = "SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES"
_KEPT = "_pdguard_max_transfer_batch_indices"

Layers = Sequence["tuple[int, int, int]"]
"""(first address here, first address there, bytes of a page) of every buffer."""

Block = tuple[int, int, int]
"""(address here, address there, bytes) of one stretch."""


def send(
    manager: Any,
    session: str,
    layers: Layers,
    pages: Any,
    targets: Any,
    device_targets: Any,
    device_buffers: Any,
    at_once: Callable[[Layers], int],
) -> int:
    """Send all `layers` of `pages`; 0, or the status of the first call that failed, after which none is made.

    `targets` are the pages of decode; buffers with their address in `device_buffers` take `device_targets`.
    `at_once` is the engine's own single call, for as long as the bound is off or not reached.
    """
    most = limit(manager)
    if most <= 0 or len(pages) <= most:
        return at_once(layers)
    for start in range(0, len(pages), most):
        part = slice(start, start + most)
        plain = _runs(pages[part], targets[part])
        device = plain if device_targets is None else _runs(pages[part], device_targets[part])
        blocks = []
        for source, target, size in layers:
            runs = device if device_buffers and int(target) in device_buffers else plain
            blocks += [
                (source + here * size, target + there * size, count * size) for here, there, count in runs
            ]
        status = int(manager._transfer_data(session, blocks))
        if status != 0:
            return status
    return 0


def send_blocks(
    manager: Any,
    session: str,
    blocks: Sequence[Block],
    layers: Iterable[tuple[Sequence[Block], int]],
    per_page: int = 1,
) -> Any:
    """Send `blocks`; 0, or the status of the first call that failed, after which none is made.

    `layers` are the same blocks, buffer by buffer, each with the bytes of one item; they are looked at only
    where the bound is on. An item is a page, or one of the `per_page` tokens of one. A call takes the next
    items of every buffer, as many of each as the bound has pages; no item is cut.
    """
    most = limit(manager) * per_page
    if most <= 0:
        return manager._transfer_data(session, blocks)
    parts = [_parts(own, size, most) for own, size in layers]
    for call in zip_longest(*parts, fillvalue=()):
        status = manager._transfer_data(session, [block for part in call for block in part])
        if status != 0:
            return status
    return 0


def send_slices(
    manager: Any, session: str, sources: list[int], targets: list[int], lengths: list[int], per_page: int
) -> Any:
    """Send the slices of one buffer, `per_page` to a page; statuses as in `send_blocks`.

    The lists are cut between pages, so every slice keeps the addresses that the engine gave it.
    """
    transfer = manager.engine.batch_transfer_sync
    most = limit(manager) * per_page
    if most <= 0:
        return transfer(session, sources, targets, lengths)
    for start in range(0, len(sources), most):
        part = slice(start, start + most)
        status = transfer(session, sources[part], targets[part], lengths[part])
        if status != 0:
            return status
    return 0


def pages_of(source: int, target: int, size: int, pages: Any, targets: Any) -> tuple[list[Block], int]:
    """The blocks of one buffer whose pages have `size` bytes, with that size: a layer of `send_blocks`."""
    runs = _runs(pages, targets)
    blocks = [(source + here * size, target + there * size, count * size) for here, there, count in runs]
    return blocks, size


def limit(manager: Any) -> int:
    """The bound in pages, read once for each manager; 0 for none, or for a value that is no number.

    Releases from 0.5.20 on read the variable themselves, and what they made of it holds.
    """
    if _KEPT not in manager.__dict__:
        own = getattr(manager, "max_transfer_batch_indices", None)
        manager.__dict__[_KEPT] = max(0, _read() if own is None else int(own))
    return int(manager.__dict__[_KEPT])


def _read() -> int:
    text = os.environ.get(_VARIABLE)
    if text is None:
        return 0
    try:
        return int(text)
    except ValueError:
        warnings.warn(f"{_VARIABLE} is no number: {text!r}. Transfers are not bounded.", stacklevel=2)
        return 0


def _parts(blocks: Sequence[Block], size: int, most: int) -> Iterator[list[Block]]:
    """`blocks` in parts of at most `most` items of `size` bytes; a block is cut between items only."""
    size = max(1, size)
    part: list[Block] = []
    room = most
    for source, target, length in blocks:
        done = 0
        while True:
            taken = min(length - done, room * size)
            part.append((source + done, target + done, taken))
            done += taken
            room -= -(-taken // size)
            if room == 0:
                yield part
                part, room = [], most
            if done >= length:
                break
    if part:
        yield part


def _runs(pages: Any, targets: Any) -> list[tuple[int, int, int]]:
    """(first page here, first page there, how many) of every stretch that is contiguous on both sides."""
    from sglang.srt.disaggregation.common.utils import group_concurrent_contiguous

    here, there = group_concurrent_contiguous(pages, targets)
    return [(int(a[0]), int(b[0]), len(a)) for a, b in zip(here, there, strict=True)]
