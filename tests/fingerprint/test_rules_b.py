"""The fixes of acknowledgement, offload, batches, checksum and metrics, and those never merged."""

from __future__ import annotations

import ast
import functools
import hashlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pdguard.fingerprint.match import Matcher
from pdguard.fingerprint.model import State
from tests.fingerprint import transforms
from tests.fingerprint.transforms import rewritten, with_first
from tests.fingerprint.trees import Tree, catalogue, original, places

pytestmark = pytest.mark.wheels

VERSIONS = (
    *("0.4.10", "0.5.5", "0.5.10", "0.5.13", "0.5.14", "0.5.15", "0.5.16"),
    *("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"),
)
# One letter for each of VERSIONS.
STATES = {
    "24226": "-aaPPPPPPPPPPP",
    "30899": "aaaaaaaaaaaPPP",
    "32758": "aaaaaaaaaaPPPP",
    "35281": "aaaaaaaaaPPPPP",
    "36612": "aaaaaaaaaaPPPP",
    "37077": "aaaaaaaaaaaaPP",
    "39500": "aaaaaaaaaaaPPP",
    "41128": "aaaaaaaaaaaaPP",
    "43562": "---aaaaaaaaaPP",
    "43719": "aaaaaaaaaaaaPP",
    "X1": "aaaaaaaaaaaaaP",
    "X2": "--aaaaaaaaaaaP",
    "X3": "aaaaaaaaaaaaaP",
    "X7": "aaaaaaaaaaaaaa",
    "X8": "aaaaaaaaaaaaaa",
    "24580": "aaaaaaaaaaaaaa",
    "32564": "aaaaaaaaaaaaaa",
    "38704": "aaaaaaaaaaaaaa",
    "38961": "aaaaaaaaaaaaaa",
}
BACKENDS = {
    ("35281", "mori"): "--aaaaaaaPPPPP",
    ("35281", "nixl"): "aaaaaaaaaPPPPP",
    ("35281", "mooncake"): "aaaaaaaaaPPPPP",
    ("36612", "mori"): "--aaaaaaaaPPPP",
    ("36612", "nixl"): "aaaaaaaaaaPPPP",
    ("37077", "mori"): "--aaaaaaaaaaPP",
    ("37077", "nixl"): "aaaaaaaaaaaaPP",
    ("43719", "ascend"): "aaaaaaaaaaaaPP",
    ("X2", "mori"): "--aaaaaaaaaaaP",
    ("X7", "ascend"): "aaaaaaaaaaaaaa",
}
UNMERGED = ("24580", "32564", "38704", "38961", "X6", "X7", "X8")
LETTERS = {
    State.PRESENT: "P",
    State.ABSENT: "a",
    State.PARTIAL: "~",
    State.NOT_APPLICABLE: "-",
    State.UNKNOWN: "?",
}
DECODE = "srt/disaggregation/decode.py"
PREFILL = "srt/disaggregation/prefill.py"
UTILS = "srt/disaggregation/utils.py"
COMMON = "srt/disaggregation/common/conn.py"
MOONCAKE = "srt/disaggregation/mooncake/conn.py"
NIXL = "srt/disaggregation/nixl/conn.py"
MORI = "srt/disaggregation/mori/conn.py"
HICACHE = "srt/disaggregation/decode_hicache_mixin.py"
OFFLOAD = "srt/disaggregation/decode_kvcache_offload_manager.py"
SCHEDULER = "srt/managers/scheduler.py"
WORKER = "MooncakeKVManager.transfer_worker"
ACK = "CommonKVManager._maybe_ack_drained_abort"
TRANSFERRED = "DecodeTransferQueue.pop_transferred"
RESOLVE = "DecodeTransferQueue.resolve_deferred_releases"


def states(tree: Tree) -> dict[str, str]:
    return {one: LETTERS[found.state] for one, found in tree.find(*STATES).items()}


def expected(version: str) -> dict[str, str]:
    column = VERSIONS.index(version)
    return {one: row[column] for one, row in STATES.items()}


