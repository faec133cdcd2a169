"""The fixes of hand-off, abort and hold, in real releases and in edited ones."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pdguard.fingerprint.model import State
from tests.fingerprint import transforms
from tests.fingerprint.transforms import dropped, rewritten, with_first, without
from tests.fingerprint.trees import Tree, catalogue, original, places

pytestmark = pytest.mark.wheels

VERSIONS = (
    *("0.4.10", "0.5.5", "0.5.10", "0.5.13", "0.5.14", "0.5.15", "0.5.16"),
    *("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"),
)
EDITED = ("0.5.5", "0.5.13", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.23")
# One letter for each of VERSIONS.
STATES = {
    "27372": "aaa~~~~~~PPPPP",
    "35049": "aaaaaaaaaPPPPP",
    "35360": "aaaaaaaaaPPPPP",
    "36988": "aaaaaaaaaaPPPP",
    "37454": "aaaaaaaaaaPPPP",
    "38935": "aaaaaaaaaaaPPP",
    "40645": "aaaaaaaaaaaPPP",
    "41023": "aaaaaaaaaaaPPP",
    "41402": "aaaaaaaaaaaPPP",
    "41404": "aaaaaaaaaaaPPP",
    "41618": "aaaaaaaaaaaPPP",
    "X4": "---------aPPPP",
    "X5": "---------aaaaP",
    "X6": "aaaaaaaaaaaaaa",
}
BACKENDS = {
    ("27372", "mooncake"): "aaaPPPPPPPPPPP",
    ("27372", "ascend"): "aaaPPPPPPPPPPP",
    ("27372", "nixl"): "aaa~~~PPPPPPPP",
    ("27372", "mori"): "--a~~~~~~PPPPP",
}
LETTERS = {
    State.PRESENT: "P",
    State.ABSENT: "a",
    State.PARTIAL: "~",
    State.NOT_APPLICABLE: "-",
    State.UNKNOWN: "?",
}
PREFILL = "srt/disaggregation/prefill.py"
DECODE = "srt/disaggregation/decode.py"
UTILS = "srt/disaggregation/utils.py"
COMMON = "srt/disaggregation/common/conn.py"
BASE = "srt/disaggregation/base/conn.py"
FAKE = "srt/disaggregation/fake/conn.py"
MOONCAKE = "srt/disaggregation/mooncake/conn.py"
NIXL = "srt/disaggregation/nixl/conn.py"
MORI = "srt/disaggregation/mori/conn.py"
SCHEDULER = "srt/managers/scheduler.py"
ENVIRON = "srt/environ.py"
RESULT = "SchedulerDisaggregationPrefillMixin.process_batch_result_disagg_prefill"
TRANSFERRED = "DecodeTransferQueue.pop_transferred"


def states(tree: Tree) -> dict[str, str]:
    return {one: LETTERS[found.state] for one, found in tree.find(*STATES).items()}


def expected(version: str) -> dict[str, str]:
    column = VERSIONS.index(version)
    return {one: row[column] for one, row in STATES.items()}


def explained(tree: Tree, one: str) -> str:
    return "; ".join(f"{p.part} {p.state} {p.why}" for p in tree.find(one)[one].parts)


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
    assert states(Tree(version)) == expected(version)


@pytest.mark.parametrize("version", VERSIONS)
def test_states_of_backends(version: str) -> None:
    column = VERSIONS.index(version)
    for (one, backend), row in BACKENDS.items():
        found = Tree(version).find(one)[one]
        assert LETTERS[found.backends[backend]] == row[column], (one, backend)


def test_every_part_that_decides_says_where() -> None:
    for one, found in Tree("0.5.23").find(*STATES).items():
        for part in found.parts:
            if part.state is State.NOT_APPLICABLE:
                continue  # An override that is not there.
            assert part.spot is not None, (one, part)
            assert part.spot.line > 1, (one, part)


@pytest.mark.parametrize("layout", transforms.LAYOUTS, ids=lambda f: str(f.__name__))
@pytest.mark.parametrize("version", ["0.5.5", "0.5.18", "0.5.20", "0.5.23"])
def test_layout_does_not_matter(version: str, layout: Callable[[str], str]) -> None:
    files = {file for one in STATES for file, _ in decisive(version, one)}
    tree = Tree(version)
    for file in files:
        tree = tree.edited(file, layout)
    assert states(tree) == expected(version)


def log_line(text: str, path: str) -> str:
    return transforms.with_log_line(text, path)


def every_call_has_a_keyword(text: str, path: str) -> str:
    calls = [n for n in ast.walk(transforms.find(text, path)) if isinstance(n, ast.Call)]
    return transforms.with_keyword(text, path) if calls else text


@functools.cache
def named_in_rules() -> frozenset[str]:
    def words(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            for inner in value.values():
                yield from words(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from words(inner)
        elif isinstance(value, str):
            yield from re.findall(r"\w+", value)

    rules = [
        rule
        for one in STATES
        for part in catalogue()[one].parts
        for place in (*part.when, *part.places)
        for rule in (place.fixed, place.vulnerable)
    ]
    return frozenset(word for rule in rules for word in words(rule))


def locals_renamed(text: str, path: str) -> str:
    free = [name for name in transforms.locals_of(text, path) if name not in named_in_rules() and name != "_"]
    return transforms.renamed_locals(text, path, {name: f"vendor_{name}" for name in free})


VENDOR_EDITS: tuple[Callable[[str, str], str], ...] = (
    log_line,
    transforms.with_parameter,
    every_call_has_a_keyword,
    locals_renamed,
    transforms.moved_last,
)


@pytest.mark.parametrize("edit", VENDOR_EDITS, ids=lambda f: str(f.__name__))
@pytest.mark.parametrize("version", ["0.5.5", "0.5.18", "0.5.19", "0.5.21", "0.5.23"])
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


@pytest.mark.parametrize("one", STATES)
@pytest.mark.parametrize("version", EDITED)
def test_a_renamed_place_makes_it_unknown(version: str, one: str) -> None:
    for file, path in decisive(version, one):
        if path.endswith("__init__") or path.startswith("Envs.") or ".supports_" in path:
            continue
        if (file in (PREFILL, DECODE) and "." not in path) or path == "NixlKVSender.clear":
            continue  # An import, and a method that need not be there.
        tree = Tree(version).edited(file, transforms.renamed, path, "vendor_name")
        assert tree.find(one)[one].state is State.UNKNOWN, (path, explained(tree, one))


def test_a_renamed_assignment_makes_it_unknown() -> None:
    for file, name in (
        (ENVIRON, "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"),
        (MOONCAKE, "supports_deferred_decode_kv_release"),
        (NIXL, "supports_deferred_decode_kv_release"),
    ):
        tree = Tree("0.5.21").edited(file, str.replace, f"    {name} =", "    VENDOR =")
        assert tree.find("41023")["41023"].state is State.UNKNOWN, file


# --- fixes brought into older trees, written here in the shape that upstream uses -------------------------


def statements(code: str) -> list[ast.stmt]:
    """The syntax trees of lines that may stand in a loop."""
    loop = ast.parse("while 1:\n" + "".join(f"    {line}\n" for line in code.splitlines())).body[0]
    assert isinstance(loop, ast.While)
    return loop.body


def put_into_branches(text: str, path: str, condition: str, code: str, *, orelse: bool = False) -> str:
    """Lines at the start of every branch of `path` whose condition holds `condition`, and of what is else."""

    def edit(node: Any) -> None:
        for one in ast.walk(node):
            if isinstance(one, ast.If) and condition in ast.unparse(one.test):
                one.body[:0] = statements(code)
                if orelse:
                    one.orelse[1:1] = statements(code)

    return rewritten(text, path, edit)


def method_added(text: str, owner: str, code: str) -> str:
    """Lines at the end of a class."""
    lines = text.splitlines(keepends=True)
    node = transforms.find_any(ast.parse(text), owner)
    assert isinstance(node, ast.ClassDef)
    assert node.end_lineno is not None
    added = "".join(f"    {line}\n" for line in code.splitlines())
    return "".join([*lines[: node.end_lineno], "\n", added, *lines[node.end_lineno :]])


def door(condition: str) -> str:
    return (
        f"if {condition}:\n    owner = self.scheduler\n    owner.retire_unadmitted_request(req)\n    return"
    )


def bring_38935(tree: Tree) -> Tree:
    verdict = "def is_unadmitted_reject(req):\n    return not req.kv.holds_kv and is_aborted(req)\n"
    leave = (
        "def retire_unadmitted_request(self, r):\n    r.update_finish_state()\n    self.out.stream_output(r)"
    )
    tree = tree.edited(UTILS, lambda t: f"{t}\n\n{verdict}")
    tree = tree.edited(SCHEDULER, method_added, "Scheduler", leave)
    tree = tree.edited(PREFILL, with_first, "PrefillBootstrapQueue.add", door("is_unadmitted_reject(req)"))
    fresh = "not (is_retracted or is_rebootstrap) and is_unadmitted_reject(req)"
    name = "from sglang.srt.disaggregation.utils import is_unadmitted_reject\n"
    for file in (PREFILL, DECODE):
        tree = tree.edited(file, lambda t: t.replace("\nlogger = ", f"\n{name}\nlogger = ", 1))
    return tree.edited(DECODE, with_first, "DecodePreallocQueue.add", door(fresh))


def bring_36988(tree: Tree) -> Tree:
    guard = (
        "if is_aborted(batch.reqs[i]):\n    self._retire_aborted_prefill_result(batch.reqs[i])\n    continue"
    )
    retire = (
        "def _retire_aborted_prefill_result(self, r):\n"
        "    maybe_release_metadata_buffer(r, self.slots)\n"
        "    release_kv_cache(r, self.tree_cache)"
    )
    put = functools.partial(put_into_branches, orelse=True)
    tree = tree.edited(PREFILL, put, RESULT, "inflight_middle_chunks", guard)
    return tree.edited(PREFILL, method_added, "SchedulerDisaggregationPrefillMixin", retire)


def bring_fake_attributes(tree: Tree) -> Tree:
    code = "self.abort_notified = bool(0)\nself.kv_mgr = mgr or None"
    return tree.edited(FAKE, with_first, "FakeKVReceiver.__init__", code)


def bring_37454(tree: Tree) -> Tree:
    def ask(node: Any) -> None:
        for one in ast.walk(node):
            if isinstance(one, ast.If) and "enable_deferred_kv_release" in ast.unparse(one.test):
                asked = "decode_req.kv_receiver.kv_mgr.enable_deferred_decode_kv_release"
                one.test = ast.BoolOp(ast.And(), [ast.parse(asked, mode="eval").body, one.test])

    tree = bring_fake_attributes(tree).edited(DECODE, rewritten, TRANSFERRED, ask)
    return tree.edited(BASE, method_added, "BaseKVManager", "enable_deferred_decode_kv_release = False")


def bring_41023(tree: Tree) -> Tree:
    def gate(node: Any) -> None:
        for one in ast.walk(node):
            if isinstance(one, ast.Assign) and "enable_deferred" in ast.unparse(one.targets[0]):
                more = ast.parse("self.supports_deferred_decode_kv_release", mode="eval").body
                one.value = ast.BoolOp(ast.And(), [one.value, more])

    name = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"
    tree = tree.edited(ENVIRON, str.replace, f"{name} = EnvBool(False)", f"{name} = EnvBool(True)")
    tree = tree.edited(COMMON, rewritten, "CommonKVManager.__init__", gate)
    for file, owner in ((MOONCAKE, "MooncakeKVManager"), (NIXL, "NixlKVManager")):
        tree = tree.edited(file, method_added, owner, "supports_deferred_decode_kv_release: bool = True")
    return tree


def bring_40645(tree: Tree) -> Tree:
    def keep(node: Any) -> None:
        code = "manager, room = self.kv_mgr, self.bootstrap_room\nmanager._maybe_ack_drained_abort(room)"
        node.body[-1].body = statements(code)

    def late(node: Any) -> None:
        for one in ast.walk(node):
            if (
                isinstance(one, ast.If)
                and isinstance(one.test, ast.Name)
                and isinstance(one.orelse[0], ast.If)
            ):
                other = one.orelse[0]
                assert isinstance(other.test, ast.Compare)
                other.test.ops = [ast.Gt()]
                one.test = ast.BoolOp(ast.Or(), [one.test, other.test])
                one.orelse = other.body

    tree = tree.edited(COMMON, rewritten, "CommonKVSender.clear", keep)
    return tree.edited(MOONCAKE, rewritten, "MooncakeKVManager.start_prefill_thread", late)


def bring_41402(tree: Tree) -> Tree:
    remember = (
        "def register_deferred_ack_target(self, room, ip, port):\n"
        "    self._deferred_ack_targets.setdefault(room, set()).add((ip, port))"
    )
    answer = (
        "def _maybe_ack_drained_abort(self, room):\n"
        "    if self._staging_outstanding.get(room, 0) <= 0:\n"
        "        for ip, port in sorted(self._deferred_ack_targets.pop(room, ())):\n"
        "            self._send_abort_ack(ip, port, room)"
    )
    arm = (
        "manager = self.kv_mgr\n"
        "if manager.enable_deferred_decode_kv_release:\n"
        "    manager.register_deferred_abort_room(self.bootstrap_room)"
    )
    for name, code in (("register_deferred_ack_target", remember), ("_maybe_ack_drained_abort", answer)):
        tree = tree.edited(COMMON, without, f"CommonKVManager.{name}")
        tree = tree.edited(COMMON, method_added, "CommonKVManager", code)
    tree = tree.edited(COMMON, with_first, "CommonKVReceiver._send_abort_notification", arm)
    return tree.edited(SCHEDULER, dropped, "Scheduler.abort_request", "register_deferred_abort_room")


def bring_41618(tree: Tree) -> Tree:
    code = "def ensure_abort_notified(self, **_):\n    return None"
    return tree.edited(FAKE, method_added, "FakeKVReceiver", code)


def bring_41404(tree: Tree) -> Tree:
    code = (
        "def ensure_abort_notified(self, force_arm=False):\n"
        "    self._send_abort_notification(force_arm=1)\n    self.abort_notified = True"
    )
    tell = "one = decode_req.kv_receiver\none.ensure_abort_notified(force_arm=True)"
    tree = tree.edited(COMMON, method_added, "CommonKVReceiver", code)
    return tree.edited(DECODE, put_into_branches, TRANSFERRED, "KVPoll.Failed or", tell)


def bring_mori_handler(tree: Tree) -> Tree:
    handle = "def _handle_abort_message(self, msg):\n    self.update_status(int(msg[1]), KVPoll.Failed)"

    def first(node: Any) -> None:
        for one in ast.walk(node):
            if isinstance(one, ast.Try):
                code = "if msg[0] == ABORT_TAG:\n    self._handle_abort_message(msg=msg)\n    continue"
                one.body[1:1] = statements(code)

    tree = tree.edited(MORI, method_added, "MoriKVManager", handle)
    return tree.edited(MORI, rewritten, "MoriKVManager._start_bootstrap_thread", first)


BROUGHT: tuple[tuple[str, str, Callable[[Tree], Tree]], ...] = (
    ("38935", "0.5.20", bring_38935),
    ("38935", "0.5.19", bring_38935),
    ("36988", "0.5.19", bring_36988),
    ("37454", "0.5.19", bring_37454),
    ("X4", "0.5.19", bring_fake_attributes),
    ("41023", "0.5.20", bring_41023),
    ("40645", "0.5.20", bring_40645),
    ("40645", "0.5.19", bring_40645),
    ("41402", "0.5.20", bring_41402),
    ("41402", "0.5.19", bring_41402),
    ("41404", "0.5.20", bring_41404),
    ("41618", "0.5.20", bring_41618),
    ("27372", "0.5.18", bring_mori_handler),
)


@pytest.mark.parametrize(("one", "version", "bring"), BROUGHT, ids=lambda v: v if isinstance(v, str) else "")
def test_a_fix_brought_into_an_older_tree_is_present(
    one: str, version: str, bring: Callable[[Tree], Tree]
) -> None:
    tree = bring(Tree(version))
    assert tree.find(one)[one].state is State.PRESENT, explained(tree, one)


def test_bringing_one_fix_leaves_the_others_alone() -> None:
    for one, version, bring in BROUGHT:
        before, after = expected(version), states(bring(Tree(version)))
        # Both bring the attributes of the fake receiver.
        touched = {"37454", "X4"} if one in ("37454", "X4") else {one}
        assert {k for k in before if before[k] != after[k]} <= touched, one


def test_half_of_a_fix_is_partial() -> None:
    tree = Tree("0.5.22").edited(DECODE, dropped, "DecodePreallocQueue.add", "is_unadmitted_reject")
    found = tree.find("38935")["38935"]
    assert [p.state for p in found.parts].count(State.ABSENT) == 1
    # What only a hardened tree has does not apply here.
    states = {p.state for p in found.parts} - {State.NOT_APPLICABLE}
    assert states == {State.PRESENT, State.ABSENT}
    assert found.state is State.PARTIAL


# --- fixes taken out of newer trees -------------------------------------------------------------------------

REVERTED: tuple[tuple[str, str, str, str], ...] = (
    ("36988", PREFILL, RESULT, "is_aborted"),
    ("38935", PREFILL, "PrefillBootstrapQueue.add", "is_unadmitted_reject"),
    ("38935", DECODE, "DecodePreallocQueue.add", "is_unadmitted_reject"),
    ("27372", NIXL, "NixlKVManager._start_bootstrap_thread", "_handle_abort_notification"),
    ("27372", MORI, "MoriKVManager._start_bootstrap_thread", "ABORT_TAG"),
    ("27372", MOONCAKE, "MooncakeKVManager.start_prefill_thread", "_handle_abort_notification"),
    ("27372", COMMON, "CommonKVReceiver.abort", "ensure_abort_notified"),
    ("35049", DECODE, "SchedulerDisaggregationDecodeMixin.process_decode_queue", "resolve_deferred_releases"),
    ("35049", MOONCAKE, "MooncakeKVManager.transfer_worker", "_maybe_ack_drained_abort"),
    ("35049", MOONCAKE, "MooncakeKVManager.start_decode_thread", "handle_abort_ack_message"),
    ("35360", NIXL, "NixlKVManager._handle_abort_notification", "_handle_deferred_abort_ack"),
    ("37454", FAKE, "FakeKVReceiver.__init__", "kv_mgr"),
    ("37454", FAKE, "FakeKVReceiver.__init__", "abort_notified"),
    ("X4", FAKE, "FakeKVReceiver.__init__", "abort_notified"),
    ("40645", COMMON, "CommonKVSender.clear", "_maybe_ack_drained_abort"),
    ("41402", COMMON, "CommonKVReceiver._send_abort_notification", "enable_deferred_decode_kv_release"),
)


@pytest.mark.parametrize(("one", "file", "path", "name"), REVERTED)
def test_a_fix_that_was_taken_out_is_not_present(one: str, file: str, path: str, name: str) -> None:
    tree = Tree("0.5.22").edited(file, dropped, path, name)
    if path == "CommonKVSender.clear":
        # What that release does there besides, and no older one did.
        for other in ("notification", "deferred_bootstrap"):
            tree = tree.edited(file, dropped, path, other)
    assert tree.find(one)[one].state in (State.ABSENT, State.PARTIAL), explained(tree, one)


def test_the_hold_switched_off_again() -> None:
    name = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"
    tree = Tree("0.5.22").edited(ENVIRON, str.replace, f"{name} = EnvBool(True)", f"{name} = EnvBool(False)")
    assert tree.find("41023")["41023"].state is State.PARTIAL
    for file, other in ((MOONCAKE, "nixl"), (NIXL, "mooncake")):
        name = "supports_deferred_decode_kv_release"
        found = (
            Tree("0.5.22")
            .edited(file, str.replace, f"{name} = True", f"{name} = False")
            .find("41023")["41023"]
        )
        assert found.state is State.PARTIAL
        assert found.backends[other] is State.PRESENT


def test_failures_of_any_kind_given_away_again() -> None:
    """What is left asks for more than any release did without it, so nothing is guessed."""
    tree = Tree("0.5.22").edited(DECODE, dropped, TRANSFERRED, "ensure_abort_notified")
    assert tree.find("41404")["41404"].state is State.UNKNOWN


def test_the_fake_receiver_cannot_be_told() -> None:
    tree = Tree("0.5.22").edited(FAKE, without, "FakeKVReceiver.ensure_abort_notified")
    assert tree.find("41618")["41618"].state is State.ABSENT
    code = "def ensure_abort_notified(self, **_):\n    return None"
    served = tree.edited(BASE, method_added, "BaseKVReceiver", code)
    assert served.find("41618")["41618"].state is State.NOT_APPLICABLE


def test_counting_twice_is_partial() -> None:
    again = "for one in self.waiting_queue:\n    self.vendor.register_deferred_abort_room(one)"
    tree = Tree("0.5.22").edited(SCHEDULER, with_first, "Scheduler.abort_request", again)
    assert tree.find("41402")["41402"].state is State.PARTIAL


# --- another kind of guard: nothing is guessed --------------------------------------------------------------

FOREIGN: tuple[tuple[str, str, str, str, str], ...] = (
    ("38935", "0.5.20", PREFILL, "PrefillBootstrapQueue.add", "if vendor_refuses(req):\n    return"),
    ("38935", "0.5.20", DECODE, "DecodePreallocQueue.add", "if vendor_refuses(req):\n    return"),
    ("27372", "0.5.10", COMMON, "CommonKVReceiver.abort", "self.vendor_tell_everybody()"),
    ("40645", "0.5.20", COMMON, "CommonKVSender.clear", "self.vendor_flush()"),
    ("41402", "0.5.20", COMMON, "CommonKVManager._maybe_ack_drained_abort", "self.vendor_answer_all(room)"),
    (
        *("41402", "0.5.20", COMMON, "CommonKVReceiver._send_abort_notification"),
        "self.vendor_arm(self.bootstrap_room)",
    ),
    (
        *("35049", "0.5.18", DECODE, "SchedulerDisaggregationDecodeMixin.process_decode_queue"),
        "self.vendor_deferred_queue.poll()",
    ),
    ("35360", "0.5.18", NIXL, "NixlKVManager._handle_abort_notification", "self.vendor_answer(msg)"),
)


@pytest.mark.parametrize(("one", "version", "file", "path", "code"), FOREIGN)
def test_another_guard_makes_it_unknown(one: str, version: str, file: str, path: str, code: str) -> None:
    tree = Tree(version).edited(file, with_first, path, code)
    assert tree.find(one)[one].state is State.UNKNOWN, explained(tree, one)


def test_another_hold_makes_it_unknown() -> None:
    code = "if vendor_parks(decode_req):\n    continue"
    tree = Tree("0.5.18").edited(DECODE, put_into_branches, TRANSFERRED, "KVPoll.Failed or", code)
    assert {f.state for f in tree.find("35049", "41404").values()} == {State.UNKNOWN}


def test_another_way_to_tell_prefill_makes_it_unknown() -> None:
    code = "self.vendor_notify(decode_req)"
    tree = Tree("0.5.20").edited(DECODE, put_into_branches, TRANSFERRED, "KVPoll.Failed or", code)
    assert tree.find("41404")["41404"].state is State.UNKNOWN


def test_another_retirement_makes_it_unknown() -> None:
    code = "if vendor_drops(req):\n    continue"
    tree = Tree("0.5.19").edited(PREFILL, put_into_branches, RESULT, "inflight_middle_chunks", code)
    assert tree.find("36988")["36988"].state is State.UNKNOWN


def test_a_careful_reader_of_attributes_makes_x4_unknown() -> None:
    def edit(node: Any) -> None:
        for one in ast.walk(node):
            if isinstance(one, ast.If) and "abort_notified" in ast.unparse(one.test):
                one.test = ast.parse("getattr(decode_req.kv_receiver, 'abort_notified', 0)", mode="eval").body

    tree = Tree("0.5.19").edited(DECODE, rewritten, TRANSFERRED, edit)
    assert tree.find("X4")["X4"].state is State.UNKNOWN
