"""The outcome of the abort handshake, against the executed tables, cell by cell."""

from __future__ import annotations

import pytest

from pdguard.facts.interface import Subject, Value
from pdguard.facts.pairing import build_pairs
from tests.facts.build import engine

VERSIONS = ("0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")

# Rows decode, columns prefill. Letters: quiet; in flight; cleared before the drain and before the ABORT;
# a failed send; two ranks.
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


WORDS = {"D": "drained", "T": "timeout", "N": "no hold", "E": "early ack", "P": "partial"}


def cell(table: str, decode: str, prefill: str) -> str:
    return table.split()[VERSIONS.index(decode) * 6 + VERSIONS.index(prefill)]


def expected(letters: str) -> tuple[str | None, ...]:
    cleared = "T" if "T" in letters[2:4] else letters[2]
    return tuple(WORDS.get(x) for x in (letters[1], cleared, letters[4], letters[5]))


def found(backend: str, prefill: str, decode: str, hold: bool | None) -> tuple[Value | None, ...]:
    """The four facts of a real pair of these versions; `hold` None leaves each version's default."""

    def half(role: str, text: str) -> Subject:
        default = text in ("0.5.21", "0.5.22", "0.5.23")
        setting = default if hold is None else hold
        return engine(role, text, backend=backend, hold_setting=setting, t_hold_kind="finite")

    (pair,) = build_pairs([half("prefill", prefill)], [half("decode", decode)], [])
    names = ("handshake", "handshake_cleared", "handshake_failed_send", "handshake_ranks")
    return tuple(pair.facts.value(n) for n in names)


@pytest.mark.parametrize("decode", VERSIONS)
@pytest.mark.parametrize("prefill", VERSIONS)
@pytest.mark.parametrize("backend", SWITCHED_ON)
def test_switched_on_at_both(backend: str, prefill: str, decode: str) -> None:
    assert found(backend, prefill, decode, True) == expected(cell(SWITCHED_ON[backend], decode, prefill))


@pytest.mark.parametrize("decode", VERSIONS)
@pytest.mark.parametrize("prefill", VERSIONS)
@pytest.mark.parametrize("backend", DEFAULTS)
def test_package_defaults(backend: str, prefill: str, decode: str) -> None:
    assert found(backend, prefill, decode, None) == expected(cell(DEFAULTS[backend], decode, prefill))


@pytest.mark.parametrize(
    ("backend", "prefill", "decode"),
    [("other", "0.5.22", "0.5.22"), ("mooncake", "0.5.22", "0.5.24"), ("mooncake", "0.5.21.dev1", "0.5.21")],
)
def test_what_was_not_run_has_no_outcome(backend: str, prefill: str, decode: str) -> None:
    word = found(backend, prefill, decode, True)[0]
    assert word is None or (backend, word) == ("other", "no hold")
