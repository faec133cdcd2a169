"""Where the settings of a running engine come from: its arguments, its configuration file, its environment.

Everything that a place shows is blotted out here, whoever built it: an argument, a line of a file or a
variable is shown only where it is on the allow-list and its value is a number or a known word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pdguard.facts._env_tables import SAYS_OFF, SAYS_ON
from pdguard.facts.process import EngineProcess
from pdguard.node import argline
from pdguard.node.names import CONFIG, ENV_NAMES, OPTIONS
from pdguard.node.process import CONFIG_LIMIT, command_of, environment
from pdguard.node.procfs import CMDLINE_LIMIT, inside, read, title

_LINE = re.compile(r"(\s*)(['\"]?)([A-Za-z0-9_.\-]+)\2\s*:(?:\s+(.*))?")


@dataclass(frozen=True, slots=True)
class Launch:
    """What is known of an engine's start beyond its facts; None and empty say that it was not read.

    `args` are the arguments after the program, also of a command inside `sh -c`, and `assigned` what that
    shell sets in front of it. `config_rows` are names and values of the configuration file where its text was
    not read.
    """

    program: str = ""
    args: tuple[str, ...] | None = None
    assigned: Mapping[str, str] = field(default_factory=dict)
    config_path: str = ""
    config_text: str | None = None
    config_rows: tuple[tuple[str, str], ...] = ()
    environment: Mapping[str, str] | None = None
    pid: int | None = None


def launch_of(process: EngineProcess) -> Launch:
    """What the node script told of a process: the arguments blotted out, the configuration file as rows."""
    read_args = process.argv.state == "read"
    return Launch(
        program=process.argv.program if read_args else "",
        args=tuple(process.argv.args) if read_args else None,
        config_rows=tuple((name, value) for name, value in process.config.rows),
        environment=dict(process.env.values) if process.env.state == "read" else None,
        pid=process.pid,
    )


def read_local(pid: int, proc: str = "/proc") -> Launch:
    """The start of a process of this machine, with the text of its configuration file.

    What cannot be read is left out; nothing is raised for a process that is gone.
    """
    data, _ = read(f"{proc}/{pid}/cmdline", CMDLINE_LIMIT)
    state, _, variables = environment(proc, pid)
    known = dict(variables) if state == "read" else None
    if data is None or title(data):
        return Launch(environment=known, pid=pid)
    run = command_of(data)
    if not run.program:
        return Launch(environment=known, pid=pid)
    path, text = _config(proc, pid, run.args)
    if run.shell and (run.env_unsure or any("$" in v or "`" in v for v in run.env.values())):
        known = None  # the shell may have set anything
    elif known is not None:
        known |= run.env
    return Launch(run.program, tuple(run.args), dict(run.env), path, text, (), known, pid)


def _config(proc: str, pid: int, args: list[str]) -> tuple[str, str | None]:
    """Path and text of the file after `--config`, where it is an argument of its own and can be read."""
    if CONFIG not in args[:-1]:
        return "", None
    path = args[args.index(CONFIG) + 1]
    data, _ = read(inside(proc, pid, path) or "", CONFIG_LIMIT + 1)
    if data is None or len(data) > CONFIG_LIMIT:
        return path, None
    try:
        return path, data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return path, None


def shown_args(launch: Launch) -> list[str]:
    """The arguments, one an entry, with everything off the allow-list blotted out."""
    return argline.mask(list(launch.args or ()))


def shown_value(value: str) -> str:
    """A value of an allow-listed name, where it is a number, a known word or a spelling of on and off."""
    return value if argline.harmless(value) or value.lower() in SAYS_ON | SAYS_OFF else "?"


def shown_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The allow-listed ones, sorted by name."""
    return {n: shown_value(v) for n, v in sorted(variables.items()) if n in ENV_NAMES}


def shown_config(launch: Launch) -> list[str]:
    """The lines of the configuration file, or one line a row where its text was not read."""
    if launch.config_text is None:
        return [f"{name}: {shown_value(value)}" for name, value in launch.config_rows]
    return [_config_line(line) for line in launch.config_text.splitlines()]


def _config_line(line: str) -> str:
    bare = re.sub(r"\s+#.*$", "", line)
    if not bare.strip() or bare.lstrip().startswith("#"):
        return "#" if bare.strip() else ""
    match = _LINE.fullmatch(bare)
    if match is None:
        return "?"
    indent, name, value = match[1], match[3], (match[4] or "").strip()
    if "--" + name not in OPTIONS:
        return f"{indent}?: ?"
    return f"{indent}{name}: {shown_value(value.strip(chr(34) + chr(39)))}"
