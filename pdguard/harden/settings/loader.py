"""Reads `remediations/settings/*.yaml`: one setting a file, every fault of every file told with its place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pdguard._yaml import read_tree
from pdguard.errors import InputError, Problem
from pdguard.facts.catalogue import CATALOGUE
from pdguard.harden.settings.model import Closes, Setting, SettingExample
from pdguard.harden.settings.values import COMPUTED
from pdguard.node.names import ENV_NAMES, OPTIONS
from pdguard.policy.expression import Expression, ExpressionError
from pdguard.policy.message import Message

_CHECK = r"^[A-Z]{3,8}[0-9]{3}$"
_Text = Annotated[str, Field(min_length=1)]
_Expression = Annotated[str, Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Sets(_Strict):
    flag: str = ""
    variable: str = ""
    switch: bool = False

    @model_validator(mode="after")
    def _one(self) -> Self:
        if bool(self.flag) == bool(self.variable):
            raise ValueError("it sets either a flag or a variable")
        if self.flag and self.flag not in OPTIONS:
            raise ValueError(f"{self.flag} is no option that is read from launch commands")
        if self.variable and self.variable not in ENV_NAMES:
            raise ValueError(f"{self.variable} is no variable that is read from environments")
        if self.switch and self.variable:
            raise ValueError("only a flag is a switch")
        return self


class _Value(_Strict):
    literal: str = ""
    computed: str = ""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if bool(self.literal) == bool(self.computed):
            raise ValueError("a value is either a literal or computed")
        if self.computed and self.computed not in COMPUTED:
            raise ValueError(f"no such computation, expected {' | '.join(COMPUTED)}")
        return self


class _Closes(_Strict):
    check: Annotated[str, Field(pattern=_CHECK)]
    only_if: str = ""


class _Example(_Strict):
    engines: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    gives: Annotated[dict[str, str], Field(min_length=1)]


class _Setting(_Strict):
    id: Annotated[str, Field(pattern=r"^[a-z][a-z-]*$")]
    title: _Text
    sets: _Sets
    roles: Annotated[list[Literal["prefill", "decode"]], Field(min_length=1)]
    since: Annotated[str, Field(pattern=r"^(\d+\.\d+\.\d+)?$")] = ""
    also_with: list[str] = []
    exists_if: _Expression = "true"
    exists_else: str = ""
    value: _Value
    good_if: str = ""
    fact: str
    follows: str = ""
    together: bool = False
    needs_all: bool = False
    optional: bool = False
    closes: list[_Closes | Annotated[str, Field(pattern=_CHECK)]] = []
    eases: list[Annotated[str, Field(pattern=_CHECK)]] = []
    closes_admission_alone: bool = False
    why: _Text
    cost: _Text
    order: _Text
    refs: list[str] = []
    examples: Annotated[list[_Example], Field(min_length=1)]


def load_settings(folder: Path) -> tuple[Setting, ...]:
    """All settings of `folder`, sorted by id.

    Raises InputError with every problem found: a file that is no setting, an option or variable that is not
    read, a fact that does not exist, an expression that does not compile, a setting that follows none.
    """
    problems: list[Problem] = []
    if not any(folder.glob("*.yaml")):
        problems.append(Problem(str(folder), 0, 0, "no setting in it, expected files such as hold.yaml"))
    found = [s for s in (_load(f, problems) for f in sorted(folder.glob("*.yaml"))) if s is not None]
    ids = {s.id for s in found}
    for setting in found:
        if setting.follows and setting.follows not in ids:
            problems.append(Problem(setting.file, 1, 1, f"follows {setting.follows}, which is no setting"))
    if problems:
        raise InputError("the settings cannot be used", problems)
    return tuple(sorted(found, key=lambda s: s.id))


def _load(file: Path, problems: list[Problem]) -> Setting | None:
    read = read_tree(file, problems)
    if read is None:
        return None
    node, raw = read
    faults = _Faults(file, node, problems)
    try:
        data = _Setting.model_validate(raw)
    except ValidationError as error:
        for one in error.errors(include_url=False, include_input=False):
            faults.add(one["loc"], one["msg"].removeprefix("Value error, "))
        return None
    _judge(data, file, faults)
    return None if faults.found else _setting(data, file)


class _Faults:
    """Collects the problems of one file, each at the place of the key that it is about."""

    def __init__(self, file: Path, node: Any, problems: list[Problem]) -> None:
        self.file, self.node, self.problems, self.found = file, node, problems, 0

    def add(self, loc: tuple[int | str, ...], what: str) -> None:
        """Report `what` at the deepest part of `loc` that the file has."""
        self.found += 1
        mark = getattr(self.node, "start_mark", None)
        node = self.node
        for step in loc:
            node = _below(node, step)
            if node is None:
                break
            mark = node.start_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        where = ".".join(str(s) for s in loc)
        self.problems.append(Problem(str(self.file), line, column, f"{where}: {what}" if where else what))


def _below(node: Any, step: int | str) -> Any:
    if isinstance(node, yaml.MappingNode):
        return next((v for k, v in node.value if isinstance(k, yaml.ScalarNode) and k.value == step), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step]
    return None


def _judge(data: _Setting, file: Path, faults: _Faults) -> None:
    """What a schema cannot say."""
    if file.stem != data.id:
        faults.add(("id",), f"a setting's file bears its id, expected {data.id}.yaml")
    if data.fact not in CATALOGUE["engine"]:
        faults.add(("fact",), f"there is no fact engine.{data.fact}")
    if bool(data.value.literal) != bool(data.good_if):
        faults.add(("good_if",), "a literal has good_if, a computed value has none")
    if data.exists_if != "true" and not data.exists_else:
        faults.add(("exists_if",), "exists_else is missing: what is said where the setting does not exist")
    expressions = [("exists_if", data.exists_if), ("good_if", data.good_if)]
    expressions += [("closes", c.only_if) for c in data.closes if isinstance(c, _Closes)]
    for key, text in expressions:
        _expression(key, text, faults)
    for root, name in Message(data.exists_else).refs:
        if root != "engine" or name not in CATALOGUE["engine"]:
            faults.add(("exists_else",), f"{root}.{name} cannot be used here")
    for number, example in enumerate(data.examples):
        _example(number, example, faults)


def _expression(key: str, text: str, faults: _Faults) -> None:
    if not text:
        return
    try:
        refs = Expression(text).refs
    except ExpressionError as error:
        faults.add((key,), f"{key} does not compile: {error}")
        return
    for root, name in refs:
        if root not in ("engine", "policy"):
            faults.add((key,), f"{root} cannot be used here, expected engine | policy")
        elif name not in CATALOGUE[root]:
            faults.add((key,), f"there is no fact {root}.{name}")


def _example(number: int, example: _Example, faults: _Faults) -> None:
    for engine, facts in example.engines.items():
        for name in facts:
            if name not in CATALOGUE["engine"]:
                faults.add(("examples", number, "engines", engine, name), f"there is no fact engine.{name}")
    for engine, outcome in example.gives.items():
        if engine not in example.engines:
            faults.add(("examples", number, "gives", engine), "no such engine in this example")
        if not re.fullmatch(r"keep|skip|[0-9a-z.]+\??", outcome):
            faults.add(("examples", number, "gives", engine), "expected a value, keep or skip")


def _setting(data: _Setting, file: Path) -> Setting:
    def line(text: str) -> str:
        return " ".join(text.split())

    return Setting(
        id=data.id,
        title=line(data.title),
        flag=data.sets.flag,
        variable=data.sets.variable,
        switch=data.sets.switch,
        roles=tuple(data.roles),
        since=data.since,
        also_with=tuple(data.also_with),
        exists_if=data.exists_if,
        exists_else=line(data.exists_else),
        literal=data.value.literal,
        computed=data.value.computed,
        good_if=data.good_if,
        fact=data.fact,
        follows=data.follows,
        together=data.together,
        needs_all=data.needs_all,
        optional=data.optional,
        closes=tuple(Closes(c) if isinstance(c, str) else Closes(c.check, c.only_if) for c in data.closes),
        eases=tuple(data.eases),
        closes_admission_alone=data.closes_admission_alone,
        why=line(data.why),
        cost=line(data.cost),
        order=line(data.order),
        refs=tuple(data.refs),
        examples=tuple(SettingExample(_frozen(e.engines), dict(e.gives)) for e in data.examples),
        file=str(file),
    )


def _frozen(engines: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        engine: {name: tuple(v) if isinstance(v, list) else v for name, v in facts.items()}
        for engine, facts in engines.items()
    }
