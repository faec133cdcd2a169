"""X6 on real releases: it applies alone and with all the others, is found, and is found only when whole."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable

import pytest

from pdguard.fingerprint.model import State
from pdguard.harden.edits import edit
from pdguard.harden.loader import load_backports, load_payload
from pdguard.harden.model import PAYLOAD_FOLDER, Backport
from tests.fingerprint.trees import CATALOGUE, Tree, catalogue, original

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(600)]

BASES = ("0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
COMMON = "srt/disaggregation/common/conn.py"
MOONCAKE = "srt/disaggregation/mooncake/conn.py"
NIXL = "srt/disaggregation/nixl/conn.py"
PREFILL = "srt/disaggregation/prefill.py"
DECODE = "srt/disaggregation/decode.py"
SCHEDULER = "srt/managers/scheduler.py"
REFUSALS, ERRANDS, ANSWERS = (f"{PAYLOAD_FOLDER}/{one}.py" for one in ("refusals", "errands", "answers"))
NEEDED = {"0.5.19": {"38935"}, "0.5.20": {"38935"}}


def backports(base: str) -> list[Backport]:
    return [b for b in load_backports(CATALOGUE) if b.base == base]


def alone(base: str) -> frozenset[str]:
    return frozenset({"X6", *NEEDED.get(base, ())})


def everything(base: str) -> frozenset[str]:
    return frozenset(b.fix for b in backports(base))


@functools.cache
def hardened(base: str, fixes: frozenset[str]) -> Tree:
    chosen = [b for b in backports(base) if b.fix in fixes]
    names = {seam.file for backport in chosen for seam in backport.seams}
    texts = {name: text for name in names if (text := original(base, name)) is not None}
    edited, refused = edit(texts, chosen, "pdguard")
    assert refused == ()
    for one in edited:
        ast.parse(one.after)
    files = {one.file: one.after for one in edited}
    return Tree(base, files | {f"{PAYLOAD_FOLDER}/{n}": t for n, t in load_payload(CATALOGUE).items()})


@pytest.mark.parametrize("base", BASES)
def test_a_release_is_without_it(base: str) -> None:
    finding = Tree(base).find("X6")["X6"]
    assert finding.state is State.ABSENT
    assert set(finding.backends.values()) == {State.ABSENT}


@pytest.mark.parametrize("base", BASES)
def test_it_is_found_alone_and_among_all_others(base: str) -> None:
    (mine,) = [b for b in backports(base) if b.fix == "X6"]
    assert set(mine.requires) == NEEDED.get(base, set())
    for fixes in (alone(base), everything(base)):
        finding = hardened(base, fixes).find("X6")["X6"]
        told = [(p.part, p.state, p.why) for p in finding.parts if p.state is not State.PRESENT]
        assert finding.state is State.PRESENT, told
        assert set(finding.backends.values()) == {State.PRESENT}


@pytest.mark.parametrize("base", BASES)
def test_no_other_fix_is_disturbed(base: str) -> None:
    with_it = hardened(base, everything(base)).find(*catalogue())
    without_it = hardened(base, everything(base) - {"X6"}).find(*catalogue())
    different = {
        one: (without_it[one].state, with_it[one].state)
        for one in catalogue()
        if with_it[one].state is not without_it[one].state
    }
    assert set(different) == {"X6"}


@pytest.mark.parametrize("base", BASES)
def test_no_frame_of_the_engine_s_messages_is_touched(base: str) -> None:
    for file in (COMMON, MOONCAKE, NIXL):
        stock, text = original(base, file), hardened(base, alone(base)).text(file)
        assert stock is not None
        assert text is not None
        assert messages(stock) == messages(text)


def messages(text: str) -> list[str]:
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and "send_multipart" in ast.unparse(node.func)
    ]


Edit = Callable[[str], str]


def instead(old: str, new: str) -> Edit:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return change


def without(old: str) -> Edit:
    """The statement is gone; `pass` keeps the block whole."""
    return instead(old, "pass")


MET = "pdguard_refusals.met(self, req)"
HEARD = "if pdguard_refusals.heard(self, waiting_req_bytes):"
ASKS = "pdguard_refusals.bootstrapped(self, room)"
AS_BEFORE = "self.update_status(room, KVPoll.WaitingForInput)"
FITS = "pdguard_refusals.over_capacity(self, req, self._check_if_req_exceed_kv_capacity(req))"
PREFILL_DOOR = "pdguard_refusals.at_prefill(self.disagg_prefill_bootstrap_queue, req)"
DECODE_DOOR = "pdguard_errands.at_decode(self.disagg_decode_prealloc_queue, req, is_retracted)"
WHY = "failure_reason = pdguard_answers.reason(status, prefill_rank, failure_reason)"
SEAMS: tuple[tuple[str, Edit], ...] = (
    (SCHEDULER, without(PREFILL_DOOR)),
    (SCHEDULER, instead(PREFILL_DOOR, f"if 0: {PREFILL_DOOR}")),
    (SCHEDULER, without(DECODE_DOOR)),
    (SCHEDULER, instead(DECODE_DOOR, DECODE_DOOR.replace("is_retracted", "True"))),
    (PREFILL, instead(FITS, "self._check_if_req_exceed_kv_capacity(req)")),
    (PREFILL, instead(FITS, f"not {FITS}")),
    (DECODE, instead("pdguard_errands.over_capacity(self, req, ", "bool(")),
    (PREFILL, without(MET)),
    (PREFILL, instead(MET, f"if 0: {MET}")),
    (MOONCAKE, instead(HEARD, HEARD.replace("if ", "if not "))),
    (MOONCAKE, instead(HEARD, "if False:")),
    (MOONCAKE, instead(ASKS, AS_BEFORE)),
    (NIXL, instead(HEARD, "if False:")),
    (NIXL, instead(ASKS, AS_BEFORE)),
    (PREFILL, instead("pdguard_answers.status(error_message)", "HTTPStatus.INTERNAL_SERVER_ERROR")),
    (DECODE, instead("pdguard_answers.ended(self, decode_req, error_message)", "HTTPStatus.BAD_REQUEST")),
    (REFUSALS, without("kept.note(room, HERE, KEPT, reason)")),
    (REFUSALS, instead("or _is_served(kept, room)", "")),
    (REFUSALS, instead("or room in manager.transfer_infos", "")),
    (REFUSALS, without("kept.senders[room] = req.disagg_kv_sender")),
    (REFUSALS, without("answer(manager, room, infos, found.why)")),
    (ERRANDS, without("socket.send_multipart(parts)")),
    (ERRANDS, without("receiver.clear()\n        manager")),
    (ANSWERS, without("_post(manager, address.to_tcp(), address.is_ipv6, parts)")),
)
OWN_TO_A_BASE: tuple[tuple[str, str, Edit], ...] = (
    ("0.5.19", MOONCAKE, without("pdguard_answers.noted(self, bootstrap_room, prefill_rank)")),
    ("0.5.19", NIXL, instead("if pdguard_answers.told(self, msg):", "if False:")),
    (
        "0.5.19",
        NIXL,
        instead(
            "self._start_decode_listener_thread()",
            "if self.enable_staging: self._start_decode_listener_thread()",
        ),
    ),
    ("0.5.20", COMMON, without(WHY)),
    ("0.5.21", COMMON, without(WHY)),
    ("0.5.23", COMMON, instead(WHY, f"if status: {WHY}")),
)
UNDONE = (
    *(("0.5.23", file, change) for file, change in SEAMS),
    *OWN_TO_A_BASE,
)


@pytest.mark.parametrize(("base", "file", "change"), UNDONE)
def test_a_seam_that_is_undone_is_not_found(base: str, file: str, change: Edit) -> None:
    tree = hardened(base, alone(base)).edited(file, change)
    assert tree.find("X6")["X6"].state is not State.PRESENT


NAMES = (
    *((SCHEDULER, "refusals"), (SCHEDULER, "errands"), (PREFILL, "refusals"), (PREFILL, "answers")),
    *((DECODE, "errands"), (DECODE, "answers"), (MOONCAKE, "refusals"), (NIXL, "refusals")),
    (COMMON, "answers"),
)


@pytest.mark.parametrize(("file", "name"), NAMES)
def test_another_module_by_the_payload_s_name_is_not_taken_for_it(file: str, name: str) -> None:
    line = f"from sglang.srt.disaggregation.pdguard import {name} as pdguard_{name}\n"
    other = f"from sglang.other import {name} as pdguard_{name}\n"
    tree = hardened("0.5.23", alone("0.5.23")).edited(file, instead(line, other))
    assert tree.find("X6")["X6"].state is not State.PRESENT
