"""Ranks that go through many turns: all hold the same after each, and nothing goes before all may."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.remediations.ranks import World
from tests.remediations.test_payload_agree import (
    Manager,
    Receiver,
    _torch,  # noqa: F401 - a fixture of this module too
    agree,
    holds,
)

HOLD = 10.0
Turn = tuple[list[bool], list[int], list[float]]
"""Which ranks met prefill in a transfer that fails now (none: empty), acknowledgements that arrive, times."""


class Rank:
    """As much of a scheduler as hangs on the agreement: it fails transfers, holds, releases."""

    def __init__(self, world: World, longer: bool) -> None:
        self.manager, self.now, self.longer = Manager(), 0.0, longer
        self.queue: Any = SimpleNamespace(
            gloo_group=world, enable_deferred_kv_release=True, _deferred_releases=[]
        )

    def turn(self, failed: list[tuple[str, bool]]) -> tuple[list[str], list[str]]:
        """What was released in this turn after a hold, and what at once."""
        held = self.queue._deferred_releases
        go: list[bool] = list(agree.ready(self.queue, self.now)) if held else []
        released = [e[0].req.bootstrap_room for e, one in zip(held, go, strict=True) if one]
        self.queue._deferred_releases = [e for e, one in zip(held, go, strict=True) if not one]
        at_once = []
        for room, met in failed:
            receiver = Receiver(self.manager, ("one",) if met else None)
            receiver.bootstrap_room = room
            decode_req = SimpleNamespace(kv_receiver=receiver, req=SimpleNamespace(bootstrap_room=room))
            agree.settle(self.queue, decode_req)
            if holds.told(receiver):
                start = (self.now,) if self.longer else ()
                entry = (decode_req, *start, self.now + HOLD, 7, agree.required(receiver))
                self.queue._deferred_releases.append(entry)
            else:
                at_once.append(room)
        return released, at_once

    def rooms(self) -> list[str]:
        return [entry[0].req.bootstrap_room for entry in self.queue._deferred_releases]


@given(data=st.data(), size=st.integers(1, 3), longer=st.booleans())
@settings(max_examples=40, deadline=None)
def test_turn_by_turn_the_ranks_stay_one(data: st.DataObject, size: int, longer: bool) -> None:
    world = World(size)
    ranks = [Rank(world, longer) for _ in range(size)]
    met: dict[str, list[bool]] = {}
    since: dict[str, list[float]] = {}
    for number in range(data.draw(st.integers(1, 6))):
        for rank in ranks:
            rank.now += data.draw(st.sampled_from([0.0, 1.0, HOLD, 3 * HOLD]))
            for room in rank.rooms():
                if room in rank.manager.acks and data.draw(st.booleans()):
                    rank.manager.acks[room] = 1
        before = ranks[0].rooms()
        may = [
            room
            for room in before
            if all(
                not met[room][place] or rank.manager.acks[room] == 1 or rank.now >= since[room][place] + HOLD
                for place, rank in enumerate(ranks)
            )
        ]
        failed = [f"{number}-{one}" for one in range(data.draw(st.integers(0, 2)))]
        for room in failed:
            met[room] = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
            since[room] = [rank.now for rank in ranks]
        entered = len(world.entered)
        found = world.run(
            *(
                lambda rank=rank, place=place, failed=failed: rank.turn(
                    [(room, met[room][place]) for room in failed]
                )
                for place, rank in enumerate(ranks)
            )
        )
        gone = [room for room in failed if not any(met[room])]
        assert found == [(may, gone)] * size
        stay = [room for room in before if room not in may] + [r for r in failed if r not in gone]
        assert [rank.rooms() for rank in ranks] == [stay] * size
        wanted = (1 if before else 0) + len(failed)
        assert len(world.entered) - entered == (wanted if size > 1 else 0)
