"""What a setting file says, and what is proposed from it: plain frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pdguard.facts.interface import Value


@dataclass(frozen=True, slots=True)
class Closes:
    """A check that the setting closes; `only_if` is an expression over the engine, empty for always."""

    check: str
    only_if: str = ""


@dataclass(frozen=True, slots=True)
class SettingExample:
    """Engines as facts by name, and what comes of each.

    An outcome is the new value, the new value with `?` where the present one is not known, `keep` or `skip`.
    """

    engines: Mapping[str, Mapping[str, Value]]
    gives: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the engine, as its YAML file states it."""

    id: str
    title: str
    flag: str
    """Option string, empty where the setting is a variable."""
    variable: str
    """Environment variable, empty where the setting is an option."""
    switch: bool
    """The option takes no value."""
    roles: tuple[str, ...]
    since: str
    """First release that knows it, as the expression `exists_if` also has it; empty for all that are read."""
    also_with: tuple[str, ...]
    """Fixes that bring it to older releases."""
    exists_if: str
    exists_else: str
    literal: str
    computed: str
    """Name of the computation of `values.py`; `literal` is then empty."""
    good_if: str
    """Where this holds nothing needs to be set; a computation judges that itself."""
    fact: str
    """The fact that holds the value in force."""
    follows: str
    """Another setting; where that one is proposed, this one is looked at as well."""
    together: bool
    """Counts only once the engines of both roles have it."""
    needs_all: bool
    """Of use only where every engine of both roles has it."""
    optional: bool
    closes: tuple[Closes, ...]
    eases: tuple[str, ...]
    """Checks that name the setting and would still fail with it, though they matter less then."""
    closes_admission_alone: bool
    why: str
    cost: str
    order: str
    """Which restarts, and in which order."""
    refs: tuple[str, ...]
    examples: tuple[SettingExample, ...]
    file: str = ""

    @property
    def target(self) -> str:
        """The option or the variable."""
        return self.flag or self.variable


@dataclass(frozen=True, slots=True)
class Proposal:
    """One change of one engine. Never applied; `before` and `after` are lines of the place it is set at."""

    engine: str
    role: str
    setting: str
    title: str
    target: str
    current: str
    """The value in force as a text, `not known` where no fact tells."""
    current_from: str
    """Where that value comes from, in words: launch command, configuration file, environment, default."""
    new: str
    sure: bool
    """False where the value in force is not known, and the default would not do."""
    why: str
    """How the value was found: the numbers it rests on."""
    closes: tuple[tuple[str, str], ...]
    """Failed findings that this closes, as (check, target)."""
    eases: tuple[tuple[str, str], ...]
    closes_admission_alone: bool
    together: tuple[str, ...]
    """The engines, this one included, that all need it for it to count; empty where one alone will do."""
    optional: bool
    cost: str
    order: str
    place: str
    """What the lines are of; empty where the source is not known, and there are no lines then."""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Skipped:
    """A setting that is not proposed for an engine though a finding asks for it, and the reason."""

    engine: str
    setting: str
    reason: str


@dataclass(frozen=True, slots=True)
class SettingsPlan:
    """Everything that is proposed, by setting and engine, and what is not and why."""

    proposals: tuple[Proposal, ...] = ()
    skipped: tuple[Skipped, ...] = ()
