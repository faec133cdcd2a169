"""A real release in which a fix has been undone by a small edit is never said to have it."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from pdguard.fingerprint.model import State
from tests.fingerprint.trees import Tree

pytestmark = pytest.mark.wheels

RELEASE = "0.5.23"
PREFILL = "srt/disaggregation/prefill.py"
DECODE = "srt/disaggregation/decode.py"
UTILS = "srt/disaggregation/utils.py"
COMMON = "srt/disaggregation/common/conn.py"
MOONCAKE = "srt/disaggregation/mooncake/conn.py"
SCHEDULER = "srt/managers/scheduler.py"
ENVIRON = "srt/environ.py"

Edit = Callable[[str], str]


def instead(old: str, new: str) -> Edit:
    def edit(text: str) -> str:
        assert text.count(old) == 1, f"{text.count(old)} times: {old}"
        return text.replace(old, new)

    return edit


def at_the_end(code: str) -> Edit:
    return lambda text: f"{text}\n\n{code}\n"


def begins(name: str, code: str) -> Edit:
    """The function called `name` (the first of them) begins with `code`."""

    def edit(text: str) -> str:
        lines = text.split("\n")
        function = next(
            n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == name
        )
        first = function.body[0]
        lines[first.lineno - 1 : first.lineno - 1] = [" " * first.col_offset + code]
        return "\n".join(lines)

    return edit


def in_class(name: str, code: str) -> Edit:
    def edit(text: str) -> str:
        node = next(n for n in ast.parse(text).body if isinstance(n, ast.ClassDef) and n.name == name)
        lines = text.split("\n")
        lines[node.body[0].lineno - 1 : node.body[0].lineno - 1] = [f"    {one}" for one in code.split("\n")]
        return "\n".join(lines)

    return edit


ASKED = "        if is_unadmitted_reject(req):\n"
LEFT = ASKED + "            self.scheduler.retire_unadmitted_request(req)\n            return\n"
MADE = "        if not self.create_sender(req, num_kv_heads):\n            return\n"
AT_DECODE = "if not is_retracted and not is_rebootstrap and is_unadmitted_reject(req):"
REPLACEMENT = "def _add(self, req, n):\n    self.queue.append(req)\n\n\n"
TELLS = "if deferrable and not decode_req.kv_receiver.abort_notified:"
POISONED = "        if room in self._deferred_ack_poisoned_rooms:\n            # A target"
ACKS = "        self.kv_mgr._maybe_ack_drained_abort(self.bootstrap_room)\n        staging_ctx"

UNDONE: tuple[tuple[str, str, Edit], ...] = (
    # What never runs, or is replaced afterwards.
    ("38935", PREFILL, instead(LEFT, LEFT.replace("if is_", "if False and is_"))),
    ("38935", PREFILL, instead(LEFT, LEFT.replace("if is_", "if not True and is_"))),
    (
        "38935",
        PREFILL,
        instead(LEFT + MADE, "        self.queue.append(req)\n        return\n" + LEFT + MADE),
    ),
    ("38935", UTILS, begins("is_unadmitted_reject", "return False")),
    ("38935", UTILS, at_the_end("is_unadmitted_reject = lambda req: False")),
    ("38935", SCHEDULER, begins("retire_unadmitted_request", "return")),
    ("38935", PREFILL, at_the_end(REPLACEMENT + "PrefillBootstrapQueue.add = _add")),
    ("38935", PREFILL, at_the_end(REPLACEMENT + "setattr(PrefillBootstrapQueue, 'add', _add)")),
    ("38935", PREFILL, instead("    def add(self, req: Req,", "    @vendor\n    def add(self, req: Req,")),
    ("35049", DECODE, at_the_end("DecodeTransferQueue._defer_release = DecodeTransferQueue._do_release")),
    ("35049", COMMON, begins("is_abort_release_safe", "return True")),
    ("40645", COMMON, instead(ACKS, ACKS.replace("self.kv_mgr._m", "if 0: self.kv_mgr._m"))),
    ("41404", DECODE, instead(TELLS, "if False:")),
    ("41404", COMMON, begins("ensure_abort_notified", "return")),
    ("36988", PREFILL, begins("_retire_aborted_prefill_result", "return False")),
    # The doors.
    ("38935", PREFILL, instead(ASKED, ASKED.replace("):", ") and self.some_flag:"))),
    ("38935", PREFILL, instead(ASKED, ASKED.replace("):", ") == False:"))),
    ("38935", PREFILL, instead(ASKED, ASKED.replace("):", ") is None:"))),
    ("38935", PREFILL, instead(LEFT + MADE, MADE + LEFT)),
    ("38935", PREFILL, at_the_end("def is_unadmitted_reject(req):\n    return False")),
    ("38935", PREFILL, instead("    is_unadmitted_reject,\n", "    is_never as is_unadmitted_reject,\n")),
    (
        "38935",
        PREFILL,
        instead("            self.add(req, num_kv_heads)", "            self.queue.append(req)"),
    ),
    ("38935", DECODE, instead(AT_DECODE, AT_DECODE.replace("not is_retracted", "is_retracted"))),
    ("38935", DECODE, instead(AT_DECODE, AT_DECODE.replace("not is_rebootstrap", "is_rebootstrap"))),
    ("36988", UTILS, begins("is_aborted", "return False")),
    # The hold.
    ("35049", DECODE, instead("is_ready = is_drained or now >= deadline", "is_ready = True")),
    ("35049", DECODE, begins("_defer_release", "self._release_request(decode_req)")),
    ("35049", DECODE, instead("start_time + self.deferred_kv_release_timeout", "start_time")),
    ("35049", DECODE, instead("else len(decode_req.kv_receiver.bootstrap_infos)", "else 0")),
    ("35049", COMMON, instead("return len(acks) >= required_acks", "return len(acks) >= 0")),
    (
        "35049",
        MOONCAKE,
        in_class("MooncakeKVManager", "def is_abort_release_safe(self, room, n):\n    return True\n"),
    ),
    ("41404", DECODE, instead(TELLS, TELLS.replace("not ", ""))),
    (
        "41404",
        DECODE,
        instead("or (deferrable and decode_req.kv_receiver.abort_notified)", "or False"),
    ),
    (
        "41404",
        MOONCAKE,
        in_class("MooncakeKVReceiver", "def ensure_abort_notified(self, force_arm=False):\n    return\n"),
    ),
    # The acknowledgements.
    ("43719", COMMON, instead(POISONED, POISONED.replace(" in ", " not in "))),
    ("43719", COMMON, begins("poison_deferred_ack_room", "return")),
    ("43719", COMMON, instead("_deferred_ack_poisoned_rooms.add(", "_deferred_ack_poisoned_rooms.discard(")),
    ("43719", MOONCAKE, begins("_poison_unsettled_send", "return")),
    ("41023", ENVIRON, at_the_end("Envs.SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE = EnvBool(False)")),
    ("41023", MOONCAKE, begins("__init__", "self.supports_deferred_decode_kv_release = False")),
    (
        "40645",
        COMMON,
        instead(ACKS, "        self.kv_mgr._deferred_ack_targets.pop(self.bootstrap_room, None)\n" + ACKS),
    ),
    ("40645", MOONCAKE, in_class("MooncakeKVSender", "def clear(self):\n    pass\n")),
    (
        "41402",
        COMMON,
        instead("_send_abort_ack(room, target)\n", "_send_abort_ack(room, target)\n            break\n"),
    ),
    ("41402", COMMON, instead("in (targets or {}).values():", "in list((targets or {}).values())[:1]:")),
)

# Guards that hold and are written otherwise: not known here, and never said to be missing.
IN_TRY = (
    "        try:\n"
    + "".join(f"    {one}\n" for one in LEFT.splitlines())
    + "        finally:\n            pass\n"
)
OTHERWISE: tuple[tuple[str, str, Edit], ...] = (
    ("38935", PREFILL, instead(LEFT, IN_TRY)),
    ("38935", PREFILL, instead(ASKED, "        refused = is_unadmitted_reject(req)\n        if refused:\n")),
    ("35049", COMMON, instead("return len(acks) >= required_acks", "return not len(acks) < required_acks")),
)


@pytest.mark.parametrize(("one", "file", "edit"), UNDONE, ids=lambda v: v if isinstance(v, str) else "")
def test_a_fix_that_was_undone_is_not_present(one: str, file: str, edit: Edit) -> None:
    assert Tree(RELEASE).edited(file, edit).find(one)[one].state is not State.PRESENT


@pytest.mark.parametrize(("one", "file", "edit"), OTHERWISE, ids=lambda v: v if isinstance(v, str) else "")
def test_a_guard_in_another_shape_is_unknown(one: str, file: str, edit: Edit) -> None:
    assert Tree(RELEASE).edited(file, edit).find(one)[one].state is State.UNKNOWN
