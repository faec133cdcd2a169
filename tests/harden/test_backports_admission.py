"""The backports of the admission gate in real releases: found as such, and only as long as they work."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable

import pytest

from pdguard.fingerprint.model import State
from pdguard.harden.edits import edit
from pdguard.harden.loader import load_backports, load_payload
from pdguard.harden.model import PAYLOAD_FOLDER, Backport
from tests.fingerprint.trees import CATALOGUE, Tree

pytestmark = pytest.mark.wheels

OURS = {"0.5.19": ("32758", "36988", "37454", "38935", "X4"), "0.5.20": ("38935",)}
EACH = [(version, fix) for version, fixes in OURS.items() for fix in fixes]
PREFILL = "srt/disaggregation/prefill.py"
DECODE = "srt/disaggregation/decode.py"
BASE = "srt/disaggregation/base/conn.py"
FAKE = "srt/disaggregation/fake/conn.py"
MOONCAKE = "srt/disaggregation/mooncake/conn.py"
DOORS, RESULTS, REQUESTS, BATCHES = (
    f"{PAYLOAD_FOLDER}/{name}.py" for name in ("doors", "results", "requests", "batches")
)

Edit = Callable[[str], str]


def chosen(version: str, *fixes: str) -> list[Backport]:
    found = [b for b in load_backports(CATALOGUE) if b.base == version and b.fix in fixes]
    assert {b.fix for b in found} == set(fixes)
    return found


def with_backports(tree: Tree, *fixes: str) -> Tree:
    backports = chosen(tree.version, *fixes)
    texts = {s.file: text for b in backports for s in b.seams if (text := tree.text(s.file)) is not None}
    done, refused = edit(texts, backports, "pdguard")
    assert refused == ()
    new = {one.file: one.after for one in done}
    payload = {f"{PAYLOAD_FOLDER}/{name}": text for name, text in load_payload(CATALOGUE).items()}
    return Tree(tree.version, {**tree.files, **new, **payload})


@functools.cache
def hardened(version: str, *fixes: str) -> Tree:
    return with_backports(Tree(version), *fixes)


def state(tree: Tree, fix: str) -> State:
    return tree.find(fix)[fix].state


@pytest.mark.parametrize(("version", "fix"), EACH)
def test_stock_lacks_it_and_the_hardened_engine_has_it(version: str, fix: str) -> None:
    assert state(Tree(version), fix) is State.ABSENT
    assert state(hardened(version, *OURS[version]), fix) is State.PRESENT


@pytest.mark.parametrize(("version", "fix"), EACH)
def test_each_stands_with_what_it_requires_alone(version: str, fix: str) -> None:
    needed = {one for b in chosen(version, fix) for one in b.requires}
    assert state(hardened(version, *sorted({fix, *needed})), fix) is State.PRESENT


@pytest.mark.parametrize("version", OURS)
def test_only_a_few_lines_of_the_engine_change(version: str) -> None:
    tree = hardened(version, *OURS[version])
    lost = added = 0
    for file, text in tree.files.items():
        before = Tree(version).text(file)
        if before is not None:
            old, new = before.splitlines(), text.splitlines()
            ast.parse(text)
            lost += len(set(old) - set(new))
            added += len(new) - len(old)
    assert lost <= 2
    assert added <= (40 if version == "0.5.19" else 10)


def instead(old: str, new: str) -> Edit:
    def change(text: str) -> str:
        assert text.count(old) == 1, f"{text.count(old)} times: {old}"
        return text.replace(old, new)

    return change


def begins(name: str, code: str) -> Edit:
    def change(text: str) -> str:
        function = next(
            n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == name
        )
        at = next(n for n in function.body if not _is_docstring(n))
        lines = text.split("\n")
        lines.insert(at.lineno - 1, " " * at.col_offset + code)
        return "\n".join(lines)

    return change


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


ASKS = "if pdguard_doors.refuse(self.scheduler, req):"
LEAVES = f"        {ASKS}\n            return\n"
MAKES = "        if not self.create_sender(req, num_kv_heads):\n            return\n"
AT_DECODE = "pdguard_doors.refuse(self.scheduler, req, is_retracted or is_rebootstrap)"
IF_DECODE = f"        if {AT_DECODE}:\n            return\n"
QUEUED = (
    "            decode_req = self._create_receiver_and_enqueue(\n"
    "                req, is_rebootstrap=is_rebootstrap\n            )\n"
)
FINAL = "if pdguard_results.drop(self, req):"
FINAL_ALL = (
    f"                {FINAL}\n                    advance_logprob_pt(i, req)\n                    continue\n"
)
HANDED = "                self.disagg_prefill_inflight_queue.append(req)\n"
MIDDLE = "if pdguard_results.drop(self, req, still_chunking):"
IMPORT = "from sglang.srt.disaggregation.pdguard import {0} as pdguard_{0}\n"

DOOR_FAULTS: tuple[tuple[str, Edit], ...] = (
    (PREFILL, instead(LEAVES, "")),
    (PREFILL, instead(LEAVES, f"        {ASKS[3:-1]}\n")),
    (PREFILL, instead(ASKS, ASKS.replace("if ", "if not "))),
    (PREFILL, instead(ASKS, ASKS.replace(":", " and self.some_flag:"))),
    (PREFILL, instead(ASKS, ASKS.replace("if ", "if False and "))),
    (PREFILL, instead(ASKS, ASKS.replace(", req", ", None"))),
    (PREFILL, instead(ASKS, ASKS.replace(", req", ", req, True"))),
    (PREFILL, instead(LEAVES + MAKES, MAKES + LEAVES)),
    (PREFILL, instead(LEAVES, f"        {ASKS}\n            pass\n")),
    (PREFILL, instead(LEAVES, f"        {ASKS}\n            self.queue.append(req)\n            return\n")),
    (PREFILL, instead(IMPORT.format("doors"), "from vendor import doors as pdguard_doors\n")),
    (PREFILL, instead("            self.add(req, num_kv_heads)", "            self.queue.append(req)")),
    (PREFILL, lambda text: f"{text}\n\npdguard_doors = None\n"),
    (DECODE, instead(IF_DECODE, "")),
    (DECODE, instead(IF_DECODE, f"        {AT_DECODE}\n")),
    (DECODE, instead(f"if {AT_DECODE}", f"if not {AT_DECODE}")),
    (DECODE, instead(AT_DECODE, AT_DECODE.replace("is_retracted or is_rebootstrap", "True"))),
    (DECODE, instead(AT_DECODE, AT_DECODE.replace(", is_retracted or is_rebootstrap", ""))),
    (
        DECODE,
        lambda text: instead(IF_DECODE, "")(text).replace(
            QUEUED, QUEUED + "    " + IF_DECODE.replace("\n        ", "\n            ")
        ),
    ),
    (DECODE, instead(IMPORT.format("doors"), "from vendor import doors as pdguard_doors\n")),
    (DOORS, begins("refuse", "return False")),
    (DOORS, begins("is_refused", "return False")),
    (DOORS, begins("_retire", "return")),
    (DOORS, instead("return is_aborted(req) and not (", "return is_aborted(req) and (")),
    (DOORS, instead("re_enters or not is_refused(req)", "not re_enters and not is_refused(req)")),
    (DOORS, instead("    _retire(scheduler, req)\n", "")),
    (REQUESTS, begins("is_aborted", "return False")),
)
RESULT_FAULTS: tuple[tuple[str, Edit], ...] = (
    (PREFILL, instead(FINAL_ALL, "")),
    (PREFILL, instead(FINAL, FINAL.replace("if ", "if not "))),
    (PREFILL, instead(FINAL, FINAL.replace(":", " and self.enable_overlap:"))),
    (PREFILL, instead(FINAL_ALL, FINAL_ALL.replace("continue", "pass"))),
    (PREFILL, instead(FINAL, FINAL.replace(", req)", ", None)"))),
    (PREFILL, lambda text: instead(HANDED, HANDED + FINAL_ALL)(instead(FINAL_ALL, "")(text))),
    (PREFILL, instead(MIDDLE, MIDDLE.replace("if ", "if not "))),
    (PREFILL, instead(MIDDLE, "if False:")),
    (PREFILL, instead(IMPORT.format("results"), "from vendor import results as pdguard_results\n")),
    (RESULTS, begins("drop", "return False")),
    (RESULTS, begins("_release", "return")),
    (RESULTS, instead("if not is_aborted(req):", "if is_aborted(req):")),
    (RESULTS, instead("        _release(scheduler, req)\n", "")),
    (REQUESTS, begins("is_aborted", "return False")),
)
CALL = "        status = int(manager._transfer_data(session, blocks))\n        if status != 0:\n"
SENDS = "            return pdguard_batches.send(\n"
BATCH_FAULTS: tuple[tuple[str, Edit], ...] = (
    (MOONCAKE, instead(SENDS, SENDS.replace("return ", ""))),
    (MOONCAKE, instead(SENDS, "            return process_layers(layers_params)\n" + SENDS)),
    (MOONCAKE, instead(SENDS, SENDS.replace("pdguard_batches.send", "self._send"))),
    (MOONCAKE, instead(IMPORT.format("batches"), "from vendor import batches as pdguard_batches\n")),
    (BATCHES, begins("send", "return at_once(layers)")),
    (BATCHES, begins("limit", "return 0")),
    (BATCHES, instead("range(0, len(pages), most)", "range(0, 1, most)")),
    (BATCHES, instead(f"{CALL}            return status\n", f"{CALL}            pass\n")),
)
GATE_FAULTS: tuple[tuple[str, Edit], ...] = (
    (DECODE, instead(" and decode_req.kv_receiver.kv_mgr.enable_deferred_decode_kv_release)", ")")),
    (
        DECODE,
        instead(
            "self.enable_deferred_kv_release and decode_req.kv_receiver.kv_mgr",
            "self.enable_deferred_kv_release or decode_req.kv_receiver.kv_mgr",
        ),
    ),
    (
        BASE,
        instead(
            "enable_deferred_decode_kv_release: bool = False",
            "enable_deferred_decode_kv_release: bool = True",
        ),
    ),
    (BASE, instead("    enable_deferred_decode_kv_release: bool = False\n", "")),
    (FAKE, instead("        self.kv_mgr = mgr\n        self.abort_notified", "        self.abort_notified")),
    (FAKE, instead("        self.abort_notified = False\n", "")),
)
FAULTS = [
    (version, fix, file, change)
    for fix, faults in (
        ("38935", DOOR_FAULTS),
        ("36988", RESULT_FAULTS),
        ("32758", BATCH_FAULTS),
        ("37454", GATE_FAULTS),
    )
    for version in OURS
    if fix in OURS[version]
    for file, change in faults
]


@pytest.mark.parametrize(
    ("version", "fix", "file", "change"), FAULTS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_backport_that_was_undone_is_not_present(version: str, fix: str, file: str, change: Edit) -> None:
    assert state(hardened(version, *OURS[version]).edited(file, change), fix) is not State.PRESENT


def renamed(text: str) -> str:
    """The door of prefill calls its request otherwise."""
    end = text.index("    def extend(", text.index("class PrefillBootstrapQueue"))
    start = text.rindex("    def add(", 0, end)
    return text[:start] + re.sub(r"\breq\b", "wanted", text[start:end]) + text[end:]


CHECKS = "if self._check_if_req_exceed_kv_capacity(req):\n            return\n\n        if is_retracted:"
APPENDS = "req.output_ids.append(next_token_id)"
SENDS_ALL = "return process_layers(layers_params)"

VENDOR: tuple[tuple[str, str, Edit], ...] = (
    ("38935", PREFILL, begins("add", "vendor.note(self)")),
    ("38935", PREFILL, renamed),
    ("38935", DECODE, instead(CHECKS, CHECKS.replace("if self", "if  (self", 1).replace(":", ") : # é", 1))),
    ("36988", PREFILL, instead(APPENDS, f"vendor.count(req, 'é'); {APPENDS}")),
    ("32758", MOONCAKE, instead(SENDS_ALL, SENDS_ALL.replace("(", "(\n                "))),
)


@pytest.mark.parametrize(("fix", "file", "change"), VENDOR, ids=lambda v: v if isinstance(v, str) else "")
def test_edits_nearby_and_other_names_do_not_matter(fix: str, file: str, change: Edit) -> None:
    tree = with_backports(Tree("0.5.19").edited(file, change), fix)
    assert state(tree, fix) is State.PRESENT


UNKNOWN_HERE: tuple[tuple[str, str, Edit], ...] = (
    ("38935", PREFILL, instead("if not self.create_sender(req, num_kv_heads):", "if not self.open(req):")),
    ("38935", DECODE, instead(CHECKS, "if is_retracted:")),
    ("36988", PREFILL, instead("if req.pending_bootstrap and not still_chunking:", "if self.yields(req):")),
    ("36988", PREFILL, instead("                req.time_stats.set_prefill_finished_time()\n", "")),
    ("32758", MOONCAKE, instead(SENDS_ALL, "return self.vendor(layers_params)")),
    ("37454", DECODE, instead("and decode_req.kv_receiver.abort_notified", "and decode_req.told")),
    ("X4", FAKE, instead("        self.bootstrap_done = False\n", "")),
)


@pytest.mark.parametrize(
    ("fix", "file", "change"), UNKNOWN_HERE, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_place_that_is_not_what_is_known_is_refused(fix: str, file: str, change: Edit) -> None:
    tree = Tree("0.5.19").edited(file, change)
    backports = chosen("0.5.19", fix)
    done, refused = edit({s.file: str(tree.text(s.file)) for b in backports for s in b.seams}, backports, "x")
    assert done == ()
    assert all(one.nearest for one in refused)
