"""Ascend's layers: where a hold counts on it, a failure is told when nothing is written any more."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from tests.remediations.payload import payload

pytestmark = pytest.mark.usefixtures("engine")


def manager(hold: bool) -> Any:
    return SimpleNamespace(enable_deferred_decode_kv_release=hold)


def done(status: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(status, BaseException):
        future.set_exception(status)
    else:
        future.set_result(status)
    return future


def test_all_layers_written() -> None:
    assert payload("siblings").settled(manager(True), [done(0), done(0)]) == 0
    assert payload("siblings").settled(manager(True), []) == 0


@pytest.mark.parametrize("trouble", [-5, RuntimeError("the device is gone")])
def test_a_failure_waits_for_the_layer_that_is_still_written(trouble: Any) -> None:
    release, told = threading.Event(), threading.Event()
    found: list[Any] = []
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(release.wait, 30)

        def ask() -> None:
            try:
                found.append(payload("siblings").settled(manager(True), [done(trouble), writing]))
            except RuntimeError as error:
                found.append(error)
            told.set()

        thread = threading.Thread(target=ask)
        thread.start()
        assert not told.wait(0.2)
        release.set()
        thread.join(30)
    assert found == [trouble]


def test_layers_that_have_not_begun_are_called_off() -> None:
    release = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(release.wait, 30)
        waiting = pool.submit(pytest.fail, "a layer is begun after a failure")
        threading.Timer(0.1, release.set).start()
        assert payload("siblings").settled(manager(True), [done(-5), writing, waiting]) == -5
    assert waiting.cancelled()


def test_the_first_failure_is_the_one_that_is_told() -> None:
    assert payload("siblings").settled(manager(True), [done(0), done(-5), done(0)]) == -5


def test_without_a_hold_nobody_waits() -> None:
    writing: Future[Any] = Future()
    writing.set_running_or_notify_cancel()
    assert payload("siblings").settled(manager(False), [done(-5), writing]) == -5
    assert not writing.done()
