"""Fix 32758: one synchronous call of Mooncake carries a bounded number of pages.

A call that outlives the hold of decode writes into pages that have a new owner. The bound is off by default
and set by SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES, as in the releases that have it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

_VARIABLE = "SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES"
_KEPT = "_pdguard_max_transfer_batch_indices"

Layers = Sequence["tuple[int, int, int]"]
"""(first address here, first address there, bytes of a page) of every buffer."""


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


def limit(manager: Any) -> int:
    """The bound in pages, read once for each manager; 0 for none, or for a value that is no number."""
    if _KEPT not in manager.__dict__:
        manager.__dict__[_KEPT] = _read()
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


def _runs(pages: Any, targets: Any) -> list[tuple[int, int, int]]:
    """(first page here, first page there, how many) of every stretch that is contiguous on both sides."""
    from sglang.srt.disaggregation.common.utils import group_concurrent_contiguous

    here, there = group_concurrent_contiguous(pages, targets)
    return [(int(a[0]), int(b[0]), len(a)) for a, b in zip(here, there, strict=True)]
