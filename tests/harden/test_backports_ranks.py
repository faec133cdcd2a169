"""The backport by which decode's ranks agree, in real releases: found, and only as long as it is whole."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pdguard.fingerprint.model import State
from pdguard.harden.edits import edit
from pdguard.harden.loader import load_backports, load_payload
from pdguard.harden.model import PAYLOAD_FOLDER, Backport
from tests.fingerprint.trees import CATALOGUE, Tree

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(600)]

NEEDS = {
    "0.5.19": ("41404", "43562", "X1", "X5"),
    "0.5.20": ("41404", "43562", "X1", "X5"),
    "0.5.21": ("43562", "X1"),
    "0.5.22": ("X1",),
}
DECODE = "srt/disaggregation/decode.py"
AGREE = f"{PAYLOAD_FOLDER}/agree.py"
HOLDS = f"{PAYLOAD_FOLDER}/holds.py"

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


def state(tree: Tree, fix: str = "X1") -> State:
    return tree.find(fix)[fix].state


@pytest.mark.parametrize("version", NEEDS)
def test_with_what_it_needs_and_with_all_the_others_it_is_found(version: str) -> None:
    assert state(Tree(version)) is State.ABSENT
    for tree in (hardened(version, *NEEDS[version]), hardened(version)):
        told = [(p.part, p.state, p.why) for p in tree.find("X1")["X1"].parts]
        assert state(tree) is State.PRESENT, told
        # What it rests on is still seen through its edits.
        assert {state(tree, fix) for fix in ("35049", "41404")} == {State.PRESENT}


@pytest.mark.parametrize("version", NEEDS)
def test_it_asks_for_what_makes_failures_the_same_on_all_ranks(version: str) -> None:
    wanted, left = {"X1"}, {"X1"}
    by_fix = {b.fix: b for b in chosen(version)}
    while left:
        left = {fix for one in left for fix in by_fix[one].requires} - wanted
        wanted |= left
    assert tuple(sorted(wanted)) == NEEDS[version]
    assert not by_fix["X1"].partial


def test_the_release_that_has_it_needs_none() -> None:
    assert [b for b in chosen("0.5.23") if b.fix == "X1"] == []
    assert state(Tree("0.5.23")) is State.PRESENT


@pytest.mark.parametrize("version", NEEDS)
def test_seams_are_single_statements(version: str) -> None:
    assert all(len(s.code.strip().splitlines()) == 1 for b in chosen(version, "X1") for s in b.seams)


class Tensor(list[bool]):
    """As much of one as the engine uses for what it has received into host memory."""

    numel = list.__len__

    def tolist(self) -> list[bool]:
        return list(self)


class Queue(SimpleNamespace):
    """A rank with six requests: some acknowledged, some received into host memory."""

    enable_host_receive, gloo_group, deferred_kv_release_timeout = True, None, 30.0

    def __init__(self, version: str) -> None:
        super().__init__(log=[], ended={})
        self._deferred_releases = [
            (self.entry(name), *((0.0,) if version == "0.5.22" else ()), 5.0, 7, 1)
            for name in ("early", "Host", "acked", "late", "broken", "host")
        ]

    def entry(self, name: str) -> Any:
        def safe(*_room_and_acks: Any) -> bool:
            return name in ("early", "acked", "host")

        receiver = SimpleNamespace(
            kv_mgr=SimpleNamespace(is_abort_release_safe=safe), is_abort_release_safe=safe
        )
        staged = name.lower() == "host"
        return SimpleNamespace(
            name=name, kv_receiver=receiver, host_staged=staged, req=SimpleNamespace(bootstrap_room=name)
        )

    def _do_release(self, decode_req: Any, idx: int) -> None:
        assert idx == 7
        if decode_req.name == "broken":
            raise RuntimeError("a release that fails")
        self.log.append(decode_req.name)

    def released(self, _queue: Any, decode_req: Any, drained: bool) -> None:
        self.ended[decode_req.name] = "drained" if drained else "timeout"

    def failed(self, _queue: Any, decode_req: Any) -> None:
        self.ended[decode_req.name] = "error"

    def _observe_deferred_kv_release(self, outcome: str, **_seconds: Any) -> None:
        self.ended[f"number {len(self.ended)}"] = outcome


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("version", NEEDS)
def test_what_is_agreed_is_done_whatever_this_rank_thinks_of_it(version: str, alone: bool) -> None:
    """The loop of the hardened release itself; only what it calls is made up."""
    tree = hardened(version, *(NEEDS[version] if alone else ()))
    text = tree.text(DECODE)
    assert text is not None
    owner = next(n for n in ast.parse(text).body if getattr(n, "name", "") == "DecodeTransferQueue")
    assert isinstance(owner, ast.ClassDef)
    resolve = next(n for n in owner.body if getattr(n, "name", "") == "resolve_deferred_releases")
    queue = Queue(version)
    hosts = version in ("0.5.21", "0.5.22")
    if not hosts:
        queue._deferred_releases = [e for e in queue._deferred_releases if not e[0].host_staged]
    asked: list[tuple[int, float]] = []

    def ready(of: Any, now: float) -> Any:
        asked.append((len(of._deferred_releases), now))
        return iter([False, True, True, True])

    distributed = SimpleNamespace(get_world_size=lambda _group: 1)
    quiet = SimpleNamespace(warning=lambda *_: None, exception=lambda *_: None)
    known: dict[str, Any] = {
        "time": SimpleNamespace(monotonic=lambda: 10.0),
        "torch": SimpleNamespace(tensor=lambda v, dtype: Tensor(v), int32=0, distributed=distributed),
        "logger": quiet,
        "pdguard_agree": SimpleNamespace(ready=ready),
        "pdguard_outcomes": queue,
    }
    exec(compile(ast.Module([resolve], []), "resolve", "exec"), known)  # noqa: S102 - the release with our edits
    known["resolve_deferred_releases"](queue)
    assert asked == [(6 if hosts else 4, 10.0)]
    # All times are over and one was acknowledged, but another rank is not ready for it.
    assert [e[0].name for e in queue._deferred_releases] == (["early", "Host"] if hosts else ["early"])
    assert queue.log == ["acked", "late", *(["host"] if hosts else [])]
    if version == "0.5.22":
        assert list(queue.ended.values()) == ["drained", "timeout", "error", "drained"]
    elif not alone:
        ended = {"acked": "drained", "late": "timeout", "broken": "error"}
        assert queue.ended == ({**ended, "host": "drained"} if hosts else ended)


def instead(old: str, new: str) -> Edit:
    def change(text: str) -> str:
        assert text.count(old) == 1, old
        return text.replace(old, new)

    return change


SETTLE = "pdguard_agree.settle(self, decode_req)"
HOLDS_ONE = "pdguard_agree.one_holds(self, decode_req.kv_receiver.abort_notified)"
OWN = "decode_req.kv_receiver.abort_notified"
NEEDED = "pdguard_agree.required(decode_req.kv_receiver)"
READY = "pdguard_ready = pdguard_agree.ready(self, now)"
NEXT = "if not next(pdguard_ready):"
REDUCE = "distributed.all_reduce(said, op=getattr(distributed.ReduceOp, how), group=queue.gloo_group)"
IMPORT = "from sglang.srt.disaggregation.pdguard import agree as pdguard_agree"
UNDONE: tuple[tuple[str, str, Edit], ...] = (
    ("0.5.19", DECODE, instead(SETTLE, "pass")),
    ("0.5.20", DECODE, instead(SETTLE, f"if decode_req.kv_receiver.abort_notified: {SETTLE}")),
    ("0.5.20", DECODE, instead(SETTLE, f"{SETTLE}\n                decode_req = self.queue[i]")),
    ("0.5.20", DECODE, instead("and pdguard_holds.told(", "or pdguard_holds.told(")),
    ("0.5.21", DECODE, instead(HOLDS_ONE, OWN)),
    ("0.5.22", DECODE, instead(HOLDS_ONE, f"{OWN} and {HOLDS_ONE}")),
    ("0.5.22", DECODE, instead(HOLDS_ONE, f"not {HOLDS_ONE}")),
    ("0.5.22", DECODE, instead(f"deferrable and {HOLDS_ONE}", HOLDS_ONE)),
    ("0.5.21", DECODE, instead(NEEDED, "len(decode_req.kv_receiver.bootstrap_infos)")),
    ("0.5.22", DECODE, instead(NEEDED, "len(decode_req.kv_receiver.bootstrap_infos)")),
    ("0.5.20", DECODE, instead(READY, "pdguard_ready = iter([True] * len(self._deferred_releases))")),
    ("0.5.22", DECODE, instead(NEXT, "if not drained and now < deadline:")),
    (
        "0.5.20",
        DECODE,
        instead(
            NEXT, f"if not drained and now < deadline:\n{' ' * 16}still_held.append(0)\n{' ' * 12}el{NEXT}"
        ),
    ),
    ("0.5.21", DECODE, instead(NEXT, "if next(pdguard_ready):")),
    ("0.5.21", DECODE, instead(NEXT, "if not next(pdguard_ready) and now < deadline:")),
    ("0.5.22", DECODE, instead(IMPORT, IMPORT.replace("import agree", "import holds"))),
    ("0.5.22", AGREE, instead('[bool(mine)], "MAX"', '[bool(mine)], "MIN"')),
    ("0.5.22", AGREE, instead('flags, "MIN"', 'flags, "MAX"')),
    ("0.5.22", AGREE, instead(" or now >= deadline", " and now >= deadline")),
    ("0.5.22", AGREE, instead("entry[-3], entry[-1]", "entry[1], entry[-1]")),
    ("0.5.22", AGREE, instead("if receiver.abort_notified else 0", "if receiver.abort_notified else 1")),
    ("0.5.22", AGREE, instead(REDUCE, "pass")),
    ("0.5.22", AGREE, instead(REDUCE, f"if any(values): {REDUCE}")),
    ("0.5.22", AGREE, instead("group=queue.gloo_group)", "group=None)")),
    ("0.5.22", AGREE, instead("not values or ", "not any(values) or ")),
    ("0.5.19", AGREE, instead("= one_holds(queue, told(receiver))", "= told(receiver)")),
    ("0.5.19", AGREE, instead("and holds(receiver.kv_mgr):", "and told(receiver):")),
    ("0.5.20", HOLDS, instead("if agreed is not None:", "if agreed:")),
    ("0.5.20", HOLDS, instead("return bool(agreed)", "pass")),
)


@pytest.mark.parametrize(("version", "file", "change"), UNDONE)
def test_what_is_undone_is_not_found(version: str, file: str, change: Edit) -> None:
    assert state(hardened(version).edited(file, change)) is not State.PRESENT


@pytest.mark.parametrize(
    ("fix", "version", "file", "change"),
    [
        ("35049", "0.5.22", AGREE, instead(" or now >= deadline", " or True")),
        ("35049", "0.5.20", AGREE, instead("if receiver.abort_notified else 0", "if False else 0")),
        ("35049", "0.5.21", DECODE, instead(NEXT, "if next(pdguard_ready):")),
        ("35049", "0.5.20", DECODE, instead(READY, "pdguard_ready = iter([True] * 99)")),
        ("35049", "0.5.20", DECODE, instead(NEEDED, "0")),
        ("41404", "0.5.21", DECODE, instead(HOLDS_ONE, "False")),
        ("41404", "0.5.22", DECODE, instead(HOLDS_ONE, f"not {HOLDS_ONE}")),
    ],
)
def test_nor_is_what_it_rests_on(fix: str, version: str, file: str, change: Edit) -> None:
    assert state(hardened(version).edited(file, change), fix) is not State.PRESENT
