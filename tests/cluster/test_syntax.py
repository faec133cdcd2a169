"""Faults of the text itself: the YAML, before any field is looked at."""

# ruff: noqa: E501 - an error is one line, and is shown as one

from __future__ import annotations

import time

import pytest
import yaml

from tests.cluster.support import BASE, HEAD, P0, errors_of, parse

EMPTY = "1:1: the file is empty, expected a cluster with at least one engine"

TABLE = {
    "empty": ("", [EMPTY]),
    "a comment only": ("# nothing here\n", [EMPTY]),
    "an empty document": ("---\n...\n", [EMPTY]),
    "a list": ("[]", ["1:1: the file has the wrong type, expected a mapping, found a list"]),
    "text": ("hello", ["1:1: the file has the wrong type, expected a mapping, found text"]),
    "a number": ("3", ["1:1: the file has the wrong type, expected a mapping, found a number"]),
    "two documents": (
        BASE + "---\n" + BASE,
        ["4:1: a second document begins, expected one document in a file"],
    ),
    "a tab": (
        HEAD + "\t- a\n",
        ["3:1: a tab is used for indentation, expected spaces, found a tab"],
    ),
    "a tab after spaces": (
        "cluster: c\nengines:\n  \t- a\n",
        ["3:3: a tab is used for indentation, expected spaces, found a tab"],
    ),
    "an alias of nothing": (
        "cluster: *x\n",
        ["1:10: an alias names no anchor above it, expected an anchor (&name) before its alias"],
    ),
    "an alias of itself": (
        "cluster: c\nengines: &e [*e]\n",
        ["2:14: an alias stands inside what it names, expected an alias of a finished value"],
    ),
    "a NUL byte": (
        "cluster: c\nengines: \0\n",
        ["2:10: the file is not plain text, expected printable characters, found a NUL byte"],
    ),
    "a control character": (
        "cluster: \x1b[0m\n",
        [
            "1:10: the file is not plain text, expected printable characters, found the control character U+001B"
        ],
    ),
    "a lone surrogate": (
        "cluster: \ud800\n",
        [
            "1:10: the file is not plain text, expected printable characters, found the control character U+D800"
        ],
    ),
    "a key twice": (
        BASE + "cluster: d\n",
        ["4:1: a key is written twice in one mapping, expected each key once, found the first on line 1"],
    ),
    "a key twice, deep": (
        HEAD + "  - name: p0\n    role: prefill\n    url: http://a\n    role: decode\n",
        ["6:5: a key is written twice in one mapping, expected each key once, found the first on line 4"],
    ),
    "a key without value": (
        BASE + "routers:\n",
        ["4:1: a key has no value, expected a value, or neither key nor value"],
    ),
    "an item without value": (HEAD + P0 + "  -\n", ["4:4: a list item has no value, expected a value"]),
    "a number for a key": (
        BASE + "nodes:\n  1: {transport: local}\n",
        ["5:3: a key is not text, expected text, in quotes if need be, found a number"],
    ),
    "a list for a key": (
        BASE + "? [a]\n: b\n",
        ["4:3: a key is not text, expected text, in quotes if need be, found a list"],
    ),
    "no key": (
        BASE + "?\n: b\n",
        ["4:2: a key is not text, expected text, in quotes if need be, found nothing"],
    ),
    "a tag": (
        BASE.replace("cluster: c", "cluster: !!python/object/apply:os.system [id]"),
        [
            "1:10: a YAML tag is used, expected a value without a tag",
            "1:10: cluster has the wrong type, expected text, found a list",
        ],
    ),
    "a merge of no mapping": (
        BASE + "<<: 3\n",
        [
            "4:5: '<<' takes in something that is not a mapping, expected an alias of a mapping, found a number"
        ],
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_fault_has_its_place(name: str) -> None:
    text, expected = TABLE[name]
    assert errors_of(text) == expected


@pytest.mark.skipif(not hasattr(yaml, "CSafeLoader"), reason="the wording below is libyaml's")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "a: [1\nb: 2",
            "2:2: not valid YAML while parsing a flow sequence: did not find expected ',' or ']'",
        ),
        ("a: b: c", "1:5: not valid YAML: mapping values are not allowed in this context"),
        (
            "***",
            "1:2: not valid YAML while scanning an alias: did not find expected alphabetic or numeric character",
        ),
        (
            "a: @x",
            "1:4: not valid YAML while scanning for the next token: found character that cannot start any token",
        ),
        ('a: "\\q"', "1:5: not valid YAML while parsing a quoted scalar: found unknown escape character"),
        ("a: 'x", "1:6: not valid YAML while scanning a quoted scalar: found unexpected end of stream"),
    ],
)
def test_broken_yaml_has_a_place(text: str, expected: str) -> None:
    assert errors_of(text) == [expected]


