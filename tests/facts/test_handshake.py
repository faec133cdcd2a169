"""The outcome of the abort handshake, against the executed tables, cell by cell."""

from __future__ import annotations

import pytest

from pdguard.facts.handshake import WORDS, outcome
from pdguard.facts.versions import EngineVersion, parse_version

VERSIONS = ("0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")

# Rows decode, columns prefill. Letters as in pdguard.facts.handshake.
SWITCHED_ON = {
    "mooncake": """
        NNNNNN NNNNNN NNNNNN NNNNNN NNNNNN NNNNNN
        TTTTNT DDTTNP DDTTNP DDDDND TTTTNT TTTTNT
        TTTTNT DDTTNP DDTTNP DDDDND TTTTNT TTTTNT
        TTTTTT DDTTEP DDTTEP DDDDED TTTTTT TTTTTT
        TTTTTT TTTTTT TTTTTT TTTTTT DDDDTD DDDDTD
        TTTTTT TTTTTT TTTTTT TTTTTT DDDDTD DDDDTD""",
    "nixl": """
        NNNN-N NNNN-N NNNN-N NNNN-N NNNN-N NNNN-N
        TTTT-T DDTT-P DDTT-P DDDT-D TTTT-T TTTT-T
        TTTT-T DDTT-P DDTT-P DDDT-D TTTT-T TTTT-T
        TTTT-T DDTT-P DDTT-P DDDT-D TTTT-T TTTT-T
        TTTT-T TTTT-T TTTT-T TTTT-T DDDD-D DDDD-D
        TTTT-T TTTT-T TTTT-T TTTT-T DDDD-D DDDD-D""",
    "mori": """
        NNNNNN NNNNNN NNNNNN NNNNNN NNNNNN NNNNNN
        TTTTNT TTTTNT TTTTNT TTTTNT TTTTNT TTTTNT
        TTTTNT TTTTNT TTTTNT TTTTNT TTTTNT TTTTNT
        NNNNNN NNNNNN NNNNNN NNNNNN NNNNNN NNNNNN
        TTTTTT TTTTTT TTTTTT TTTTTT DDDDED DDDDTD
        TTTTTT TTTTTT TTTTTT TTTTTT DDDDED DDDDTD""",
}
DEFAULTS = {
    "mooncake": """
        NNNNNN NNNNNN NNNNNN NNNNNN NNNNNN NNNNNN
        NNNNNN NNNNNN NNNNNN NNNNNN NNNNNN NNNNNN
        NNNNNN NNNNNN NNNNNN NNNNNN NNNNNN NNNNNN
        TTTTTT TTTTTT TTTTTT DDDDED TTTTTT TTTTTT
        TTTTTT TTTTTT TTTTTT TTTTTT DDDDTD DDDDTD
        TTTTTT TTTTTT TTTTTT TTTTTT DDDDTD DDDDTD""",
    "nixl": """
        NNNN-N NNNN-N NNNN-N NNNN-N NNNN-N NNNN-N
        NNNN-N NNNN-N NNNN-N NNNN-N NNNN-N NNNN-N
        NNNN-N NNNN-N NNNN-N NNNN-N NNNN-N NNNN-N
        TTTT-T TTTT-T TTTT-T DDDT-D TTTT-T TTTT-T
        TTTT-T TTTT-T TTTT-T TTTT-T DDDD-D DDDD-D
        TTTT-T TTTT-T TTTT-T TTTT-T DDDD-D DDDD-D""",
}


def version(text: str) -> EngineVersion:
    parsed = parse_version(text)
    assert parsed is not None
    return parsed


def cell(table: str, decode: str, prefill: str) -> str:
    return table.split()[VERSIONS.index(decode) * 6 + VERSIONS.index(prefill)]


def expected(letters: str) -> tuple[str | None, ...]:
    cleared = "T" if "T" in letters[2:4] else letters[2]
    return tuple(WORDS.get(x) for x in (letters[1], cleared, letters[4], letters[5]))


@pytest.mark.parametrize("decode", VERSIONS)
@pytest.mark.parametrize("prefill", VERSIONS)
@pytest.mark.parametrize("backend", SWITCHED_ON)
def test_switched_on_at_both(backend: str, prefill: str, decode: str) -> None:
    # A decode that cannot hold (no code before 0.5.19, MORI on 0.5.21) does not, whatever is switched on.
    holds = version(decode).release >= (0, 5, 19) and (backend, decode) != ("mori", "0.5.21")
    found = outcome(backend, version(decode), version(prefill), holds, True)
    assert found is not None
    letters = cell(SWITCHED_ON[backend], decode, prefill)
    assert (found.in_flight, found.cleared, found.failed_send, found.ranks) == expected(letters)


@pytest.mark.parametrize("decode", VERSIONS)
@pytest.mark.parametrize("prefill", VERSIONS)
@pytest.mark.parametrize("backend", DEFAULTS)
def test_package_defaults(backend: str, prefill: str, decode: str) -> None:
    on = {v: version(v).release >= (0, 5, 21) for v in VERSIONS}
    found = outcome(backend, version(decode), version(prefill), on[decode], on[prefill])
    assert found is not None
    letters = cell(DEFAULTS[backend], decode, prefill)
    assert (found.in_flight, found.cleared, found.failed_send, found.ranks) == expected(letters)


def test_what_was_not_run_has_no_outcome() -> None:
    assert outcome("other", version("0.5.22"), version("0.5.22"), True, True) is None
    assert outcome("mooncake", version("0.5.24"), version("0.5.22"), True, True) is None
    assert outcome("mooncake", version("0.5.21.dev1"), version("0.5.22"), True, True) is None
    nixl = outcome("nixl", version("0.5.22"), version("0.5.22"), True, True)
    assert nixl is not None
    assert nixl.failed_send is None
