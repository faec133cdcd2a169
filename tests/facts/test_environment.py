from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdguard.facts._env_words import mooncake_timeout, say_raw
from pdguard.facts.catalogue import CATALOGUE
from pdguard.facts.environment import ENV_FACTS, parse_environment
from pdguard.facts.interface import FactSet, Missing
from pdguard.facts.versions import NEWEST, OLDEST, parse_version
from pdguard.node import names

VERSIONS = ["0.4.10", "0.5.5", "0.5.10", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"]


def read(env: dict[str, str], version: str | None = "0.5.23") -> dict[str, object]:
    reading = parse_environment(env, None if version is None else parse_version(version))
    assert set(reading.facts) | set(reading.missing) == set(ENV_FACTS)
    assert not set(reading.facts) & set(reading.missing)
    return dict(reading.facts)


def test_names_are_in_the_catalogue() -> None:
    assert set(ENV_FACTS) <= set(CATALOGUE["engine"])


@pytest.mark.parametrize(
    ("version", "text", "setting", "misread"),
    [
        ("0.5.20", "on", False, "said on, is off"),
        ("0.5.20", "off", False, "no"),
        ("0.5.21", "off", True, "said off, is on"),
        ("0.5.21", "", True, "said off, is on"),
        ("0.5.21", "on", True, "no"),
        ("0.5.23", "0", False, "no"),
        ("0.5.23", "ON!", True, "said something unknown, is on"),
        ("0.5.18", "1", False, "said on, has no hold"),
        ("0.5.18", "0", False, "no"),
    ],
)
def test_hold(version: str, text: str, setting: bool, misread: str) -> None:
    facts = read({names.HOLD: text}, version)
    assert facts["hold_setting"] is setting
    assert facts["hold_misread"] == misread


def test_unset_is_the_default_of_the_version() -> None:
    assert [read({}, v)["hold_setting"] for v in VERSIONS] == [False] * 6 + [True] * 3
    assert {read({}, v)["hold_misread"] for v in VERSIONS} == {"no"}
    assert [read({}, v)["tree_core"] for v in ("0.5.20", "0.5.21")] == ["python", "rust"]
    assert read({})["transfer_timeout"] == 30.0
    assert read({})["waiting_timeout"] == 300.0


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (None, "unset"),
        ("", "empty"),
        ("on", "on"),
        ("TRUE", "TRUE"),
        ("'1'", "1 in quotes"),
        (" 1", "1 with spaces"),
        ("sk-live-abc", "an unknown word"),
        ("1" * 500, "an unknown word"),
    ],
)
def test_raw_is_shown_only_where_it_is_a_known_word(raw: str | None, shown: str) -> None:
    assert say_raw(raw) == shown


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("60", "finite", 60.0),
        ("0", "zero", 0.0),
        ("-1", "negative", -1.0),
        ("nan", "nan", None),
        ("inf", "infinite", None),
        ("-inf", "negative", None),
        ("30s", "finite", 30.0),
        ("", "finite", 30.0),
        (" 45", "finite", 45.0),
    ],
)
def test_t_hold(text: str, kind: str, value: float | None) -> None:
    facts = read({names.T_HOLD: text})
    assert facts["t_hold_kind"] == kind
    assert facts.get("t_hold") == value
    assert (names.T_HOLD in facts["env_not_understood"]) is (text in ("30s", ""))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, 30.0),
        ("60", 60.0),
        ("30s", 30.0),
        ("abc", 5.0),
        ("", 5.0),
        ("-4", 5.0),
        ("1", 5.0),
        ("60.9", 60.0),
    ],
)
def test_mooncake_reads_with_atoi(text: str | None, seconds: float) -> None:
    assert mooncake_timeout(text) == seconds


def test_mooncake_overflow_is_not_guessed() -> None:
    assert isinstance(mooncake_timeout("9" * 30), Missing)


def test_twins_override_from_0_5_5() -> None:
    env = {
        names.HOLD: "1",
        names.twin(names.HOLD): "0",
        names.WAITING_TIMEOUT: "5",
        names.twin(names.WAITING_TIMEOUT): "5",
    }
    facts = read(env)
    assert facts["hold_setting"] is False
    assert facts["hold_raw"] == "0"
    assert facts["env_overridden"] == (names.HOLD,)
    old = read({names.WAITING_TIMEOUT: "5", names.twin(names.WAITING_TIMEOUT): "9"}, "0.4.10")
    assert old["waiting_timeout"] == 5.0
    assert old["env_overridden"] == ()


def test_development_versions_only_where_both_sides_agree() -> None:
    dev = "0.5.21.dev3+g1234567"
    assert "hold_setting" not in read({}, dev)
    assert "hold_setting" not in read({names.HOLD: "on"}, dev)
    assert read({names.HOLD: "1"}, dev)["hold_setting"] is True
    assert read({}, "0.5.23.dev3+g1234567")["hold_setting"] is True
    missing = parse_environment({}, parse_version(dev)).missing
    assert "between releases" in missing["hold_setting"].reason


def test_unknown_version_keeps_what_all_versions_share() -> None:
    facts = read({names.HOLD: "1"}, None)
    assert facts["waiting_timeout"] == 300.0
    assert facts["hold_raw"] == "1"
    assert "hold_setting" not in facts
    assert "tree_core" not in facts
    assert "hold_setting" not in read({}, "9.9.9")
    assert "newer" in parse_environment({}, parse_version("9.9.9")).missing["t_hold"].reason


def test_over_http_only_registered_variables_show() -> None:
    reading = parse_environment({}, parse_version("0.5.23"), registered_only=True)
    assert "transfer_timeout" in reading.missing
    assert "env_overridden" in reading.missing
    assert reading.facts["hold_setting"] is True


def test_unread_environment_explains_every_fact() -> None:
    assert set(parse_environment(None, parse_version("0.5.23")).missing) == set(ENV_FACTS)


def test_injection() -> None:
    name = "SGLANG_TEST_DISAGG_FAILURE_PROB"
    assert read({name: "0.1"})["test_injection"] == (name,)
    assert read({name: "0"})["test_injection"] == ()
    assert read({name: "x"})["test_injection"] == ()
    assert read({names.OLD_FAILURE_PROB: "0.2"}, "0.5.12")["test_injection"] == (names.OLD_FAILURE_PROB,)
    assert read({names.OLD_FAILURE_PROB: "0.2"}, "0.5.13")["test_injection"] == ()


def test_evidence_shows_the_spelling() -> None:
    facts = FactSet()
    parse_environment({names.HOLD: "on"}, parse_version("0.5.20")).put(facts, "process", "/proc/7/environ")
    fact = facts.get("hold_setting")
    assert fact is not None
    assert fact.value is False
    assert fact.evidence[0].value == "on"
    assert fact.evidence[0].ref == f"/proc/7/environ {names.HOLD}"


@given(
    st.dictionaries(st.sampled_from(sorted(names.ENV_NAMES)), st.text(max_size=80)),
    st.sampled_from([None, "9.9", "0.5.20.dev1", *VERSIONS]),
)
def test_anything_can_be_read_and_nothing_is_echoed(env: dict[str, str], version: str | None) -> None:
    secret = "sk-planted"
    env = {name: secret + text for name, text in env.items()}
    facts = read(env, version)
    assert secret not in repr(facts)
    for name, value in facts.items():
        kind = CATALOGUE["engine"][name].type
        expected = {"text": str, "int": int, "float": float, "bool": bool, "list": tuple}[kind]
        assert type(value) is expected, name


def test_examined_versions_are_covered() -> None:
    assert (OLDEST, NEWEST) == ((0, 4, 10), (0, 5, 23))
