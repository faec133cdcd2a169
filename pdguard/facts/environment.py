"""Environment variables as the engine itself reads them, version by version.

The engine is strict where operators are not: `on` is no truth value to it, and what it does not understand it
replaces by its default, which changed from off to on. Every fact here is computed for each release at which
the reading may have changed and kept only where the version in question leaves no choice.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pdguard.facts import _env_tables as tables
from pdguard.facts._env_words import kind_of, mooncake_timeout, said, say_raw
from pdguard.facts.interface import FactSet, Grade, Missing, Value
from pdguard.facts.versions import EngineVersion, Release
from pdguard.node import names

ENV_FACTS = (
    "hold_raw",
    "hold_setting",
    "hold_misread",
    "t_hold",
    "t_hold_kind",
    "bootstrap_timeout",
    "waiting_timeout",
    "transfer_timeout",
    "batch_cap",
    "batch_cap_raw",
    "mori_timeout_ms",
    "tree_core",
    "rust_server",
    "test_injection",
    "env_not_understood",
    "env_overridden",
)
"""Facts that this module gives or explains."""

_TRUE = frozenset(("true", "1", "yes", "y"))
_FALSE = frozenset(("false", "0", "no", "n"))
_OLD_TRUE = frozenset(("true", "1"))
_OLD_FALSE = frozenset(("false", "0"))

Setting = bool | int | float | str
Answer = Value | Missing


@dataclass(frozen=True, slots=True)
class EnvReading:
    """Facts by name, the reasons for those that are missing, and the variable behind each."""

    facts: Mapping[str, Value] = field(default_factory=dict)
    missing: Mapping[str, Missing] = field(default_factory=dict)

    def put(self, facts: FactSet, source: str, where: str) -> None:
        """Add everything to `facts`; `where` is the place that the variables were read at."""
        for name, value in self.facts.items():
            shown = self.facts.get("hold_raw") if name.startswith("hold_") else None
            facts.add(
                name, value, Grade.CONFIGURED, source, f"{where} {_VARIABLE.get(name, '')}".strip(), shown
            )
        for name, gap in self.missing.items():
            facts.miss(name, gap.reason, gap.how)


_VARIABLE = {
    "hold_raw": names.HOLD,
    "hold_setting": names.HOLD,
    "hold_misread": names.HOLD,
    "t_hold": names.T_HOLD,
    "t_hold_kind": names.T_HOLD,
    "bootstrap_timeout": names.BOOTSTRAP_TIMEOUT,
    "waiting_timeout": names.WAITING_TIMEOUT,
    "transfer_timeout": names.MC_TIMEOUT,
    "batch_cap": names.BATCH_CAP,
    "batch_cap_raw": names.BATCH_CAP,
    "mori_timeout_ms": names.MORI_TIMEOUT,
    "tree_core": names.TREE_CORE,
    "rust_server": names.RUST_SERVER,
}


class _Engine:
    """One release reading one environment."""

    def __init__(self, env: Mapping[str, str], release: Release) -> None:
        self._env = env
        self._release = release

    def raw(self, name: str) -> str | None:
        """The text the engine sees: an `SGL_` twin is copied over the variable before anything reads it."""
        if self._release >= tables.TWIN_RULE and name.startswith("SGLANG_"):
            return self._env.get(names.twin(name), self._env.get(name))
        return self._env.get(name)

    def has(self, name: str) -> bool:
        """Whether this release knows the variable."""
        return self._release >= tables.ALL[name].since

    def understood(self, name: str) -> bool:
        """Whether the text, if any, is one that the reader of the variable takes."""
        raw = self.raw(name)
        return raw is None or not self.has(name) or self._parse(name, raw) is not None

    def setting(self, name: str) -> Setting:
        """What the engine makes of the variable."""
        default = tables.ALL[name].default_at(self._release)
        raw = self.raw(name)
        if raw is None or not self.has(name):
            return default
        parsed = self._parse(name, raw)
        return default if parsed is None else parsed

    def _parse(self, name: str, raw: str) -> Setting | None:
        kind = tables.ALL[name].kind
        if kind == "bool":
            word = raw.lower()
            old = self._release < tables.TWIN_RULE  # get_bool_env_var, before there was a registry
            if word in (_OLD_TRUE if old else _TRUE):
                return True
            return False if word in (_OLD_FALSE if old else _FALSE) else None
        if kind == "text":
            return raw
        try:
            return int(raw) if kind == "int" else float(raw)
        except ValueError:
            return None

    def hold_raw(self) -> Answer:
        return say_raw(self.raw(names.HOLD))

    def hold_setting(self) -> Answer:
        return self.has(names.HOLD) and self.setting(names.HOLD) is True

    def hold_misread(self) -> Answer:
        meant = said(self.raw(names.HOLD))
        if meant == "":
            return "no"
        if not self.has(names.HOLD):
            return "no" if meant == "off" else f"said {meant}, has no hold"
        does = "on" if self.hold_setting() else "off"
        return "no" if meant == does else f"said {meant}, is {does}"

    def t_hold(self) -> Answer:
        seconds = self._seconds()
        if isinstance(seconds, float) and not math.isfinite(seconds):
            return Missing(f"T_hold is {kind_of(seconds)}", "set a finite number of seconds")
        return seconds

    def t_hold_kind(self) -> Answer:
        seconds = self._seconds()
        return kind_of(seconds) if isinstance(seconds, float) else seconds

    def _seconds(self) -> float | Missing:
        if not self.has(names.T_HOLD):
            return Missing("this version has no hold, and so no T_hold")
        return float(self.setting(names.T_HOLD))

    def bootstrap_timeout(self) -> Answer:
        return _seconds_of(self.setting(names.BOOTSTRAP_TIMEOUT))

    def waiting_timeout(self) -> Answer:
        return _seconds_of(self.setting(names.WAITING_TIMEOUT))

    def transfer_timeout(self) -> Answer:
        return mooncake_timeout(self._env.get(names.MC_TIMEOUT))

    def batch_cap(self) -> Answer:
        return self.setting(names.BATCH_CAP)

    def batch_cap_raw(self) -> Answer:
        """Also where the release does not know the variable: a fix that it was given may."""
        raw = self.raw(names.BATCH_CAP)
        if raw is None:
            return "unset"
        try:
            return str(int(raw))
        except ValueError:
            return "no number"

    def mori_timeout_ms(self) -> Answer:
        return self.setting(names.MORI_TIMEOUT)

    def tree_core(self) -> Answer:
        core = self.setting(names.TREE_CORE)
        return core if core in ("python", "rust") else "other"

    def rust_server(self) -> Answer:
        return self.setting(names.RUST_SERVER)

    def test_injection(self) -> Answer:
        active = [name for name in names.INJECTIONS if self.has(name) and self._active(name)]
        if self._release < tables.OLD_FAILURE_PROB_GONE and self._env.get(names.OLD_FAILURE_PROB, "0") != "0":
            active.append(names.OLD_FAILURE_PROB)
        return tuple(sorted(active))

    def _active(self, name: str) -> bool:
        setting = self.setting(name)
        return bool(setting) and not (isinstance(setting, float) and math.isnan(setting))

    def env_not_understood(self) -> Answer:
        return tuple(sorted(name for name in tables.ALL if not self.understood(name)))

    def env_overridden(self) -> Answer:
        if self._release < tables.TWIN_RULE:
            return ()
        pairs = ((name, self._env.get(name), self._env.get(names.twin(name))) for name in tables.ALL)
        return tuple(sorted(name for name, own, twin in pairs if None not in (own, twin) and own != twin))


def parse_environment(
    env: Mapping[str, str] | None, version: EngineVersion | None, *, registered_only: bool = False
) -> EnvReading:
    """Read `env` as the engine of this version does.

    `env` is None where it could not be read; `version` is None where it is not known. `registered_only` says
    that `env` is the engine's own list over HTTP, which holds registered variables after start: twins are
    already merged there, and Mooncake's own variable never shows.
    """
    if env is None:
        return EnvReading(
            missing={name: Missing("the environment of the engine was not read") for name in ENV_FACTS}
        )
    return _parsed(frozenset(env.items()), version, registered_only)


@functools.lru_cache(maxsize=1024)  # the engines of a fleet mostly share one environment
def _parsed(
    items: frozenset[tuple[str, str]], version: EngineVersion | None, registered_only: bool
) -> EnvReading:
    env = dict(items)
    engines = {release: _Engine(env, release) for release in tables.POINTS}
    facts: dict[str, Value] = {}
    missing: dict[str, Missing] = {}
    for name in ENV_FACTS:
        ask: Callable[[_Engine], Answer] = getattr(_Engine, name)
        answer = _agreed(version, {release: ask(engine) for release, engine in engines.items()})
        silent = name in ("transfer_timeout", "env_overridden") or (
            name == "batch_cap_raw" and answer == "unset"  # shown by releases that know it only
        )
        if registered_only and silent:
            answer = Missing("the engine does not show this over HTTP", "give the engine a `node:`")
        if isinstance(answer, Missing):
            missing[name] = answer
        else:
            facts[name] = answer
    return EnvReading(facts, missing)


def _agreed(version: EngineVersion | None, answers: Mapping[Release, Answer]) -> Answer:
    """The answer that the version leaves no choice about, or why there is none."""
    if version is None:
        first, *rest = answers.values()
        agree = all(type(a) is type(first) and a == first for a in rest)
        return (
            first
            if agree
            else Missing("versions read this differently, and the engine's version is not known")
        )
    found = version.lookup({release: (answer,) for release, answer in answers.items()})
    if found is not None:
        return found[0]
    if version.kind in ("older", "newer"):
        return Missing(f"{version.text} is {version.kind} than the versions whose reading is known")
    return Missing(f"{version.text} lies between releases that read this differently")


def _seconds_of(setting: Setting) -> Answer:
    try:
        return float(setting)
    except OverflowError:
        return Missing("the timeout is too large to be a number of seconds")
