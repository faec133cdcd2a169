"""What one process says about itself: environment, titles below it, its configuration file."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Tuple

from pdguard.node import argline
from pdguard.node.names import CONFIG, ENV_NAMES, OPTIONS
from pdguard.node.procfs import ENVIRON_LIMIT, Proc, chain, descendants, inside, read, started, title

CONFIG_LIMIT = 64 * 1024
VALUE_LIMIT = 64
ENV_VALUE_LIMIT = 4096
MAX_TITLES = 1024
_LINE = re.compile(r"""(["']?)([A-Za-z0-9_.\-]+)\1[ ]*:(?:[ ]+(.*))?""")


def environment(proc: str, pid: int) -> Tuple[str, str, Dict[str, str]]:
    """State (read, all-nul, empty, unreadable), the reason, and the allow-listed variables."""
    data, why = read("%s/%d/environ" % (proc, pid), ENVIRON_LIMIT)
    if data is None:
        return "unreadable", why, {}
    if not data:
        return "empty", "", {}
    if not data.strip(b"\0"):
        return "all-nul", "", {}
    if len(data) >= ENVIRON_LIMIT:
        return "unreadable", "larger than 1 MiB", {}
    found: Dict[str, str] = {}
    for entry in data.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        word = name.decode("ascii", "replace")
        if equals and word in ENV_NAMES and word not in found:  # the first of two counts, as in Python
            text = value.decode("utf-8", "replace")
            if len(text) > ENV_VALUE_LIMIT:
                return "unreadable", "%s is longer than %d characters" % (word, ENV_VALUE_LIMIT), {}
            found[word] = text
    return "read", "", found


def configuration(proc: str, pid: int, args: List[str]) -> Dict[str, Any]:
    """How --config was given, and the allow-listed lines of the file.

    The engine merges the file only where `--config` is an argument of its own; `--config=file` (and an
    abbreviation) is accepted and then ignored.
    """
    if CONFIG not in args:
        near = [n for n in (a.partition("=")[0] for a in args) if len(n) >= 6 and CONFIG.startswith(n)]
        return {"how": "ignored" if near else "none"}
    at = args.index(CONFIG)
    path = inside(proc, pid, args[at + 1]) if at + 1 < len(args) else ""
    data, why = read(path, CONFIG_LIMIT + 1) if path else (None, "no path")
    if data is not None and len(data) > CONFIG_LIMIT:
        data, why = None, "larger than 64 KiB"
    rows = None if data is None else config_rows(data)
    if rows is None:
        return {"how": "unreadable", "why": why or "not plain `name: value` lines"}
    return {"how": "read", "rows": rows}


def config_rows(data: bytes) -> Optional[List[List[str]]]:
    """Names and values of a YAML file of plain lines, masked; None where it is more than that.

    There is no YAML reader in the standard library, and none is needed: what such a file sets is one line
    each. Anything that could change the meaning of another line (flow style, merge keys, an open quote) is
    not guessed at.
    """
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        return None
    rows: List[List[str]] = []
    base = -1
    for line in lines:
        body = line.strip()
        if not body or body.startswith("#") or (body == "---" and base < 0):
            continue
        indent = len(line) - len(line.lstrip(" "))
        base = indent if base < 0 else base
        if indent > base or (indent == base and rows and body.startswith("- ")):
            continue  # belongs to the value above
        match = _LINE.fullmatch(body)
        if match is None or indent < base or line[indent] == "\t":
            return None
        value = re.sub(r"(?:^|[ ]+)#.*$", "", match.group(3) or "").strip()
        quote = value[:1]
        if quote in ("'", '"'):
            if len(value) < 2 or value.find(quote, 1) != len(value) - 1:
                return None
            value = value[1:-1]
        elif quote in ("{", "[") and value[-1:] not in ("}", "]"):
            return None
        kept = "--" + match.group(2) in OPTIONS
        truth = not quote.strip("'\"") == "" and value.lower() in ("true", "false", "yes", "no", "on", "off")
        shown = value if kept and (truth or argline.harmless(value)) else "?"
        rows.append([match.group(2) if kept else "?", shown])
    return rows


def command_of(cmdline: bytes) -> argline.Command:
    """The command behind a command line."""
    return argline.command(argline.split(cmdline))


def titles(procs: Dict[int, Proc], pid: int) -> List[str]:
    """setproctitle names of the process and all below it."""
    below = [procs[p].cmdline for p in [pid, *descendants(procs, pid)] if p in procs]
    return sorted({name for name in map(title, below) if name})[:MAX_TITLES]


def describe(proc: str, procs: Dict[int, Proc], pid: int) -> Dict[str, Any]:
    """Everything about the process that may be told."""
    entry = procs[pid]
    found: Dict[str, Any] = {
        "pid": pid,
        "chain": chain(procs, pid),
        "started": started(proc, entry.ticks),
        "titles": titles(procs, pid),
    }
    state, why, values = environment(proc, pid)
    run = command_of(entry.cmdline)
    if title(entry.cmdline) or not entry.cmdline.strip(b"\0"):
        found["argv"] = {"state": "retitled"}
    elif not run.program:
        found["argv"] = {"state": "not understood"}
    else:
        found["argv"] = {"state": "read", "program": run.program, "args": argline.mask(run.args)}
        found["config"] = configuration(proc, pid, run.args)
        if state == "read" and run.shell:
            if run.env_unsure or any("$" in v or "`" in v for v in run.env.values()):
                state, why = "unreadable", "started through a shell script that may set variables"
            if any(len(v) > ENV_VALUE_LIMIT for v in run.env.values()):
                state, why = "unreadable", "a variable of the command line is too long"
            values = {**values, **run.env}
    found["env"] = {"state": state, "why": why, "values": values if state == "read" else {}}
    return found
