"""The backports for decode's caches in real releases: found as such, and only as long as they are whole."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable

import pytest

from pdguard.fingerprint.model import State
from pdguard.harden.edits import edit
from pdguard.harden.loader import load_backports, load_payload
from pdguard.harden.model import PAYLOAD_FOLDER, Backport
from tests.fingerprint.trees import CATALOGUE, Tree

pytestmark = pytest.mark.wheels

OURS = {"0.5.19": ("30899", "43562"), "0.5.20": ("30899", "43562"), "0.5.21": ("43562",)}
EACH = [(version, fix) for version, fixes in OURS.items() for fix in fixes]
DECODE = "srt/disaggregation/decode.py"
MIXIN = "srt/disaggregation/decode_hicache_mixin.py"
SCHEDULER = "srt/managers/scheduler.py"
PAYLOAD = f"{PAYLOAD_FOLDER}/hicache.py"
AGREE = f"{PAYLOAD_FOLDER}/agree.py"

Edit = Callable[[str], str]


def chosen(version: str, *fixes: str) -> list[Backport]:
    """The backports `fixes` for a release; all that there are where none is named."""
    return [b for b in load_backports(CATALOGUE) if b.base == version and (not fixes or b.fix in fixes)]


@functools.cache
def hardened(version: str, *fixes: str) -> Tree:
    stock, backports = Tree(version), chosen(version, *fixes)
    texts = {s.file: text for b in backports for s in b.seams if (text := stock.text(s.file)) is not None}
    done, refused = edit(texts, backports, "pdguard")
    assert refused == ()
    payload = {f"{PAYLOAD_FOLDER}/{name}": text for name, text in load_payload(CATALOGUE).items()}
    return Tree(version, {one.file: one.after for one in done} | payload)


def state(tree: Tree, fix: str) -> State:
    return tree.find(fix)[fix].state


@pytest.mark.parametrize(("version", "fix"), EACH)
def test_alone_and_with_all_the_others_it_is_found(version: str, fix: str) -> None:
    assert state(Tree(version), fix) is State.ABSENT
    for tree in (hardened(version, fix), hardened(version)):
        told = [(p.part, p.state, p.why) for p in tree.find(fix)[fix].parts]
        assert state(tree, fix) is State.PRESENT, told


@pytest.mark.parametrize("version", OURS)
def test_there_is_one_where_the_release_lacks_the_fix(version: str) -> None:
    assert tuple(sorted(b.fix for b in chosen(version, "30899", "43562"))) == OURS[version]
    assert not any(b.partial for b in chosen(version, "30899", "43562"))


@pytest.mark.parametrize("version", ["0.5.22", "0.5.23"])
def test_later_releases_need_neither(version: str) -> None:
    assert chosen(version, "30899", "43562") == []
    assert {state(Tree(version), fix) for fix in ("30899", "43562")} == {State.PRESENT}


@pytest.mark.parametrize("version", OURS)
def test_seams_are_single_statements(version: str) -> None:
    assert all(
        len(s.code.strip().splitlines()) == 1 for b in chosen(version, "30899", "43562") for s in b.seams
    )


@pytest.mark.parametrize("version", OURS)
def test_pages_of_a_failed_transfer_are_given_back_where_they_were(version: str) -> None:
    """Around the seams the queue's own words stay: those on which holds and releases hang."""

    def words(tree: Tree) -> list[str]:
        text = tree.text(DECODE)
        assert text is not None
        queue = next(n for n in ast.parse(text).body if getattr(n, "name", "") == "DecodeTransferQueue")
        found = next(n for n in ast.walk(queue) if getattr(n, "name", "") == "pop_transferred")
        return [ast.unparse(n) for n in ast.walk(found) if isinstance(n, ast.Call)]

    before, after = words(Tree(version)), words(hardened(version, *OURS[version]))
    assert [word for word in after if "pdguard_hicache" not in word] == before


def instead(old: str, new: str, which: int = 0) -> Edit:
    def change(text: str) -> str:
        parts = text.split(old)
        assert len(parts) > which + 1, old
        return old.join(parts[: which + 1]) + new + old.join(parts[which + 1 :])

    return change


