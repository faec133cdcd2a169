"""The result of an aborted prefill: dropped, everything given back once, client and decode told."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tests.remediations.engine import Abort, KVPoll, Log, request
from tests.remediations.payload import payload

pytestmark = pytest.mark.usefixtures("engine")

ROOM = 7


def scheduler(log: Log, hicache: bool = False) -> Any:
    return SimpleNamespace(
        clear_pending_chunk_send=lambda req: log.append(("cleared", req.rid)),
        req_to_metadata_buffer_idx_allocator="slots",
        tree_cache=SimpleNamespace(release_aborted_request=lambda rid: log.append(("prefetch", rid))),
        enable_hicache_storage=hicache,
        output_streamer=SimpleNamespace(
            stream_output=lambda reqs, logprobs: log.append(
                ("answer", reqs[0].finished_reason.message, logprobs)
            )
        ),
    )


class Manager:
    """Mooncake's manager as far as a closed transfer goes."""

    def __init__(self, log: Log, outstanding: int = 0, status: int | None = KVPoll.Transferring) -> None:
        self.log = log
        self.request_status = {} if status is None else {ROOM: status}
        self._staging_outstanding = {ROOM: outstanding}
        self.attn_tp_rank, self.pp_rank, self.pp_size, self.attn_cp_rank, self.attn_cp_size = 2, 1, 3, 1, 2
        self.transfer_infos = {
            ROOM: {
                "a": SimpleNamespace(endpoint="10.0.0.5", dst_port=81, is_dummy=False),
                "b": SimpleNamespace(endpoint="10.0.0.6", dst_port=82, is_dummy=True),
            }
        }

    def check_status(self, room: int) -> int:
        return self.request_status[room]

    def sync_status_to_decode_endpoint(self, *what: Any) -> None:
        self.log.append(("told", *what))


def sender(log: Log, manager: Any = None, fails: bool = False) -> Any:
    def abort() -> None:
        log.append(("aborted",))
        if fails:
            raise OSError("gone")
        if isinstance(manager, Manager):
            manager.request_status[ROOM] = KVPoll.Failed

    return SimpleNamespace(abort=abort, kv_mgr=manager, bootstrap_room=ROOM)


def aborted(log: Log, **more: Any) -> Any:
    state = {
        "to_finish": Abort("gone"),
        "holds_kv": True,
        "metadata_buffer_index": 3,
        "pending_bootstrap": True,
    }
    return request(log, **(state | {"disagg_kv_sender": sender(log)} | more))


def test_a_good_result_is_left_alone() -> None:
    log: Log = []
    assert payload("results").drop(scheduler(log), request(log, holds_kv=True)) is False
    assert log == []


def test_an_aborted_result_is_dropped_and_everything_is_given_back() -> None:
    log: Log = []
    req = aborted(log)
    owner = scheduler(log)
    assert payload("results").drop(owner, req) is True
    assert log == [
        ("cleared", "r1"),
        ("aborted",),
        ("slot", "slots", 3),
        ("pages", owner.tree_cache, False),
        ("completed",),
        ("answer", "gone", False),
    ]
    assert req.pending_bootstrap is False


def test_a_second_result_of_it_gives_nothing_back_again() -> None:
    log: Log = []
    req = aborted(log)
    owner = scheduler(log)
    payload("results").drop(owner, req)
    before = len(log)
    assert payload("results").drop(owner, req) is True
    assert log[before:] == [("cleared", "r1")]


def test_while_a_later_chunk_runs_its_pages_stay() -> None:
    log: Log = []
    req = aborted(log)
    assert payload("results").drop(scheduler(log), req, True) is True
    assert log == [("cleared", "r1")]
    assert req.kv.holds_kv


@pytest.mark.parametrize("held", [{"holds_kv": True}, {"holds_mamba": True}, {"metadata_buffer_index": 0}])
def test_whatever_it_holds_is_released_and_the_client_answered(held: dict[str, Any]) -> None:
    log: Log = []
    nothing = {"holds_kv": False, "metadata_buffer_index": -1}
    req = aborted(log, **(nothing | held), return_logprob=True)
    assert payload("results").drop(scheduler(log), req)
    assert log[-1] == ("answer", "gone", True)
    assert not req.kv.holds_kv
    assert not req.kv.holds_mamba
    assert req.metadata_buffer_index == -1


def test_a_read_from_storage_is_taken_back_before_the_pages_go() -> None:
    log: Log = []
    payload("results").drop(scheduler(log, hicache=True), aborted(log))
    words = [entry[0] for entry in log]
    assert words.index("prefetch") < words.index("pages")


def test_a_transfer_that_cannot_be_closed_keeps_no_pages(caplog: pytest.LogCaptureFixture) -> None:
    log: Log = []
    with caplog.at_level(logging.ERROR):
        assert payload("results").drop(scheduler(log), aborted(log, disagg_kv_sender=sender(log, fails=True)))
    assert [entry[0] for entry in log[-3:]] == ["pages", "completed", "answer"]
    assert "r1" in caplog.text


def test_a_request_without_a_sender_is_released_too() -> None:
    log: Log = []
    assert payload("results").drop(scheduler(log), aborted(log, disagg_kv_sender=None))
    assert ("answer", "gone", False) in log


def told(manager: Manager, log: Log) -> list[Any]:
    payload("results").drop(scheduler(log), aborted(log, disagg_kv_sender=sender(log, manager)))
    return [entry[1:] for entry in log if entry[0] == "told"]


def test_decode_is_told_that_nothing_will_come() -> None:
    log: Log = []
    assert told(Manager(log), log) == [("10.0.0.5", 81, ROOM, KVPoll.Failed, 15)]


@pytest.mark.parametrize(
    "case",
    [{"outstanding": 1}, {"status": KVPoll.Failed}, {"status": None}],
    ids=["a write is under way", "it knows already", "the room is closed"],
)
def test_decode_is_not_told_when(case: dict[str, Any]) -> None:
    log: Log = []
    assert told(Manager(log, **case), log) == []
    assert ("answer", "gone", False) in log
