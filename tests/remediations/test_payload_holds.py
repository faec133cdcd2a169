"""Decode tells prefill once, counts before it tells, and never begins to count again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.remediations.payload import payload

holds = payload("holds")


class Manager:
    def __init__(self, on: bool = True) -> None:
        self.enable_deferred_decode_kv_release = on
        self.log: list[str] = []

    def register_deferred_abort_room(self, room: int) -> None:
        self.log.append(f"count {room}")


class Receiver:
    """The statements around the seams, as a hardened engine has them."""

    bootstrap_room = 5

    def __init__(self, manager: Manager, infos: Any = ("rank",), init_time: float | None = 1.0) -> None:
        self.kv_mgr = manager
        self.abort_notified = False
        self.init_time = init_time
        if infos != "never":
            self.bootstrap_infos = infos

    def _send_abort_notification(self) -> None:
        holds.arm(self)
        self.kv_mgr.log.append("abort")

    def ensure_abort_notified(self) -> None:
        holds.notify(self)


class Fake:
    """Has no address of any prefill, as the engine's fake receiver."""

    def __init__(self, manager: Manager) -> None:
        self.kv_mgr = manager
        self.abort_notified = False

    def ensure_abort_notified(self, **_named: Any) -> None:
        """Nobody to tell."""


@pytest.mark.parametrize("init_time", [1.0, None])
def test_a_failure_is_told_once_and_held(init_time: float | None) -> None:
    """Also where the destination was announced to some ranks only, which leaves init_time unset."""
    manager = Manager()
    receiver = Receiver(manager, init_time=init_time)
    assert holds.told(receiver)
    assert holds.told(receiver)
    assert manager.log == ["count 5", "abort"]


def test_an_abort_of_decode_itself_counts_first_and_is_not_told_again() -> None:
    manager = Manager()
    receiver = Receiver(manager)
    receiver._send_abort_notification()
    receiver.abort_notified = True
    assert holds.told(receiver)
    assert manager.log == ["count 5", "abort"]


def test_a_second_notification_does_not_wipe_the_answers() -> None:
    manager = Manager()
    receiver = Receiver(manager)
    receiver._send_abort_notification()
    receiver._send_abort_notification()
    assert manager.log == ["count 5", "abort", "abort"]


def test_what_was_never_announced_is_not_counted() -> None:
    """It leaves by the other queue, where nothing would end the count."""
    manager = Manager()
    Receiver(manager, init_time=None)._send_abort_notification()
    assert manager.log == ["abort"]


@pytest.mark.parametrize("infos", [None, "never"])
def test_a_receiver_that_met_no_prefill_is_released_at_once(infos: Any) -> None:
    manager = Manager()
    assert not holds.told(Receiver(manager, infos))
    assert manager.log == []


def test_a_fake_receiver_is_released_at_once() -> None:
    manager = Manager()
    assert not holds.told(Fake(manager))
    assert manager.log == []


def test_a_receiver_of_another_kind_is_taken_at_its_word() -> None:
    class Other:
        abort_notified = True

    assert holds.told(Other())


def test_without_the_hold_nothing_is_counted() -> None:
    manager = Manager(on=False)
    Receiver(manager)._send_abort_notification()
    assert manager.log == ["abort"]