SAID = "restores = pdguard_hicache.restored(self, polls)"
TAKEN = "hicache_restore_status = restores[i]"
OWN = "hicache_restore_status = decode_req.hicache_restore_status"
LOADED = "pdguard_hicache.loaded(self.tree_cache, dr.hicache_load_consumer_index)"
SLOT = "pdguard_hicache.has_free_load_back_slot(self, (counter.producer_index + 1) % counter.num_counters)"
KEPT = "dr.hicache_restore_status in (HiCacheRestoreResult.PENDING, HiCacheRestoreResult.FAILED)"
LOCK = "pdguard_hicache.keep_lock(dr)"
DRAIN = "pdguard_hicache.drain(self)"
WAIT = "copy.finish_event.synchronize()"
REDUCE = "distributed.all_reduce(said, op=getattr(distributed.ReduceOp, how), group=queue.gloo_group)"
UNDONE: tuple[tuple[str, str, str, Edit], ...] = (
    ("43562", "0.5.20", DECODE, instead(TAKEN, OWN)),
    ("43562", "0.5.19", DECODE, instead(TAKEN, f"{TAKEN} or decode_req.hicache_restore_status")),
    ("43562", "0.5.21", DECODE, instead(TAKEN, f"{TAKEN}\n            {OWN}")),
    ("43562", "0.5.20", DECODE, instead(TAKEN, f"if 0: {TAKEN}")),
    ("43562", "0.5.20", DECODE, instead(SAID, "restores = [d.hicache_restore_status for d in self.queue]")),
    ("43562", "0.5.20", DECODE, instead(SAID, f"if self.enable_staging: {SAID}")),
    ("43562", "0.5.20", DECODE, instead("pdguard import hicache", "pdguard import holds")),
    ("43562", "0.5.20", MIXIN, instead("pdguard import hicache", "pdguard import holds")),
    (
        "43562",
        "0.5.20",
        MIXIN,
        instead(LOADED, "self.tree_cache.is_load_back_event_done(dr.hicache_load_consumer_index)"),
    ),
    ("43562", "0.5.19", MIXIN, instead(LOADED, f"not {LOADED}")),
    ("43562", "0.5.20", MIXIN, instead(SLOT, SLOT.replace("pdguard_hicache.has_free", "self.has"))),
    (
        "43562",
        "0.5.21",
        MIXIN,
        instead(
            SLOT,
            "self.tree_cache.is_load_back_event_done((counter.producer_index + 1) % counter.num_counters)",
        ),
    ),
    ("43562", "0.5.20", MIXIN, instead(KEPT, "dr.hicache_restore_status == HiCacheRestoreResult.PENDING")),
    ("43562", "0.5.19", MIXIN, instead(LOCK, "pass")),
    ("43562", "0.5.19", MIXIN, instead(LOCK, f"if 0: {LOCK}")),
    ("43562", "0.5.20", PAYLOAD, instead("Result.PENDING, Result.FAILED", "Result.FAILED, Result.PENDING")),
    ("43562", "0.5.20", PAYLOAD, instead("order[least]", "order[mine[0]]")),
    ("43562", "0.5.20", PAYLOAD, instead("not over or not", "not over or 1 or not")),
    ("43562", "0.5.20", AGREE, instead(REDUCE, "pass")),
    ("43562", "0.5.20", PAYLOAD, instead('mine, "MIN"', 'mine, "MAX"')),
    ("43562", "0.5.20", PAYLOAD, instead("return reduced(queue, [int(loaded", "return (queue, [int(loaded")),
    (
        "43562",
        "0.5.20",
        PAYLOAD,
        instead("return bool(controller", "cache.loading_check()\n    return bool(controller"),
    ),
    ("30899", "0.5.20", SCHEDULER, instead(DRAIN, "pass")),
    ("30899", "0.5.19", SCHEDULER, instead(DRAIN, "pass", 1)),
    ("30899", "0.5.20", SCHEDULER, instead(DRAIN, f"if retract_reqs: {DRAIN}", 1)),
    ("30899", "0.5.20", SCHEDULER, instead("pdguard import hicache", "pdguard import holds")),
    ("30899", "0.5.20", PAYLOAD, instead(WAIT, "copy.finish_event.query()")),
    ("30899", "0.5.20", PAYLOAD, instead(WAIT, f"break\n        {WAIT}")),
    ("30899", "0.5.19", PAYLOAD, instead("manager.check_offload_progress()", "pass")),
    ("30899", "0.5.20", PAYLOAD, instead("if not told.issuperset", "if told.issuperset")),
    ("30899", "0.5.20", PAYLOAD, instead("torch.get_device_module().synchronize()", "pass")),
)


@pytest.mark.parametrize(("fix", "version", "file", "change"), UNDONE)
def test_what_is_undone_is_not_found(fix: str, version: str, file: str, change: Edit) -> None:
    assert state(hardened(version, *OURS[version]).edited(file, change), fix) is not State.PRESENT


def test_the_drain_comes_before_the_pages_go() -> None:
    tree = hardened("0.5.20", "30899")
    late = "retracted_reqs, new_token_ratio, reqs_to_abort = batch.retract_decode()"
    moved = tree.edited(
        SCHEDULER,
        instead(f"            {DRAIN}\n            {late}", f"            {late}\n            {DRAIN}"),
    )
    assert state(moved, "30899") is not State.PRESENT
