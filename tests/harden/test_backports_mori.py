"""MORI's backport (X2) on real releases: it applies, is found only when whole, and disturbs no other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import pytest

from pdguard.facts.derived import derive_engine
from pdguard.facts.fixes import add_fix_facts
from pdguard.facts.history import NEW_FORMAT, OLD_FORMAT
from pdguard.facts.interface import Grade, Subject, Value
from pdguard.facts.pairing import build_pairs
from pdguard.fingerprint.model import FixFinding, State
from pdguard.harden.edits import edit
from pdguard.harden.loader import load_backports, load_payload
from pdguard.harden.model import PAYLOAD_FOLDER, Backport
from pdguard.harden.selection import choose
from tests.facts.build import DEFAULTS
from tests.fingerprint.trees import CATALOGUE, Tree, catalogue, original
from tests.harden.test_backports_lifetime import Edit, instead, messages, without

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(600)]

OLD = ("0.5.19", "0.5.20", "0.5.21")
BASES = (*OLD, "0.5.22")
COMMON = "srt/disaggregation/common/conn.py"
MORI = "srt/disaggregation/mori/conn.py"


@functools.cache
def stock(base: str) -> Mapping[str, FixFinding]:
    return Tree(base).find(*catalogue())


@functools.cache
def chosen(base: str) -> tuple[Backport, ...]:
    """X2 and what it needs: `pdguard harden --only X2`."""
    of_base = {b.fix: b for b in load_backports(CATALOGUE) if b.base == base}
    picked = choose(list(of_base.values()), list(stock(base).values()), ["X2"], [])
    assert not [c for c in picked if c.action == "refused"]
    return tuple(of_base[c.fix.id] for c in picked if c.action == "apply")


@functools.cache
def hardened(base: str) -> Tree:
    names = {seam.file for backport in chosen(base) for seam in backport.seams}
    texts = {name: text for name in names if (text := original(base, name)) is not None}
    edited, refused = edit(texts, chosen(base), "pdguard")
    assert refused == ()
    files = {one.file: one.after for one in edited}
    return Tree(base, files | {f"{PAYLOAD_FOLDER}/{n}": t for n, t in load_payload(CATALOGUE).items()})


@functools.cache
def found(base: str) -> Mapping[str, FixFinding]:
    return hardened(base).find(*catalogue())


@pytest.mark.parametrize("base", BASES)
def test_it_is_found_and_nothing_else_is_disturbed(base: str) -> None:
    told = [(p.part, p.state, p.why) for p in found(base)["X2"].parts]
    assert found(base)["X2"].state is State.PRESENT, told
    applied = {b.fix: b for b in chosen(base)}
    for fix, finding in found(base).items():
        if any(f"{PAYLOAD_FOLDER}/" in place.file for part in finding.fix.parts for place in part.places):
            continue  # Its payload is laid down with any set, its seams are not.
        before = stock(base)[fix].state
        assert applied[fix].is_in(finding.state) if fix in applied else finding.state is before, fix


def test_what_it_stands_on() -> None:
    assert {b.fix for b in chosen("0.5.22")} == {"X2"}
    assert {b.fix for b in chosen("0.5.21")} == {"X2", "37077", "43719"}
    assert {b.fix for b in chosen("0.5.20")} >= {"X2", "37077", "40645", "41402", "41404", "43719"}


@pytest.mark.parametrize("base", OLD)
def test_of_37077_mori_has_all_but_the_generation(base: str) -> None:
    finding = found(base)["37077"]
    assert {p.state for p in finding.parts if p.part.startswith("MORI")} == {State.PRESENT}
    assert finding.backends["mori"] is State.PARTIAL
    assert finding.state is State.PARTIAL


@pytest.mark.parametrize("base", BASES)
def test_no_frame_of_a_message_is_touched(base: str) -> None:
    for file in (COMMON, MORI):
        before, after = original(base, file), hardened(base).text(file)
        assert before is not None
        assert after is not None
        assert messages(before) == messages(after)


def engine(role: str, base: str, findings: Mapping[str, FixFinding] | None) -> Subject:
    subject = Subject("engine", role)
    subject.facts.add("version", base, Grade.CLAIMED, "http", "version")
    given: Mapping[str, Value] = {**DEFAULTS, "role": role, "backend": "mori"}
    for name, value in {**given, "hold_setting": True, "t_hold_kind": "finite"}.items():
        subject.facts.add(name, value, Grade.CONFIGURED, "http", name)
    if findings is not None:
        add_fix_facts(subject.facts, list(findings.values()))
    derive_engine(subject.facts)
    return subject


@pytest.mark.parametrize("base", BASES)
def test_what_follows_for_a_hardened_engine(base: str) -> None:
    facts = engine("decode", base, found(base)).facts
    names = ("hold", "hold_support", "ack_format", "ack_kept", "ack_every_rank", "early_ack", "hold_scope")
    assert {name: facts.value(name) for name in names} == {
        "hold": "on",
        "hold_support": "yes",
        "ack_format": NEW_FORMAT if base == "0.5.22" else OLD_FORMAT,
        "ack_kept": True,
        "ack_every_rank": True,
        "early_ack": False,
        "hold_scope": "every failure",
    }


PAIRS = (
    # decode, prefill: hardened or not, and what becomes of an abort in flight and of a failed send.
    (("0.5.21", True), ("0.5.21", True), ("drained", "timeout")),
    (("0.5.21", True), ("0.5.20", True), ("drained", "timeout")),
    (("0.5.19", True), ("0.5.21", True), ("drained", "timeout")),
    (("0.5.21", True), ("0.5.21", False), ("timeout", "timeout")),
    (("0.5.21", False), ("0.5.21", True), ("no hold", "no hold")),
    (("0.5.21", True), ("0.5.20", False), ("timeout", "timeout")),
    (("0.5.20", False), ("0.5.21", True), ("timeout", "no hold")),
    (("0.5.21", True), ("0.5.22", True), ("timeout", "timeout")),
    (("0.5.22", True), ("0.5.22", False), ("drained", "early ack")),
    (("0.5.22", False), ("0.5.22", True), ("drained", "timeout")),
)


@pytest.mark.parametrize(("decode", "prefill", "expected"), PAIRS)
def test_what_follows_for_a_pair(
    decode: tuple[str, bool], prefill: tuple[str, bool], expected: tuple[str, str]
) -> None:
    """As the exercises of these pairs end (tests/exercise/test_mori_engines.py)."""

    def half(role: str, base: str, hard: bool) -> Subject:
        return engine(role, base, found(base) if hard else stock(base))

    (pair,) = build_pairs([half("prefill", *prefill)], [half("decode", *decode)], [])
    names = ("handshake", "handshake_failed_send")
    assert tuple(pair.facts.value(name) for name in names) == expected


BEGUN = "pdguard_mori.begun(self, kv_chunk)"
DONE = "pdguard_mori.done(self, kv_chunk)"
BROKE = "pdguard_drains.broke(self, kv_chunk)"
SKIPS = "if pdguard_mori.skips(self, room):"
WAITED = "pdguard_mori.waited(self, room, failure_reason)"
ASKED = "pdguard_mori.asked(self, msg)"
TAKEN = "if pdguard_mori.taken(self, msg):"
LATE = "if pdguard_mori.late(self, msg):"
WITHHELD = "if pdguard_drains.withheld(self, room):"
CAN = "supports_deferred_decode_kv_release = True"
SETTLED = "pdguard_mori.settled(self, room, statuses, failure_reason)"
DRAINED = "pdguard_mori.settled(self, kv_chunk.room, statuses)"
BROKEN = "pdguard_mori.broken(self, kv_chunk.room)"
UNANSWERED = "if pdguard_mori.unanswered(self, bootstrap_room):"
COUNT_LATER: Callable[[str], str] = instead(
    f"{BEGUN}\n                self._process_transfer_chunk(kv_chunk)",
    f"self._process_transfer_chunk(kv_chunk)\n                {BEGUN}",
)
UNDONE: tuple[tuple[str, str, Edit], ...] = (
    ("0.5.21", MORI, without(BEGUN)),
    ("0.5.20", MORI, COUNT_LATER),
    ("0.5.19", MORI, without(DONE)),
    ("0.5.21", MORI, instead(DONE, f"if kv_chunk.is_last_chunk: {DONE}")),
    ("0.5.21", MORI, without(BROKE)),
    ("0.5.20", MORI, instead(SKIPS, "if self._should_skip_transfer(room):")),
    ("0.5.21", MORI, instead(SKIPS, SKIPS.replace("if ", "if not "))),
    ("0.5.19", MORI, without(WAITED)),
    ("0.5.21", MORI, instead(WAITED, WAITED.replace("failure_reason", "None"))),
    ("0.5.21", MORI, instead(WAITED, f"if kv_chunk.is_last_chunk: {WAITED}")),
    ("0.5.20", MORI, without(ASKED)),
    ("0.5.21", MORI, instead(TAKEN, "if False:")),
    ("0.5.21", MORI, instead(TAKEN, TAKEN.replace("if ", "if not "))),
    ("0.5.21", MORI, without("pdguard_mori.prepare(self)")),
    ("0.5.21", MORI, instead(CAN, CAN.replace("True", "False"))),
    ("0.5.21", MORI, without(CAN)),
    ("0.5.21", COMMON, instead(WITHHELD, "if False:")),
    ("0.5.22", MORI, without(SETTLED)),
    ("0.5.22", MORI, instead(SETTLED, f"if failure_reason: {SETTLED}")),
    ("0.5.22", MORI, without(DRAINED)),
    ("0.5.22", MORI, without(BROKEN)),
    ("0.5.22", MORI, without(BROKEN, 1)),
    ("0.5.22", MORI, instead(UNANSWERED, UNANSWERED.replace("if ", "if not "))),
    ("0.5.22", MORI, instead(UNANSWERED, "if False:")),
    ("0.5.22", MORI, instead(LATE, "if False:")),
)


@pytest.mark.parametrize(("base", "file", "change"), UNDONE)
def test_a_seam_that_is_undone_is_not_found(base: str, file: str, change: Edit) -> None:
    finding = hardened(base).edited(file, change).find("X2")["X2"]
    assert finding.state is not State.PRESENT


def test_a_worker_that_does_not_wait_does_not_drain() -> None:
    tree = hardened("0.5.21").edited(MORI, instead(SKIPS, "if self._should_skip_transfer(room):"))
    parts = {p.part: p.state for p in tree.find("37077")["37077"].parts}
    assert parts["MORI drains writes of an aborted room"] is not State.PRESENT
