"""The lifetime backports on real releases: they apply, are found, and are found only when whole."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pdguard.facts.derived import derive_engine
from pdguard.facts.fixes import add_fix_facts
from pdguard.facts.history import OLD_FORMAT
from pdguard.facts.interface import Grade, Subject, Value
from pdguard.fingerprint.model import FixFinding, State
from pdguard.harden.edits import edit
from pdguard.harden.loader import load_backports, load_payload
from pdguard.harden.model import PAYLOAD_FOLDER, Backport
from tests.facts.build import DEFAULTS
from tests.fingerprint.trees import CATALOGUE, Tree, catalogue, original

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(600)]

BASES = ("0.5.19", "0.5.20", "0.5.21")
COMMON = "srt/disaggregation/common/conn.py"
MOONCAKE = "srt/disaggregation/mooncake/conn.py"
NIXL = "srt/disaggregation/nixl/conn.py"
DECODE = "srt/disaggregation/decode.py"
SCHEDULER = "srt/managers/scheduler.py"
OUTCOMES = f"{PAYLOAD_FOLDER}/outcomes.py"

LIFETIME = ("37077", "40645", "41128", "41402", "41404", "41618", "43719", "X3")
OWN = {
    "0.5.19": LIFETIME,
    "0.5.20": LIFETIME,
    "0.5.21": ("37077", "41128", "43719", "X3"),
}
UNDISTURBED = ("27372", "35049", "35281", "35360")


def backports(base: str) -> list[Backport]:
    return [b for b in load_backports(CATALOGUE) if b.base == base]


@functools.cache
def hardened(base: str) -> Tree:
    """The release with every backport for it."""
    chosen = backports(base)
    names = {seam.file for backport in chosen for seam in backport.seams}
    texts = {name: text for name in names if (text := original(base, name)) is not None}
    edited, refused = edit(texts, chosen, "pdguard")
    assert refused == ()
    files = {one.file: one.after for one in edited}
    return Tree(base, files | {f"{PAYLOAD_FOLDER}/{n}": t for n, t in load_payload(CATALOGUE).items()})


@functools.cache
def found(base: str) -> Mapping[str, FixFinding]:
    return hardened(base).find(*catalogue())


@pytest.mark.parametrize("base", BASES)
def test_which_fixes_there_are_for_a_base(base: str) -> None:
    mine = {b.fix: b for b in backports(base) if b.fix in LIFETIME}
    assert tuple(sorted(mine)) == tuple(sorted(OWN[base]))
    assert [fix for fix, b in mine.items() if b.partial] == ["37077"]


@pytest.mark.parametrize("base", BASES)
def test_the_catalogue_finds_every_one(base: str) -> None:
    for one in OWN[base]:
        told = [(p.part, p.state, p.why) for p in found(base)[one].parts]
        expected = State.PARTIAL if one == "37077" else State.PRESENT
        assert found(base)[one].state is expected, (one, told)
    for one in UNDISTURBED:
        assert found(base)[one].state is State.PRESENT, one
    assert all(f.state is not State.UNKNOWN for f in found(base).values())


@pytest.mark.parametrize("base", BASES)
def test_of_37077_the_ways_past_the_acknowledgement_are_closed_and_no_more(
    base: str,
) -> None:
    """NIXL's by its own backport, MORI's by X2; the wire stays as it is."""
    finding = found(base)["37077"]
    by_backend = {p.part: p.state for p in finding.parts}
    own = ("NIXL", "MORI")
    assert {s for n, s in by_backend.items() if n.startswith(own)} == {State.PRESENT}
    assert {s for n, s in by_backend.items() if not n.startswith(own)} == {State.ABSENT}
    assert finding.backends["nixl"] is State.PARTIAL
    assert finding.backends["mooncake"] is State.ABSENT


@pytest.mark.parametrize("backend", ["mooncake", "nixl"])
@pytest.mark.parametrize("base", BASES)
def test_what_follows_for_a_hardened_engine(base: str, backend: str) -> None:
    subject = Subject("engine", "d0")
    subject.facts.add("version", base, Grade.CLAIMED, "http", "version")
    given: Mapping[str, Value] = {**DEFAULTS, "role": "decode", "backend": backend, "tp_size": 2}
    for name, value in {**given, "hold_setting": True, "t_hold_kind": "finite"}.items():
        subject.facts.add(name, value, Grade.CONFIGURED, "http", name)
    add_fix_facts(subject.facts, list(found(base).values()))
    derive_engine(subject.facts)
    names = ("ack_format", "ack_kept", "ack_every_rank", "early_ack", "hold_scope", "fake_receiver_fault")
    assert {name: subject.facts.value(name) for name in names} == {
        "ack_format": OLD_FORMAT,
        "ack_kept": True,
        "ack_every_rank": True,
        "early_ack": False,
        "hold_scope": "every failure",
        "fake_receiver_fault": False,
    }


@pytest.mark.parametrize("base", BASES)
def test_no_frame_of_a_message_is_touched(base: str) -> None:
    """Hardened and stock engines of these releases go on talking to each other."""
    for file in (COMMON, MOONCAKE, NIXL):
        stock, text = original(base, file), hardened(base).text(file)
        assert stock is not None
        assert text is not None
        assert messages(stock) == messages(text)


def messages(text: str) -> list[str]:
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and "send_multipart" in ast.unparse(node.func)
    ]


@pytest.mark.parametrize("base", BASES)
def test_edits_are_few(base: str) -> None:
    """Logic lives in the payload; what is put into the engine calls it."""
    mine = [s for b in backports(base) if b.fix in LIFETIME for s in b.seams]
    assert all(len(seam.code.strip().splitlines()) <= 3 for seam in mine)


Edit = Callable[[str], str]


def instead(old: str, new: str, which: int = 0) -> Edit:
    def change(text: str) -> str:
        parts = text.split(old)
        assert len(parts) > which + 1, old
        return old.join(parts[: which + 1]) + new + old.join(parts[which + 1 :])

    return change


def without(line: str, which: int = 0) -> Edit:
    """The statement is gone; `pass` keeps the block whole."""
    return instead(line, "pass", which)


CLEARED = "pdguard_drains.cleared(self.kv_mgr, self.bootstrap_room)"
UNSETTLED = "pdguard_drains.unsettled(self, room_to_be_aborted, room_active)"
STAYS = "if pdguard_drains.stays_over(self, bootstrap_room, status):"
OWE = "pdguard_drains.owe(self, room, decode_ip, decode_port)"
DUE = "waiting = pdguard_drains.due(self, room)"
ARM = "pdguard_holds.arm(self)"
TOLD = "pdguard_holds.told(decode_req.kv_receiver)"
WITHHELD = "if pdguard_drains.withheld(self, room):"
SENT = "pdguard_drains.sent(self, kv_chunk.room, ret)"
BROKE = "pdguard_drains.broke(self, kv_chunk)"
SKIPPED = "pdguard_drains.skipped(self, kv_chunk)"
RELEASED = "pdguard_outcomes.released(self, decode_req, drained)"
LATE_ARM = "receiver.abort()\n"
AGAIN = " " * 20 + "receiver.kv_mgr.register_deferred_abort_room(7)\n"
UNDONE: tuple[tuple[str, str, str, Edit], ...] = (
    ("40645", "0.5.20", COMMON, without(CLEARED)),
    ("40645", "0.5.20", COMMON, instead(CLEARED, f"if 0: {CLEARED}")),
    ("40645", "0.5.20", MOONCAKE, instead(UNSETTLED, "room_active")),
    ("40645", "0.5.20", MOONCAKE, instead(UNSETTLED, f"not {UNSETTLED}")),
    ("40645", "0.5.20", MOONCAKE, instead(UNSETTLED, UNSETTLED.replace("room_active", "False"))),
    ("40645", "0.5.19", COMMON, instead(STAYS, STAYS.replace("if ", "if not "))),
    ("40645", "0.5.19", COMMON, instead(STAYS, "if False:")),
    ("41402", "0.5.20", COMMON, without(OWE)),
    ("41402", "0.5.20", COMMON, instead(DUE, f"{DUE}[:1]")),
    ("41402", "0.5.20", COMMON, instead("in waiting:", "in waiting[:1]:")),
    ("41402", "0.5.20", COMMON, without(ARM)),
    ("41402", "0.5.20", COMMON, instead(ARM, f"if self.init_time: {ARM}")),
    (
        "41402",
        "0.5.20",
        SCHEDULER,
        instead(LATE_ARM, LATE_ARM + AGAIN, 1),
    ),
    ("41404", "0.5.20", DECODE, instead(TOLD, "decode_req.kv_receiver.abort_notified")),
    ("41404", "0.5.20", DECODE, instead(TOLD, f"not {TOLD}")),
    ("41404", "0.5.19", DECODE, instead(f"and {TOLD}", f"or {TOLD}")),
    ("41404", "0.5.20", COMMON, without("pdguard_holds.notify(self)")),
    ("43719", "0.5.20", COMMON, instead(WITHHELD, WITHHELD.replace("if ", "if not "))),
    ("43719", "0.5.21", COMMON, instead(WITHHELD, "if False:")),
    ("43719", "0.5.20", MOONCAKE, without(SENT)),
    ("43719", "0.5.20", MOONCAKE, without(SENT, 1)),
    ("43719", "0.5.21", MOONCAKE, instead(SENT, SENT.replace("ret)", "0)"))),
    ("43719", "0.5.20", MOONCAKE, without(SENT.replace("ret)", "state_rc)"))),
    ("43719", "0.5.20", MOONCAKE, without(SKIPPED)),
    ("43719", "0.5.20", MOONCAKE, without('pdguard_drains.broke(self, locals().get("kv_chunk"))')),
    ("X3", "0.5.20", NIXL, without(BROKE)),
    ("X3", "0.5.19", NIXL, instead(BROKE, f"if handles: {BROKE}")),
    ("X3", "0.5.21", COMMON, instead(WITHHELD, WITHHELD.replace("if ", "if not "))),
    ("41128", "0.5.20", DECODE, without(RELEASED)),
    ("41128", "0.5.20", DECODE, without("pdguard_outcomes.failed(self, decode_req)")),
    ("41128", "0.5.21", OUTCOMES, instead("self._ends.labels(", "self._ends.other(")),
)


@pytest.mark.parametrize(("one", "base", "file", "change"), UNDONE)
def test_a_seam_that_is_undone_is_not_found(one: str, base: str, file: str, change: Edit) -> None:
    tree = hardened(base).edited(file, change)
    assert tree.find(one)[one].state is not State.PRESENT


@pytest.mark.parametrize("which", [0, 1, 2])
def test_each_of_nixl_s_ways_counts(which: int) -> None:
    tree = hardened("0.5.20").edited(NIXL, without(SKIPPED, which))
    parts = {p.state for p in tree.find("37077")["37077"].parts if p.part.startswith("NIXL")}
    assert parts != {State.PRESENT}


def test_an_edited_tree_is_refused_where_the_statement_is_not_the_known_one() -> None:
    base, known = "0.5.20", "target = self._deferred_ack_targets.pop(room, None)"
    text = original(base, COMMON)
    assert text is not None
    assert known in text
    chosen = [b for b in backports(base) if b.fix == "41402"]
    texts = {COMMON: text.replace(known, known.replace(".pop(room, None)", "[room]"))}
    texts[SCHEDULER] = original(base, SCHEDULER) or ""
    edited, refused = edit(texts, chosen, "pdguard")
    assert edited == ()
    assert [r.seam for r in refused] == ["those who wait"]
    assert Path(refused[0].file).name == "conn.py"