def test_pure_python_yaml_gives_a_place_and_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdguard.cluster.tree._LOADER", yaml.SafeLoader)
    assert errors_of("a: [1\nb: 2") == [
        "2:2: not valid YAML while parsing a flow sequence: expected ',' or ']', but got ':'"
    ]
    assert errors_of("!secret!x a: 1") == [
        "1:1: not valid YAML while parsing a node: found undefined tag handle something else"
    ]
    assert parse(BASE).cluster == "c"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        "- " * 200_000,
        "{a: " * 100_000,
        "? " * 100_000,
        "".join(" " * i + "a:\n" for i in range(500)),
        "a: &a [" + "[" * 28 + "]" * 28 + "]\nb: &b [" + "[" * 28 + "*a" + "]" * 28 + "]\n",
    ],
)
def test_deep_nesting_is_refused_with_a_place(text: str) -> None:
    (line,) = errors_of(text)
    assert "nested too deep" in line or "nesting" in line or "not valid YAML" in line


def test_alias_bomb_is_refused_at_once() -> None:
    lines = ["a0: &a0 [" + ",".join("x" * 10) + "]"]
    lines += [f"a{i}: &a{i} [" + ",".join([f"*a{i - 1}"] * 10) + "]" for i in range(1, 12)]
    began = time.perf_counter()
    (error,) = errors_of("\n".join(lines))
    assert "too many values once its aliases are expanded, expected at most 250000" in error
    assert time.perf_counter() - began < 2


def test_merge_bomb_is_refused() -> None:
    lines = ["m0: &m0 {" + ",".join(f"k{i}: v" for i in range(1000)) + "}"]
    lines += ["m1: {<<: [" + ",".join(["*m0"] * 1000) + "]}"]
    (error,) = errors_of("\n".join(lines))
    assert "too many values" in error


def test_anchors_and_merges_work() -> None:
    cluster = parse(
        HEAD
        + "  - &p {name: p0, role: prefill, url: 'http://a', bootstrap_port: 8998}\n"
        + "  - {<<: *p, name: p1, url: 'http://b'}\n"
        + "  - {<<: [*p], name: p2, url: 'http://c'}\n"
    )
    assert [(e.name, e.bootstrap_port) for e in cluster.engines] == [("p0", 8998), ("p1", 8998), ("p2", 8998)]


def test_a_quoted_merge_key_is_an_unknown_key() -> None:
    assert errors_of(BASE + '"<<": {cluster: d}\n') == [
        "4:1: unknown key, expected one of cluster, engines, routers, nodes, auth, prometheus, waivers, policy, "
        "found another key"
    ]


@pytest.mark.parametrize(
    "text", ["\ufeff" + BASE, BASE.replace("\n", "\r\n"), "---\n" + BASE + "...\n", "# é\n" + BASE]
)
def test_harmless_variations_load(text: str) -> None:
    assert parse(text).cluster == "c"


@pytest.mark.parametrize(
    "word", ["on", "yes", "no", "0o17", "010", "0x1f", "1_000", "1:30", "2026-01-01", "1e999", "="]
)
def test_yaml_surprises_stay_text(word: str) -> None:
    name = word.replace(":", "-").replace("=", "eq")
    assert parse(BASE.replace("cluster: c", f"cluster: {name}")).cluster == name
    assert parse(BASE + f"prometheus: {{url: 'http://p', selector: {{l: {word}}}}}\n").prometheus is not None
