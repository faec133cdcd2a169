"""A refused request at the door: retired once, answered with its own error, and only if it holds nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.remediations.engine import Abort, Log, request
from tests.remediations.payload import payload

pytestmark = pytest.mark.usefixtures("engine")


def scheduler(log: Log, **more: Any) -> Any:
    return SimpleNamespace(
        beam_coordinator=SimpleNamespace(retire_group=lambda req: log.append(("beam", req.rid))),
        enable_hicache_storage=False,
        tree_cache=SimpleNamespace(release_aborted_request=lambda rid: log.append(("prefetch", rid))),
        output_streamer=SimpleNamespace(
            stream_output=lambda reqs, logprobs: log.append(("answer", reqs[0].finished_reason.message))
        ),
        **more,
    )


def refused(log: Log, **more: Any) -> Any:
    return request(log, to_finish=Abort("too long"), **more)


def test_a_refused_request_is_answered_with_its_own_error_and_goes_no_further() -> None:
    log: Log = []
    req = refused(log)
    assert payload("doors").refuse(scheduler(log), req) is True
    assert log == [("beam", "r1"), ("trace", "too long"), ("answer", "too long")]
    assert req.finished_reason.message == "too long"
    assert req.to_finish is None


def test_the_end_that_a_request_already_has_is_what_the_client_gets() -> None:
    log: Log = []
    assert payload("doors").refuse(scheduler(log), request(log, finished_reason=Abort("no such session")))
    assert log[-2:] == [("trace", "no such session"), ("answer", "no such session")]


def test_a_request_that_was_not_refused_goes_on_untouched() -> None:
    log: Log = []
    for req in (request(log), request(log, to_finish=SimpleNamespace(message="length"))):
        assert payload("doors").refuse(scheduler(log), req) is False
    assert log == []


@pytest.mark.parametrize(
    "held",
    [
        {"is_retracted": True},
        {"metadata_buffer_index": 0},
        {"holds_kv": True},
        {"holds_mamba": True},
        {"retraction_backup": object()},
    ],
    ids=lambda held: next(iter(held)),
)
def test_a_request_that_comes_back_is_left_to_its_queue(held: dict[str, Any]) -> None:
    log: Log = []
    assert payload("doors").refuse(scheduler(log), refused(log, **held)) is False
    assert log == []


def test_the_callers_word_that_it_comes_back_counts() -> None:
    log: Log = []
    assert payload("doors").refuse(scheduler(log), refused(log), True) is False
    assert log == []


def test_a_streaming_session_is_free_for_its_next_request() -> None:
    log: Log = []
    session = SimpleNamespace(streaming=True, abort_req=lambda: log.append(("session", "free")))
    req = refused(log, session=session)
    assert payload("doors").refuse(scheduler(log), req)
    assert log[0] == ("session", "free")
    assert req.session is None


def test_a_session_that_does_not_stream_keeps_its_request() -> None:
    log: Log = []
    session = SimpleNamespace(streaming=False)
    req = refused(log, session=session)
    assert payload("doors").refuse(scheduler(log), req)
    assert req.session is session


def test_a_read_from_storage_is_taken_back_where_there_may_be_one() -> None:
    log: Log = []
    owner = scheduler(log)
    owner.enable_hicache_storage = True
    assert payload("doors").refuse(owner, refused(log))
    assert ("prefetch", "r1") in log


def test_an_engine_with_its_own_way_to_take_it_back_uses_that() -> None:
    log: Log = []
    owner = scheduler(log, _release_aborted_request=lambda req: log.append(("released", req.rid)))
    owner.enable_hicache_storage = True
    assert payload("doors").refuse(owner, refused(log))
    assert ("released", "r1") in log
    assert ("prefetch", "r1") not in log
