"""Ranks in threads, and torch as far as the payload needs it to agree among them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

Values = list[int]


@dataclass
class World:
    """Ranks in threads; a collective that not all of them enter breaks for those that did."""

    size: int
    entered: list[tuple[str, int]] = field(default_factory=list)
    """The collectives that came about: what was asked, and of how many."""

    def __post_init__(self) -> None:
        self._barrier = threading.Barrier(self.size)
        self._said: dict[int, tuple[str, Values]] = {}

    def all_reduce(self, values: Values, op: str) -> Values:
        self._said[threading.get_ident()] = (op, list(values))
        first = self._barrier.wait(1) == 0
        said = list(self._said.values())
        assert len({(how, len(one)) for how, one in said}) == 1, "the ranks speak of different things"
        if first:
            self.entered.append((op, len(values)))
        self._barrier.wait(1)
        self._said.pop(threading.get_ident())
        self._barrier.wait(1)
        choose = min if op == "MIN" else max
        return [choose(column) for column in zip(*(one for _, one in said), strict=True)]

    def run(self, *work: Callable[[], Any]) -> list[Any]:
        """What every rank comes to; the first error of any."""
        found: list[Any] = [None] * len(work)

        def one(rank: int) -> None:
            try:
                found[rank] = work[rank]()
            except Exception as error:  # noqa: BLE001 - raised again below
                found[rank] = error

        threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(len(work))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5)
        for value in found:
            if isinstance(value, Exception):
                raise value
        return found


@dataclass
class Tensor:
    values: Values

    def tolist(self) -> Values:
        return list(self.values)


def torch(**more: Any) -> dict[str, ModuleType]:
    """What stands for torch in `sys.modules`; a process group is a World."""
    module, distributed = ModuleType("torch"), ModuleType("torch.distributed")

    def all_reduce(tensor: Tensor, op: str, group: World) -> None:
        tensor.values = group.all_reduce(tensor.values, op)

    def tensor(values: Values, dtype: str, device: str) -> Tensor:
        assert (dtype, device) == ("uint8", "cpu")
        return Tensor(list(values))

    module.__dict__.update(tensor=tensor, uint8="uint8", distributed=distributed, **more)
    distributed.__dict__.update(
        get_world_size=lambda group: group.size,
        all_reduce=all_reduce,
        ReduceOp=SimpleNamespace(MIN="MIN", MAX="MAX"),
    )
    return {one.__name__: one for one in (module, distributed)}
