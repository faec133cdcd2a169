"""A version tells only what the examined releases leave no choice about."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdguard.facts.versions import EXAMINED, parse_version

CHANGE = {(0, 4, 10): "old", (0, 5, 20): "new"}


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("0.5.19", "release", "old"),
        ("0.5.20", "release", "new"),
        ("0.5.20.post1", "release", "new"),
        ("0.5.23+cu130", "release", "new"),
        ("v0.5.21", "release", "new"),
        ("0.5.20rc1", "development", None),
        ("0.5.20.dev3", "development", None),
        ("0.5.19+g680bd4b42", "development", None),
        ("0.5.10.post2.dev346+g680bd4b42", "development", "old"),
        ("0.5.22.dev1", "development", "new"),
        ("0.5.7", "unexamined", "old"),
        ("0.5.22+acme.7", "development", "new"),
        ("0.5.19+git1234567", "development", None),
        ("0.5.19.7", "development", None),
        ("1!0.5.19", "development", None),
        ("0.5", "unexamined", "old"),
        ("0.5.24", "newer", None),
        ("0.6.0", "newer", None),
        ("0.5.23+gdeadbeef", "newer", None),
        ("0.4.6", "older", None),
    ],
)
def test_lookup(text: str, kind: str, value: str | None) -> None:
    version = parse_version(text)
    assert version is not None
    assert (version.kind, version.lookup(CHANGE)) == (kind, value)


def test_a_release_between_two_that_differ_tells_nothing() -> None:
    version = parse_version("0.5.7")
    assert version is not None
    assert version.lookup({(0, 4, 10): "a", (0, 5, 10): "b"}) is None


def test_a_stretch_never_established_tells_nothing() -> None:
    version = parse_version("0.4.10")
    assert version is not None
    assert version.lookup({(0, 4, 10): None, (0, 5, 5): "x"}) is None


@pytest.mark.parametrize("text", ["", "main", "latest", "0.5.20 ; rm", "0" * 70, "\x1b[31m"])
def test_what_is_no_version(text: str) -> None:
    assert parse_version(text) is None


@given(st.text(max_size=80))
def test_any_text_is_a_version_or_none(text: str) -> None:
    version = parse_version(text)
    if version is not None:
        assert version.lookup(CHANGE) in ("old", "new", None)


@given(st.sampled_from(EXAMINED))
def test_an_examined_release_always_has_an_answer(release: tuple[int, int, int]) -> None:
    version = parse_version(".".join(map(str, release)))
    assert version is not None
    assert version.lookup(CHANGE) == ("new" if release >= (0, 5, 20) else "old")
