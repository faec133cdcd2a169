from __future__ import annotations

import hashlib

import pytest

from pdguard.errors import SelectionError
from pdguard.fingerprint.match import Matcher
from pdguard.harden.selection import base_of, choose
from tests.harden import toy


def findings(texts: dict[str, str]):  # type: ignore[no-untyped-def]
    def read(path: str) -> tuple[str, str] | None:
        text = texts.get(path)
        return None if text is None else (hashlib.sha256(text.encode()).hexdigest(), text)

    return Matcher(toy.FIXES).find(read)


def actions(only: tuple[str, ...] = (), excluded: tuple[str, ...] = (), **texts: str) -> dict[str, str]:
    chosen = choose(toy.BACKPORTS, findings({**toy.STOCK, **texts}), only, excluded)
    return {c.fix.id: c.action for c in chosen}


def test_all_of_a_base_go_in_each_behind_what_it_needs() -> None:
    assert list(actions()) == ["10001", "10002", "10003"]
    assert set(actions().values()) == {"apply"}


def test_only_pulls_in_what_is_needed_and_says_so() -> None:
    chosen = {c.fix.id: c for c in choose(toy.BACKPORTS, findings(toy.STOCK), ("10003",), ())}
    assert chosen["10001"].action == "left out"
    assert (chosen["10002"].action, chosen["10002"].why) == ("apply", "10003 needs it")
    assert (chosen["10003"].action, chosen["10003"].why) == ("apply", "")


def test_leaving_out_what_another_needs_is_refused() -> None:
    with pytest.raises(SelectionError, match="10003 needs 10002"):
        actions(excluded=("10002",))
    assert actions(excluded=("10002", "10003"))["10001"] == "apply"


def test_a_fix_that_is_there_stays() -> None:
    holds = toy.STOCK[toy.HOLDS].replace("pages.free(room)", "pdguard_holds.release(room)")
    got = choose(toy.BACKPORTS, findings({**toy.STOCK, toy.HOLDS: holds}), ("10003",), ("10002",))
    assert {c.fix.id: c.action for c in got}["10002"] == "present"
    assert {c.fix.id: c.action for c in got}["10003"] == "apply"


def test_what_is_needed_and_neither_here_nor_to_be_had_refuses_the_fix() -> None:
    chosen = choose(toy.BACKPORTS[2:], findings(toy.STOCK), (), ())
    assert [(c.fix.id, c.action) for c in chosen] == [("10003", "refused")]
    assert "10002" in chosen[0].why


def test_a_name_that_is_none_is_told_with_those_that_are() -> None:
    with pytest.raises(SelectionError, match="one of 10001, 10002, 10003, found 99999"):
        actions(only=("99999",))


@pytest.mark.parametrize(
    ("version", "base"),
    [
        ("0.5.20", "0.5.20"),
        ("0.5.20.post1", "0.5.20"),
        ("0.5.20+vendor.3", "0.5.20"),
        ("v0.5.20", "0.5.20"),
        ("0.5", "0.5.0"),
        ("0.5.20rc1", ""),
        ("0.5.21.dev12+gabc", ""),
        ("0.5.20.1", ""),
        ("main", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_the_release_that_a_version_belongs_to(version: str | None, base: str) -> None:
    assert base_of(version) == base
