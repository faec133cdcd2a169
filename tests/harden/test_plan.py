from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import pytest

from pdguard.fingerprint.model import State
from pdguard.harden.model import PAYLOAD_FOLDER
from pdguard.harden.plan import Plan, Tree, after_sha, interesting, make_plan
from tests.harden import toy
from tests.harden.packages import patch


def plan(tree: Tree | None = None, wanted: str = "1.2.0", **more) -> Plan:  # type: ignore[no-untyped-def]
    return make_plan(tree or toy.tree(), toy.BACKPORTS, toy.PAYLOAD, toy.matcher(), wanted, **more)


def applied(made: Plan, tree: Tree) -> Tree:
    """The tree after the plan, as the node would tell of it."""
    current = dict(tree.current)
    for change in made.changes:
        assert current.get(change.path) == change.before
        current[change.path] = after_sha(change)
    written = {c.path: after_sha(c) or "" for c in made.changes if c.after is not None}
    return dataclasses.replace(tree, current=current, hardened=made.fixes, written=written)


def test_a_plan_names_every_file_and_its_hashes() -> None:
    made = plan()
    assert not made.refused
    assert made.fixes == ("10001", "10002", "10003")
    paths = [c.path for c in made.changes]
    payload = [f"{PAYLOAD_FOLDER}/{name}" for name in toy.PAYLOAD]
    assert sorted(paths) == sorted([toy.DOORS, toy.HOLDS, *payload])
    for change in made.changes:
        known = toy.STOCK.get(change.path)
        assert change.before == (None if known is None else hashlib.sha256(known.encode()).hexdigest())
    assert {f.fix.id for f in made.after if f.state is State.PRESENT} >= {"10001", "10002", "10003"}


def test_planning_again_on_the_result_changes_nothing() -> None:
    tree = toy.tree()
    again = plan(applied(plan(tree), tree))
    assert again.changes
    assert again.pending == ()
    assert again.id == plan(tree).id
    assert not again.refused


def test_a_smaller_set_takes_back_what_only_the_larger_one_wrote() -> None:
    tree = toy.tree()
    after = applied(plan(tree), tree)
    smaller = plan(after, only=("10001",))
    by_path = {c.path: c for c in smaller.pending}
    assert by_path[toy.HOLDS].after == toy.STOCK[toy.HOLDS].encode()
    assert toy.DOORS not in by_path
    assert toy.DOORS in {c.path for c in smaller.changes}


def test_the_wrong_base_is_refused_and_named() -> None:
    made = plan(toy.tree(version="1.3.0"))
    assert made.refused
    assert not made.changes
    assert "1.3.0, not 1.2.0" in str(made.refusals[0])
    assert "only for 1.2.0" in str(made.refusals[0])


def test_a_base_without_backports_is_refused() -> None:
    assert "only for 1.2.0" in str(plan(wanted="9.9.9").refusals[0])


def test_auto_takes_the_base_that_is_installed_and_lets_the_seams_decide_where_none_is_named() -> None:
    assert plan(wanted="9.9.9", auto=True).fixes == ("10001", "10002", "10003")
    assert plan(toy.tree(version="main"), auto=True).fixes == ("10001", "10002", "10003")


def test_one_lost_seam_refuses_the_whole_set() -> None:
    texts = {
        **toy.STOCK,
        toy.HOLDS: toy.STOCK[toy.HOLDS].replace("pages.free(room)", "pages.give_back(room)"),
    }
    made = plan(toy.tree(texts))
    assert made.refused
    assert made.changes == ()
    assert [r.fix for r in made.refusals] == ["10002"]
    assert "line 5, `pages.give_back(room)`" in str(made.refusals[0])
    assert not plan(toy.tree(texts), only=("10001",)).refused


def test_a_result_that_the_catalogue_would_not_recognise_is_refused() -> None:
    made = make_plan(
        toy.tree(), (toy.door("before"), *toy.BACKPORTS[1:]), toy.PAYLOAD, toy.matcher(), "1.2.0"
    )
    assert [r.fix for r in made.refusals] == ["10001"]
    assert "both the fixed and the vulnerable form" in str(made.refusals[0])
    assert made.changes == () or made.refused


def test_a_tree_that_holds_everything_gets_no_payload() -> None:
    made = plan()
    texts = {**toy.STOCK, **{one.file: one.after for one in made.edited}}
    assert plan(toy.tree(texts)).changes == ()


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_diff_is_what_patch_makes_of_the_tree(tmp_path: Path, newline: str) -> None:
    texts = {path: text.replace("\n", newline) for path, text in toy.STOCK.items()}
    made = plan(toy.tree(texts))
    for path, text in texts.items():
        file = tmp_path / "sglang" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())
    patch(made.diff().encode(), tmp_path)
    for change in made.changes:
        assert (tmp_path / "sglang" / change.path).read_bytes() == change.after


def test_every_file_that_a_plan_needs_is_asked_for() -> None:
    wanted = interesting(toy.BACKPORTS, toy.matcher(), toy.PAYLOAD)
    assert {toy.DOORS, toy.HOLDS, f"{PAYLOAD_FOLDER}/doors.py"} <= set(wanted)
