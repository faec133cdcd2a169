"""A change of one setting as lines of the place that it comes from, and those lines as a unified diff."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from pdguard.facts import _env_tables as tables
from pdguard.facts.argv import parse_argv
from pdguard.facts.deriving import version_of
from pdguard.facts.interface import FactSet, Subject
from pdguard.facts.versions import OLDEST
from pdguard.harden.settings.model import Proposal, Setting
from pdguard.harden.settings.places import (
    Launch,
    shown_args,
    shown_config,
    shown_value,
    shown_variables,
)
from pdguard.node.names import CONFIG, OPTIONS, twin

UNKNOWN = "not known"
COMMAND = "launch command"
CONFIG_FILE = "configuration file"


@dataclass(frozen=True, slots=True)
class Change:
    """`place` is empty where the source is not known; there are no lines then."""

    current: str
    current_from: str
    place: str = ""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def change(setting: Setting, new: str, engine: Subject, launch: Launch | None) -> Change:
    """What sets `setting` on `engine` to `new`, and what is there now."""
    if setting.flag:
        return _flag(setting, new, engine, launch)
    return _variable(setting, new, engine, launch)


def render_diff(proposal: Proposal) -> str:
    """The change as a unified diff, or nothing where its source is not known; ends with a line feed."""
    if not proposal.place:
        return ""
    old, wanted = proposal.place, f"{proposal.place}, with {proposal.target}"
    lines = difflib.unified_diff(proposal.before, proposal.after, old, wanted, lineterm="")
    return "".join(f"{line}\n" for line in lines)


def describe(proposal: Proposal) -> str:
    """The change in one sentence, for where there is no diff or as its heading."""
    now = f"now {proposal.current}, by {proposal.current_from}"
    if not proposal.place:
        now = f"now {proposal.current}; where it is set is not known"
    joined = " " if proposal.target.startswith("--") else "="
    value = "" if proposal.new == "on" else joined + proposal.new
    doubt = "" if proposal.sure else "make sure of "
    return f"{proposal.engine}: {doubt}{proposal.target}{value} ({now})"


# Options


def _flag(setting: Setting, new: str, engine: Subject, launch: Launch | None) -> Change:
    if launch is not None and launch.args is not None:
        return _in_launch(setting, new, engine, launch)
    for fact, said_by in (("process_flags", "of the process"), ("launch_flags", "as the engine tells it")):
        shown = engine.facts.items(fact)
        if shown is not None:
            merged = engine.facts.text("config_file") in ("read", None)
            return _in_shown([str(s) for s in shown], setting, new, engine, said_by, merged)
    return Change(_in_force(setting, engine.facts), UNKNOWN)


def _in_shown(
    shown: Sequence[str], setting: Setting, new: str, engine: Subject, said_by: str, merged: bool
) -> Change:
    """The facts list options merged from the command and its file, the known ones only."""
    args = [token for option in shown for token in (option.split(" ", 1) if option[:1] == "-" else [option])]
    after, current = _edited(args, setting, new)
    place = f"{COMMAND} of {engine.name} {said_by}"
    notes = ("options of a configuration file, if there is one, are merged in",) if merged else ()
    if current is None:
        return Change(_in_force(setting, engine.facts), "default", place, tuple(args), tuple(after), notes)
    origin = f"{COMMAND} or {CONFIG_FILE}" if merged else COMMAND
    return Change(current, origin, place, tuple(args), tuple(after), notes)


def _in_launch(setting: Setting, new: str, engine: Subject, launch: Launch) -> Change:
    """The command line wins over its file, so what it says is what to edit."""
    args = shown_args(launch)
    head = [*(f"{n}={v}" for n, v in shown_variables(launch.assigned).items()), launch.program or "?"]
    after, current = _edited(args, setting, new)
    command = f"{COMMAND} of {engine.name}"
    if current is None and _read_config(launch):
        inside = _in_config(setting, new, engine, launch)
        if inside is not None:
            return inside
    origin = COMMAND if current is not None else "default"
    value = current if current is not None else _in_force(setting, engine.facts)
    return Change(value, origin, command, (*head, *args), (*head, *after))


def _read_config(launch: Launch) -> bool:
    """Whether the engine merges the file: only where `--config` is an argument of its own."""
    return CONFIG in (launch.args or ()) and (launch.config_text is not None or bool(launch.config_rows))


def _in_config(setting: Setting, new: str, engine: Subject, launch: Launch) -> Change | None:
    lines = shown_config(launch)
    field = OPTIONS[setting.flag]
    for at in reversed(range(len(lines))):
        name, colon, value = lines[at].partition(":")
        if colon and OPTIONS.get("--" + name.strip()) == field:
            after = [*lines]
            after[at] = f"{name}: {'true' if setting.switch else new}"
            place = f"{CONFIG_FILE} {launch.config_path}".rstrip()
            note = () if launch.config_path else ("the path of the file was not read",)
            if not launch.config_path:
                place += f" of {engine.name}"
            return Change(value.strip(), CONFIG_FILE, place, tuple(lines), tuple(after), note)
    return None


def _edited(args: Sequence[str], setting: Setting, new: str) -> tuple[list[str], str | None]:
    """The arguments with the last occurrence of the option changed, or the option added; and what it was."""
    field = OPTIONS[setting.flag]
    after = list(args)
    for at in reversed(range(len(after))):
        name, equals, value = after[at].partition("=")
        if not _means(name, field):
            continue
        if setting.switch:
            return after, "on"
        if equals:
            after[at] = f"{name}={new}"
            return after, value
        if at + 1 < len(after) and not after[at + 1].startswith("--"):
            was, after[at + 1] = after[at + 1], new
            return after, was
    end = after.index("--") if "--" in after else len(after)
    if end == len(after) and after and after[-1].startswith("+"):
        end -= 1  # the count of options that are not shown
    return [*after[:end], setting.flag, *([] if setting.switch else [new]), *after[end:]], None


def _means(name: str, field: str) -> bool:
    """Whether an argument is the option, or an abbreviation of it that the engine takes."""
    if not name.startswith("--"):
        return False
    probe = parse_argv([name, "1"])
    return field in probe.values or field in probe.unread


def _in_force(setting: Setting, facts: FactSet) -> str:
    value = facts.value(setting.fact)
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    return UNKNOWN if value is None else str(value)


# Variables


def _variable(setting: Setting, new: str, engine: Subject, launch: Launch | None) -> Change:
    if launch is not None and launch.environment is not None:
        return _in_environment(setting, new, engine, launch, dict(launch.environment))
    return _from_facts(setting, new, engine)


def _in_environment(
    setting: Setting, new: str, engine: Subject, launch: Launch, env: dict[str, str]
) -> Change:
    """The variable itself; a legacy twin, which overrides it, is taken out."""
    name, old = setting.variable, twin(setting.variable)
    raw = env.get(old, env.get(name))
    in_command = any(n in launch.assigned for n in (name, old)) and launch.args is not None
    source = dict(launch.assigned) if in_command else env
    wanted = {n: v for n, v in source.items() if n != old} | {name: new}
    before = [f"{n}={v}" for n, v in shown_variables(source).items()]
    after = [f"{n}={v}" for n, v in shown_variables(wanted).items()]
    notes = (f"{old} overrides {name} and is taken out",) if old in source else ()
    current = _in_force(setting, engine.facts)
    if raw is not None:
        current = _as_read(setting, engine.facts, shown_value(raw) or "empty")
    if in_command:
        rest = [launch.program or "?", *shown_args(launch)]
        place = f"{COMMAND} of {engine.name}"
        return Change(current, COMMAND, place, (*before, *rest), (*after, *rest), notes)
    place = f"environment of {engine.name}" + (f" (pid {launch.pid})" if launch.pid else "")
    origin = "environment" if raw is not None else "default"
    return Change(current, origin, place, tuple(before), tuple(after), notes)


def _from_facts(setting: Setting, new: str, engine: Subject) -> Change:
    """Facts tell what the engine makes of the variable, and mostly whether it was set."""
    facts, name = engine.facts, setting.variable
    fact = facts.get("hold_raw") if setting.fact == "hold_setting" else facts.get(setting.fact)
    read = facts.flag("env_read")
    if fact is None and not read:
        return Change(UNKNOWN, UNKNOWN)
    over_http = fact is not None and bool(fact.evidence) and fact.evidence[0].source == "http"
    place = f"environment of {engine.name}" + (" as the engine tells it" if over_http else "")
    notes: tuple[str, ...] = ()
    if name in (facts.items("env_overridden") or ()):
        notes = (f"{twin(name)} overrides {name}: take it out",)
    line, current = _line(setting, facts)
    before = () if line is None else (line,)
    origin = "default" if line is None else "environment"
    return Change(current, origin, place, before, (f"{name}={new}",), notes)


def _as_read(setting: Setting, facts: FactSet, raw: str) -> str:
    """A spelling, and what the engine makes of it where it does not understand it."""
    misread = setting.fact == "hold_setting" and facts.text("hold_misread") not in ("no", None)
    if misread or setting.variable in (facts.items("env_not_understood") or ()):
        return f"{raw}, which is read as {_in_force(setting, facts)}"
    return raw


def _line(setting: Setting, facts: FactSet) -> tuple[str | None, str]:
    """The line that sets it, None where it is not set (or set to its default, which is the same)."""
    name = setting.variable
    if setting.fact == "hold_setting":
        raw = facts.text("hold_raw") or "unset"
        if raw == "unset":
            return None, _in_force(setting, facts)
        word = {"empty": ""}.get(raw, raw)
        return f"{name}={word if ' ' not in word else '?'}", _as_read(setting, facts, raw)
    value = facts.number(setting.fact)
    kind = facts.text("t_hold_kind") if setting.fact == "t_hold" else None
    if value is None:
        return (f"{name}=?", kind) if kind else (None, UNKNOWN)
    if name in (facts.items("env_not_understood") or ()):
        return f"{name}=?", f"not understood, so {value:g}"
    version = version_of(facts)
    default = tables.ALL[name].default_at(version.release) if version and version.release >= OLDEST else 0
    return (None if float(default) == value else f"{name}={value:g}"), f"{value:g}"
