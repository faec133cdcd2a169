"""Argument lists: unwrapped from shells, and masked before they leave the node.

A masked list keeps its length. An option of the allow-list keeps its name, a number or a known word after it
keeps its value; every other option becomes `--?`, every other word `?`, and one that a shell would still have
to expand `$?`.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import Dict, List, NamedTuple, Tuple

from pdguard.node.names import CONFIG, ENV_NAMES, OPTIONS, WORDS

SHELLS = frozenset(("sh", "bash", "dash", "ash", "zsh", "ksh"))
ENGINE_MODULES = frozenset(("sglang.launch_server", "sglang.cli.main", "dynamo.sglang"))
ROUTER_MODULES = frozenset(
    (
        "sglang_router",
        "sglang_router.launch_router",
        "sglang_router.cli",
        "smg",
        "smg.launch_router",
        "smg.cli",
    )
)
ROUTER_COMMANDS = frozenset(("sglang-router", "amg", "smg", "sgl-model-gateway", "sgl-router"))
MAX_ARGS = 8192
_NUMBER = re.compile(r"[-+]?(?:\d[\d_]{0,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][-+]?\d{1,4})?")
_ASSIGN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_BREAK = frozenset(";&|\n()")
_MAY_SET = frozenset(
    (".", "source", "eval", "set", "declare", "typeset", "unset", "read", "if", "for", "while")
)


class Command(NamedTuple):
    """A command line: what is run, with which arguments, and what its shell adds to the environment."""

    program: str
    args: List[str]
    shell: bool
    env: Dict[str, str]
    env_unsure: bool


def split(cmdline: bytes) -> List[str]:
    """The arguments in /proc/PID/cmdline; an empty one counts, the closing NUL does not."""
    if not cmdline.strip(b"\0"):
        return []
    data = cmdline[:-1] if cmdline.endswith(b"\0") else cmdline
    return [part.decode("utf-8", "replace") for part in data.split(b"\0")[:MAX_ARGS]]


def command(tokens: List[str]) -> Command:
    """The SGLang command in an argument list, also inside `sh -c "..."`."""
    text = _shell_text(tokens)
    if text is None:
        program, args = _program(tokens)
        return Command(program, args, False, {}, False)
    env: Dict[str, str] = {}
    unsure = False
    for words in _statements(text):
        rest, own, odd = _prefix(words)
        unsure = unsure or odd
        program, args = _program(rest)
        if program:
            return Command(program, args, True, {**env, **own}, unsure)
        if rest[:1] == ["export"]:
            env.update(_assignments(rest[1:]))
        elif not rest and own:
            env.update(own)  # a plain assignment reaches the child only where the name is exported already
            unsure = True
        elif rest[:1] and rest[0] in _MAY_SET:
            unsure = True
    return Command("", [], True, {}, True)


def _shell_text(tokens: List[str]) -> str | None:
    """The script of `sh -c SCRIPT`, or None where this is no such command."""
    if not tokens or os.path.basename(tokens[0]).lstrip("-") not in SHELLS:
        return None
    with_c = takes_word = False
    for word in tokens[1:]:
        if takes_word:  # -o pipefail
            takes_word = False
        elif not word.startswith(("-", "+")):
            return word if with_c else None
        elif not word.startswith("--"):
            with_c = with_c or "c" in word
            takes_word = word.endswith("o")
    return None


def _statements(text: str) -> List[List[str]]:
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=";&|()\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    found: List[List[str]] = [[]]
    try:
        for word in lexer:
            if word and all(c in _BREAK for c in word):
                found.append([])
            elif len(found[-1]) < MAX_ARGS:
                found[-1].append(word)
    except ValueError:
        return []  # an unclosed quote: not something to guess at
    return [words for words in found if words]


def _assignments(words: List[str]) -> Dict[str, str]:
    found: Dict[str, str] = {}
    for word in words:
        match = _ASSIGN.fullmatch(word)
        if match and match.group(1) in ENV_NAMES:
            found[match.group(1)] = match.group(2)
    return found


def _prefix(words: List[str]) -> Tuple[List[str], Dict[str, str], bool]:
    """Words after `A=1 exec env B=2 ...`, what was assigned, and whether more may have been changed."""
    own: List[str] = []
    odd = False
    i = 0
    while i < len(words):
        if _ASSIGN.fullmatch(words[i]):
            own.append(words[i])
        elif words[i] in ("-i", "-u") and i:
            odd = True
        elif words[i] not in ("exec", "env", "nohup", "time"):
            break
        i += 1
    return words[i:], _assignments(own), odd


def _program(tokens: List[str]) -> Tuple[str, List[str]]:
    for i, word in enumerate(tokens):
        after = tokens[i + 1 : i + 2]
        base = os.path.basename(word)
        if word == "-m" and after:
            module = after[0]
            if module in ENGINE_MODULES or module in ROUTER_MODULES:
                return module, tokens[i + 2 :]
            if "sglang" in module.split("."):
                return "sglang", tokens[i + 2 :]
        if base == "sglang" and after == ["serve"]:
            return "sglang serve", tokens[i + 2 :]
        if base == "launch_server.py":
            return "sglang.launch_server", tokens[i + 1 :]
        if base in ROUTER_COMMANDS and i < 3:
            return base, tokens[i + 1 :]
    return "", []


def is_engine(program: str) -> bool:
    """Whether a program name is one of the engine's."""
    return program in ENGINE_MODULES or program in ("sglang serve", "sglang")


def is_router(program: str) -> bool:
    """Whether a program name is one of a router's."""
    return program in ROUTER_MODULES or program in ROUTER_COMMANDS


def harmless(value: str) -> bool:
    """Whether a value may leave the node: a number, a truth word or a word of the allow-list."""
    return value in WORDS or value in ("true", "false", "nan", "inf") or bool(_NUMBER.fullmatch(value))


def _shown(value: str) -> str:
    if harmless(value):
        return value
    return "$?" if "$" in value or "`" in value else "?"


def mask(args: List[str]) -> List[str]:
    """The arguments with everything that is not on the allow-list blotted out."""
    found: List[str] = []
    kept = False
    for i, word in enumerate(args):
        name, equals, value = word.partition("=")
        if word == "--":
            found.extend([word] + ["?"] * (len(args) - i - 1))
            break
        known = len(name) > 2 and (name == CONFIG or any(o.startswith(name) for o in OPTIONS))
        if word.startswith("--") and (known or " " not in word):
            shown = name if known else "--?"
            found.append(shown + equals + (_shown(value) if known else "?") if equals else shown)
            kept = known and not equals
        else:
            found.append(_shown(word) if kept else "?")
            kept = False
    return found


def option(args: List[str], *names: str) -> str | None:
    """The last value of an option as argparse would see it, or None."""
    found = None
    for i, token in enumerate(args):
        name, equals, value = token.partition("=")
        if name in names and equals:
            found = value
        elif token in names and i + 1 < len(args):
            found = args[i + 1]
    return found