def explained(tree: Tree, one: str) -> str:
    return "; ".join(f"{p.part}: {p.state} {p.why}" for p in tree.find(one)[one].parts)


def state(tree: Tree, one: str) -> State:
    return tree.find(one)[one].state


@functools.cache
def decisive(version: str, one: str) -> tuple[tuple[str, str], ...]:
    return tuple((p.file, p.path) for p in places(Tree(version), catalogue()[one]))


def functions(version: str) -> Iterator[tuple[str, str]]:
    """Every function that decides about one of the fixes, once."""
    for file, path in sorted({place for one in STATES for place in decisive(version, one)}):
        text = original(version, file)
        assert text is not None
        if is_function(text, path):
            yield file, path


def is_function(text: str, path: str) -> bool:
    try:
        transforms.find(text, path)
    except (LookupError, AssertionError):
        return False
    return True


@pytest.mark.parametrize("version", VERSIONS)
def test_states_of_releases(version: str) -> None:
    tree = Tree(version)
    got = states(tree)
    assert got == expected(version), [
        explained(tree, one) for one in got if got[one] != expected(version)[one]
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_states_of_backends(version: str) -> None:
    column = VERSIONS.index(version)
    for (one, backend), row in BACKENDS.items():
        found = Tree(version).find(one)[one]
        assert LETTERS[found.backends[backend]] == row[column], (one, backend)


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_of_a_release_is_unknown(version: str) -> None:
    for one, found in Tree(version).find(*STATES).items():
        for part in found.parts:
            assert part.state is not State.UNKNOWN, (one, part)


def test_paths_that_the_batch_bound_misses_are_told_and_do_not_count() -> None:
    for version in ("0.5.20", "0.5.23"):
        found = Tree(version).find("32758")["32758"]
        assert found.state is State.PRESENT
        assert dict(found.backends) == {"mooncake": State.PRESENT}
        asides = {p.part: p.state for p in found.parts if p.aside}
        assert asides == {
            "pages of a DCP transfer": State.ABSENT,
            "prefill and decode of different TP width": State.ABSENT,
            "Ascend": State.ABSENT,
        }
        assert len(found.spots) == 1


def test_unmerged_fixes_are_marked() -> None:
    for one, fix in catalogue().items():
        assert fix.merged is (one not in UNMERGED), one
        assert fix.merged or not fix.first_release, one


def test_the_first_release_is_the_first_that_has_it() -> None:
    for one, row in STATES.items():
        first = next((v for v, letter in zip(VERSIONS, row, strict=True) if letter == "P"), "")
        assert catalogue()[one].first_release == first, one


# --- edits that change nothing ------------------------------------------------------------------------


@pytest.mark.parametrize("layout", transforms.LAYOUTS, ids=lambda f: str(f.__name__))
@pytest.mark.parametrize("version", ["0.5.10", "0.5.19", "0.5.23"])
def test_layout_does_not_matter(version: str, layout: Callable[[str], str]) -> None:
    tree = Tree(version)
    for file in sorted({file for one in STATES for file, _ in decisive(version, one)}):
        tree = tree.edited(file, layout)
    assert states(tree) == expected(version)


@functools.cache
def rule_text() -> str:
    return str(
        [
            (place.fixed, place.vulnerable)
            for one in STATES
            for part in catalogue()[one].parts
            for place in (*part.when, *part.places)
        ]
    )


def calls_of_rules_have_a_keyword(text: str, path: str) -> str:
    inside = {
        transforms._last(n.func) for n in ast.walk(transforms.find(text, path)) if isinstance(n, ast.Call)
    }
    for called in sorted(inside & set(re.findall(r"(\w+)\(\$\$\$\)", rule_text())) - {"append", "add"}):
        text = transforms.with_keyword(text, path, called)
    return text


def locals_renamed(text: str, path: str) -> str:
    named = set(re.findall(r"\w+", rule_text()))
    free = [n for n in transforms.locals_of(text, path) if n != "_" and n not in named]
    return transforms.renamed_locals(text, path, {name: f"vendor_{name}" for name in free})


EDITS: tuple[Callable[[str, str], str], ...] = (
    transforms.with_log_line,
    transforms.with_parameter,
    calls_of_rules_have_a_keyword,
    locals_renamed,
    transforms.moved_last,
)


@pytest.mark.parametrize("edit", EDITS, ids=lambda f: str(f.__name__))
@pytest.mark.parametrize("version", ["0.5.10", "0.5.19", "0.5.23"])
def test_edits_nearby_do_not_matter(version: str, edit: Callable[[str, str], str]) -> None:
    tree, changed = Tree(version), 0
    for file, path in functions(version):
        before = tree.text(file)
        assert before is not None
        after = edit(before, path)
        changed += after != before
        tree = Tree(version, {**tree.files, file: after})
    assert changed > 5
    got = states(tree)
    assert got == expected(version), [
        explained(tree, one) for one in got if got[one] != expected(version)[one]
    ]


# --- edits that take the ground away ------------------------------------------------------------------


@pytest.mark.parametrize("one", STATES)
@pytest.mark.parametrize("version", ["0.5.5", "0.5.18", "0.5.19", "0.5.21", "0.5.23"])
def test_a_renamed_or_missing_function_makes_it_unknown(version: str, one: str) -> None:
    for part, told in zip(catalogue()[one].parts, Tree(version).find(one)[one].parts, strict=True):
        if part.aside or told.state is State.NOT_APPLICABLE:
            continue
        for place in part.places:
            text = original(version, place.file)
            if text is None or not is_function(text, place.path) or place.path.endswith("__init__"):
                continue
            tree = Tree(version).edited(place.file, transforms.renamed, place.path, "vendor_name")
            assert state(tree, one) is State.UNKNOWN, (place.path, explained(tree, one))
            tree = Tree(version).edited(place.file, transforms.without, place.path)
            assert state(tree, one) is State.UNKNOWN, (place.path, explained(tree, one))
            break


def statements(code: str) -> list[ast.stmt]:
    loop = ast.parse("while 1:\n" + "".join(f"    {line}\n" for line in code.splitlines())).body[0]
    assert isinstance(loop, ast.While)
    return loop.body


def in_failed_sends(text: str, code: str) -> str:
    """Lines at the start of what the Mooncake worker does where a send of pages or state has failed."""

    def edit(node: Any) -> None:
        for one in ast.walk(node):
            if isinstance(one, ast.If) and ast.unparse(one.test) in ("ret != 0", "state_rc != 0"):
                one.body[:0] = statements(code)

    return rewritten(text, WORKER, edit)


def after_aux(text: str, code: str) -> str:
    """Lines after the Mooncake worker's send of metadata."""

    def edit(node: Any) -> None:
        for one in ast.walk(node):
            body = getattr(one, "body", None)
            if not isinstance(body, list):
                continue
            for at, line in enumerate(body):
                if ast.unparse(line).startswith("ret = self.send_aux"):
                    body[at + 1 : at + 1] = statements(code)
                    break

    return rewritten(text, WORKER, edit)


def test_a_guard_of_another_kind_makes_it_unknown() -> None:
    old = Tree("0.5.21")
    for tree in (
        old.edited(MOONCAKE, in_failed_sends, "quarantine(kv_chunk.room)"),
        old.edited(MOONCAKE, in_failed_sends, "self.lifetimes[kv_chunk.room].suspend(60)"),
        old.edited(MOONCAKE, after_aux, "if ret:\n    self.vendor_hold(req.room)"),
        old.edited(COMMON, with_first, ACK, "if room in self.vendor_rooms:\n    return"),
        old.edited(COMMON, with_first, ACK, "if self.vendor_unsettled(room):\n    return"),
    ):
        assert state(tree, "43719") is State.UNKNOWN, explained(tree, "43719")
    noted = "CommonKVManager.note_abort_ack"
    tree = old.edited(COMMON, with_first, noted, "if self.stale(bootstrap_room):\n    return")
    assert state(tree, "37077") is State.UNKNOWN
    chunk = "MoriKVManager._process_transfer_chunk"
    tree = old.edited(MORI, with_first, chunk, "if self.vendor_parked(kv_chunk):\n    return")
    assert state(tree, "X2") is State.UNKNOWN
    assert state(tree, "37077") is State.UNKNOWN
    poll = "HiCacheRestoreGatedKVReceiver.poll"
    tree = old.edited(HICACHE, with_first, poll, "if vendor_failed(self.decode_req):\n    return 0")
    assert state(tree, "43562") is State.UNKNOWN


# --- fixes taken out of newer trees, and brought into older ones --------------------------------------


def without_poison(text: str) -> str:
    def edit(node: Any) -> None:
        class Out(ast.NodeTransformer):
            def visit_Expr(self, one: ast.Expr) -> Any:
                return ast.Pass() if "_poison_unsettled_send" in ast.unparse(one) else one

        Out().visit(node)

    return rewritten(text, WORKER, edit)


def without_gate(text: str) -> str:
    def edit(node: Any) -> None:
        node.body = [one for one in node.body if "poisoned" not in ast.unparse(one)]

    return rewritten(text, ACK, edit)


def test_a_reverted_43719_is_absent_though_the_release_has_it() -> None:
    tree = Tree("0.5.22").edited(MOONCAKE, without_poison)
    assert state(tree, "43719") is State.PARTIAL
    tree = tree.edited(COMMON, without_gate)
    assert state(tree, "43719") is State.ABSENT, explained(tree, "43719")
    assert state(tree, "37077") is State.PRESENT


def test_one_lost_line_of_43719_is_partial() -> None:
    def lose(node: Any) -> None:
        for one in ast.walk(node):
            if isinstance(one, ast.If) and ast.unparse(one.test) == "state_rc != 0":
                one.body = [b for b in one.body if "_poison" not in ast.unparse(b)] or [ast.Pass()]

    tree = Tree("0.5.22").edited(MOONCAKE, rewritten, WORKER, lose)
    assert state(tree, "43719") is State.PARTIAL
    parts = {p.part: p.state for p in tree.find("43719")["43719"].parts}
    assert parts["failed state send"] is State.ABSENT
    assert parts["failed KV send"] is State.PRESENT


def bring_43719(tree: Tree) -> Tree:
    tree = tree.edited(MOONCAKE, in_failed_sends, "self._poison_unsettled_send(room=kv_chunk.room)")
    tree = tree.edited(MOONCAKE, after_aux, "if ret != 0:\n    self._poison_unsettled_send(req.room)")
    gate = "if room in self._deferred_ack_poisoned_rooms:\n    return None"
    for file, before, name, code in (
        (COMMON, "_maybe_ack_drained_abort", "poison_deferred_ack_room", "_deferred_ack_poisoned_rooms.add"),
        (MOONCAKE, "transfer_worker", "_poison_unsettled_send", "poison_deferred_ack_room"),
    ):
        helper = f"    def {name}(self, room):\n        self.{code}(room)\n\n    def {before}("
        tree = tree.edited(file, str.replace, f"    def {before}(", helper, 1)
    return tree.edited(COMMON, with_first, ACK, gate)


def bring_43562(tree: Tree) -> Tree:
    failed = (
        "if self.decode_req.hicache_restore_status == HiCacheRestoreResult.FAILED:\n    return KVPoll.Failed"
    )
    tree = tree.edited(HICACHE, with_first, "HiCacheRestoreGatedKVReceiver.poll", failed)

    def poll_alone(node: Any) -> None:
        for one in ast.walk(node):
            if isinstance(one, ast.If) and isinstance(one.test, ast.BoolOp):
                first, second = one.test.values[0], one.test.values[-1]
                if ast.unparse(second).endswith("HiCacheRestoreResult.FAILED"):
                    one.test = first

    def slots(node: Any) -> None:
        for one in ast.walk(node):
            if isinstance(one, ast.If) and "producer_index" in ast.unparse(one.test):
                one.test = ast.parse("self.tree_cache.has_free_load_back_slot() is False", mode="eval").body

    tree = tree.edited(DECODE, rewritten, TRANSFERRED, poll_alone)
    return tree.edited(
        HICACHE, rewritten, "DecodeHiCacheTransferMixin._process_hicache_local_restores", slots
    )


def bring_30899(tree: Tree) -> Tree:
    drain = (
        "    def drain_before_retraction(self):\n"
        "        left = torch.tensor([len(self.ongoing_offload)])\n"
        "        dist.all_reduce(left, group=self.tp_group)\n"
        "        if left.item():\n"
        "            raise RuntimeError('copies are in flight')\n\n"
    )
    tree = tree.edited(
        OFFLOAD, str.replace, "    def check_offload_progress(", f"{drain}    def check_offload_progress("
    )
    call = "manager = self.decode_offload_manager\nif manager:\n    manager.drain_before_retraction()"

    def edit(node: Any) -> None:
        for one in list(ast.walk(node)):
            body = getattr(one, "body", None)
            if isinstance(body, list):
                for at, line in enumerate(body):
                    if isinstance(line, ast.Assign | ast.Expr) and re.search(
                        r"\bretract_(all|decode)\(", ast.unparse(line)
                    ):
                        body[at:at] = statements(call)
                        break

    tree = tree.edited(SCHEDULER, rewritten, "Scheduler.update_running_batch", edit)
    return tree.edited(SCHEDULER, rewritten, "Scheduler.pause_generation", edit)


def bring_x1(tree: Tree) -> Tree:
    held = "held = all_reduce_flags(flags=wanted, group=self.gloo_group, op=torch.distributed.ReduceOp.MAX)"
    ready = (
        "ready = all_reduce_flags(flags=[d for d in self.drained()], group=self.gloo_group, "
        "op=torch.distributed.ReduceOp.MIN)\n"
        "for entry, go in zip(self._deferred_releases, ready):\n"
        "    (to_release if go else still_held).append(entry)"
    )

    def resolve(node: Any) -> None:
        node.body = [one for one in node.body if "now < deadline" not in ast.unparse(one)]
        node.body[3:3] = statements(ready)

    tree = tree.edited(DECODE, with_first, TRANSFERRED, f"wanted = []\n{held}")
    return tree.edited(DECODE, rewritten, RESOLVE, resolve)


CHERRIES: dict[tuple[str, str], Callable[[Tree], Tree]] = {
    ("43719", "0.5.21"): bring_43719,
    ("43719", "0.5.20"): bring_43719,
    ("43562", "0.5.21"): bring_43562,
    ("43562", "0.5.20"): bring_43562,
    ("30899", "0.5.20"): bring_30899,
    ("X1", "0.5.21"): bring_x1,
    ("X1", "0.5.20"): bring_x1,
}


@pytest.mark.parametrize(("one", "version"), CHERRIES)
def test_a_fix_brought_into_an_older_tree_is_found(one: str, version: str) -> None:
    tree = CHERRIES[one, version](Tree(version))
    assert state(tree, one) is State.PRESENT, explained(tree, one)
    want = {**expected(version), one: "P"}
    got = states(tree)
    assert got == want, [explained(tree, o) for o in got if got[o] != want[o]]


# --- what was never merged ----------------------------------------------------------------------------


def method_added(text: str, owner: str, code: str) -> str:
    """Lines at the end of a class."""
    lines = text.splitlines(keepends=True)
    node = transforms.find_any(ast.parse(text), owner)
    assert isinstance(node, ast.ClassDef)
    added = "".join(f"    {line}\n" for line in code.splitlines())
    return "".join([*lines[: node.end_lineno], "\n", added, *lines[node.end_lineno :]])


def test_the_length_in_the_spare_slot_is_found() -> None:
    code = "self.cached_tokens[req.metadata_buffer_index][7] = covered"
    for version in ("0.5.18", "0.5.21", "0.5.23"):
        tree = Tree(version).edited(UTILS, with_first, "MetadataBuffers.set_buf", code)
        assert state(tree, "38704") is State.PRESENT, explained(tree, "38704")
    code = "self.cached_tokens[req.metadata_buffer_index][9] = covered"
    tree = Tree("0.5.21").edited(UTILS, with_first, "MetadataBuffers.set_buf", code)
    assert state(tree, "38704") is State.UNKNOWN


def hold_source(condition: str) -> Callable[[Tree], Tree]:
    queue = "SchedulerDisaggregationPrefillMixin.process_disagg_prefill_inflight_queue"
    handler = "SchedulerDisaggregationPrefillMixin.handle_inflight_transfer_failure"

    def in_queue(node: Any) -> None:
        for one in ast.walk(node):
            if isinstance(one, ast.If) and ast.unparse(one.test) == "poll == KVPoll.Failed":
                one.body[:0] = statements(f"if {condition}:\n    undone_reqs.append(req)\n    continue")

    def bring(tree: Tree) -> Tree:
        tree = tree.edited(PREFILL, rewritten, queue, in_queue)
        return tree.edited(PREFILL, with_first, handler, f"if {condition}:\n    return None")

    return bring


def test_held_source_pages_are_found_by_what_the_queue_does() -> None:
    tree = hold_source("req.disagg_kv_sender.kv_mgr.outstanding_chunks(req.bootstrap_room)")(Tree("0.5.20"))
    assert state(tree, "38961") is State.PRESENT, explained(tree, "38961")
    tree = hold_source("vendor_knows_better(req)")(Tree("0.5.20"))
    assert state(tree, "38961") is State.UNKNOWN, explained(tree, "38961")


def test_leases_of_the_public_branch_are_found() -> None:
    method = (
        "def advance_failure_quiescence(self):\n"
        "    return self.kv_mgr.room(self.bootstrap_room).is_quiesced()\n"
    )
    for version in ("0.5.18", "0.5.20"):
        tree = Tree(version).edited(MOONCAKE, with_first, WORKER, "lease = self.try_lease_chunk(queue)")
        assert state(tree, "32564") is State.PARTIAL
        for owner in ("MooncakeKVSender", "MooncakeKVReceiver"):
            tree = tree.edited(MOONCAKE, method_added, owner, method)
        assert state(tree, "32564") is State.PRESENT, explained(tree, "32564")


def test_a_failure_branch_that_waits_for_acknowledgements_is_found() -> None:
    def wait(node: Any) -> None:
        for one in ast.walk(node):
            if isinstance(one, ast.If) and "poll == KVPoll.Failed or" in ast.unparse(one.test):
                one.body[:0] = statements("if not decode_req.kv_receiver.all_abort_acks_in():\n    continue")

    tree = Tree("0.5.18").edited(DECODE, rewritten, TRANSFERRED, wait)
    assert state(tree, "24580") is State.PRESENT
    tree = Tree("0.5.18").edited(DECODE, with_first, TRANSFERRED, "self.quarantine.settle()")
    assert state(tree, "24580") is State.UNKNOWN


# --- cost ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.5.17", "0.5.20", "0.5.21", "0.5.23"])
def test_the_whole_catalogue_is_cheap(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    matcher = Matcher(list(catalogue().values()))
    texts = {file: original(version, file) for file in matcher.watched()}

    def read(file: str) -> tuple[str, str] | None:
        text = texts[file]
        return None if text is None else (hashlib.sha256(text.encode()).hexdigest(), text)

    began = time.process_time()
    found = matcher.find(read)
    spent = time.process_time() - began
    again = time.process_time()
    assert matcher.find(read) == found
    cached = time.process_time() - again
    with capsys.disabled():
        sys.stdout.write(f"\n{version}: {len(found)} fixes in {spent:.2f} s CPU, ")
        sys.stdout.write(f"the next engine of it {cached * 1000:.1f} ms\n")
    assert spent < 3
    assert cached < 0.5
