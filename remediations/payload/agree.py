"""Fix X1: all ranks of decode hold a failed transfer, or none does, and all release it in the same pass.

What a rank has told prefill, which acknowledgements it has and what its clock says is known to it alone.
Ranks that released by that alone would admit different requests, and wait for each other in different
collectives.

Every rank meets the same failed transfers and the same held ones, in the same order: their states were agreed
before, holds begin and end only as agreed here. So a rank is in a collective here when all others are; with
nothing to agree on there is none.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from .holds import told
from .state import holds


def settle(queue: Any, decode_req: Any) -> None:
    """Agree on whether a failed transfer is held, before the engine decides; `holds.told` then says so."""
    receiver = decode_req.kv_receiver
    if queue.enable_deferred_kv_release and holds(receiver.kv_mgr):
        receiver.__dict__["_pdguard_all_hold"] = one_holds(queue, told(receiver))


def one_holds(queue: Any, mine: Any) -> bool:
    """Whether any rank must hold; then this one keeps its pages too: all have the same to give away."""
    return bool(reduced(queue, [bool(mine)], "MAX")[0])


def required(receiver: Any) -> int:
    """How many acknowledgements this rank waits for: none where it holds for another rank alone."""
    return len(receiver.bootstrap_infos) if receiver.abort_notified else 0


def ready(queue: Any, now: float) -> Iterator[bool]:
    """For each held request, in their order, whether every rank may release it: acknowledged, or out of time.

    What was received into host memory is left out: the engine agrees on that itself.
    """
    flags = []
    for entry in queue._deferred_releases:
        # The times are before the last two, of which the first releases have one and later ones two.
        decode_req, deadline, acks = entry[0], entry[-3], entry[-1]
        if getattr(queue, "enable_host_receive", False) and decode_req.host_staged:
            continue
        manager = decode_req.kv_receiver.kv_mgr
        flags.append(
            bool(manager.is_abort_release_safe(decode_req.req.bootstrap_room, acks)) or now >= deadline
        )
    return iter([bool(flag) for flag in reduced(queue, flags, "MIN")])


def reduced(queue: Any, values: Sequence[int], how: str) -> list[int]:
    """The least or most (`how`: MIN, MAX) of each value over all ranks; one alone enters no collective."""
    torch: Any = importlib.import_module("torch")
    distributed = torch.distributed
    if not values or distributed.get_world_size(queue.gloo_group) == 1:
        return list(values)
    said = torch.tensor([int(value) for value in values], dtype=torch.uint8, device="cpu")
    distributed.all_reduce(said, op=getattr(distributed.ReduceOp, how), group=queue.gloo_group)
    found: list[int] = said.tolist()
    return found
