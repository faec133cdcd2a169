"""Bounded calls on every path (X7), Ascend's siblings (X8), and X3 and X5 on 0.5.22."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pytest

from pdguard.fingerprint.model import FixFinding, State
from pdguard.harden.edits import edit
from pdguard.harden.loader import load_backports, load_payload
from pdguard.harden.model import PAYLOAD_FOLDER, Backport
from pdguard.harden.selection import choose
from tests.fingerprint.trees import CATALOGUE, Tree, catalogue, original
from tests.harden.test_backports_lifetime import Edit, instead, without

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(600)]

BASES = ("0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
MOONCAKE = "srt/disaggregation/mooncake/conn.py"
ASCEND = "srt/disaggregation/ascend/conn.py"
NIXL = "srt/disaggregation/nixl/conn.py"
SCHEDULER = "srt/managers/scheduler.py"
BATCHES, SIBLINGS, DRAINS = (f"{PAYLOAD_FOLDER}/{name}.py" for name in ("batches", "siblings", "drains"))
EACH = [(base, fix) for base in BASES for fix in ("X7", "X8")] + [("0.5.22", "X3"), ("0.5.22", "X5")]


@functools.cache
def stock(base: str) -> Mapping[str, FixFinding]:
    return Tree(base).find(*catalogue())


@functools.cache
def chosen(base: str, fix: str) -> tuple[Backport, ...]:
    """What `pdguard harden --only` brings."""
    of_base = {b.fix: b for b in load_backports(CATALOGUE) if b.base == base}
    picked = choose(list(of_base.values()), list(stock(base).values()), [fix], [])
    assert not [c for c in picked if c.action == "refused"]
    return tuple(of_base[c.fix.id] for c in picked if c.action == "apply")


@functools.cache
def hardened(base: str, fix: str) -> Tree:
    backports = chosen(base, fix)
    names = {seam.file for backport in backports for seam in backport.seams}
    texts = {name: text for name in names if (text := original(base, name)) is not None}
    edited, refused = edit(texts, backports, "pdguard")
    assert refused == ()
    files = {one.file: one.after for one in edited}
    return Tree(base, files | {f"{PAYLOAD_FOLDER}/{n}": t for n, t in load_payload(CATALOGUE).items()})


@pytest.mark.parametrize(("base", "fix"), EACH)
def test_stock_lacks_it_and_the_hardened_engine_has_it(base: str, fix: str) -> None:
    assert stock(base)[fix].state is State.ABSENT
    finding = hardened(base, fix).find(fix)[fix]
    assert finding.state is State.PRESENT, [(p.part, p.state, p.why) for p in finding.parts]


@pytest.mark.parametrize(("base", "fix"), [("0.5.20", "X7"), ("0.5.23", "X8"), ("0.5.22", "X3")])
def test_nothing_else_is_disturbed(base: str, fix: str) -> None:
    applied = {b.fix: b for b in chosen(base, fix)}
    for name, finding in hardened(base, fix).find(*catalogue()).items():
        if any(f"{PAYLOAD_FOLDER}/" in place.file for part in finding.fix.parts for place in part.places):
            continue  # Its payload is laid down with any set, its seams are not.
        before = stock(base)[name].state
        assert applied[name].is_in(finding.state) if name in applied else finding.state is before, name


def test_the_newest_releases_need_what_none_of_them_has() -> None:
    assert {b.fix for b in load_backports(CATALOGUE) if b.base == "0.5.23"} == {"X6", "X7", "X8"}
    newer = {b.fix for b in load_backports(CATALOGUE) if b.base == "0.5.22"}
    assert newer == {"X1", "X2", "X3", "X5", "X6", "X7", "X8"}


SLICES = "pdguard_batches.send_slices("
BLOCKS = "pdguard_batches.send_blocks("
SETTLED = "return pdguard_siblings.settled(self, futures)"
BROKE = "pdguard_drains.broke(self, kv_chunk)"
POSTPONED = "pdguard_drains.postponed(self, kv_chunk, handles)"
WAITS = "idle &= not pdguard_holds.waiting(self.disagg_decode_transfer_queue)"
UNDONE: tuple[tuple[str, str, str, Edit], ...] = (
    ("0.5.23", "X7", MOONCAKE, instead(SLICES, "self.engine.batch_transfer_sync(")),
    ("0.5.22", "X7", MOONCAKE, instead(BLOCKS, "self._transfer_data(")),
    ("0.5.19", "X7", MOONCAKE, instead(BLOCKS, "self._transfer_data(", 1)),
    ("0.5.21", "X7", MOONCAKE, instead(BLOCKS, "self._transfer_data(", 2)),
    ("0.5.20", "X7", ASCEND, instead(BLOCKS, "self._transfer_data(")),
    ("0.5.23", "X7", ASCEND, instead(BLOCKS, "self._transfer_data(", 1)),
    ("0.5.23", "X7", ASCEND, instead(BLOCKS, "self._transfer_data(", 2)),
    ("0.5.23", "X8", ASCEND, instead(SETTLED, "return next(f.result() for f in futures)")),
    ("0.5.19", "X8", ASCEND, without(SETTLED)),
    ("0.5.22", "X3", NIXL, without(BROKE)),
    ("0.5.22", "X3", NIXL, without(POSTPONED)),
    ("0.5.22", "X5", SCHEDULER, without(WAITS)),
    ("0.5.23", "X7", BATCHES, instead("[_parts(own, size, most) for", "[[own] for")),
    ("0.5.23", "X7", BATCHES, instead("range(0, len(sources), most)", "range(0, 1, most)")),
    ("0.5.23", "X7", BATCHES, instead("            return status\n", "            break\n", 1)),
    ("0.5.23", "X7", BATCHES, instead("            return status\n", "            continue\n", 2)),
    ("0.5.20", "X7", BATCHES, instead('"max_transfer_batch_indices"', '"other"')),
    ("0.5.20", "X7", BATCHES, instead("if room == 0:", "if room < 0:")),
    ("0.5.23", "X7", MOONCAKE, instead("pdguard import batches as", "vendor import batches as")),
    ("0.5.23", "X7", ASCEND, instead("pdguard import batches as", "vendor import batches as")),
    ("0.5.23", "X8", ASCEND, instead("pdguard import siblings as", "vendor import siblings as")),
    ("0.5.23", "X8", SIBLINGS, instead("if not holds(manager):", "if holds(manager):")),
    ("0.5.23", "X8", SIBLINGS, instead("        status, error = found, trouble\n", "        return found\n")),
    ("0.5.23", "X8", SIBLINGS, instead("        raise error\n", "        return -1\n")),
    ("0.5.22", "X3", DRAINS, instead("own = _own_poison(manager)", "own = None")),
)


@pytest.mark.parametrize(("base", "fix", "file", "change"), UNDONE)
def test_a_seam_that_is_undone_is_not_found(base: str, fix: str, file: str, change: Edit) -> None:
    finding = hardened(base, fix).edited(file, change).find(fix)[fix]
    assert finding.state is not State.PRESENT
