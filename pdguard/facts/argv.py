"""Launch arguments as the engine's argparse reads them, down to values that are typed and harmless.

Any argument may hold a secret. Only the options of an allow-list are read, and of those only a value of the
right type; everything else is counted and never kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pdguard.facts.interface import Scalar
from pdguard.node.names import CONFIG, FLAG_ROWS, OPTIONS

MAX_ARGS = 8192
MAX_DIGITS = 40

_TYPES = {row[0]: row[1] for row in FLAG_ROWS}
_WORDS = {row[0]: frozenset(row[3]) for row in FLAG_ROWS}
_SHOWN = {row[0]: row[2][0] for row in FLAG_ROWS}
_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")

NEWER_FIELDS = frozenset(
    (
        "attn_dp_size",
        "attn_cp_size",
        "dcp_size",
        "disaggregation_enable_kv_checksum",
        "disaggregation_decode_enable_radix_cache",
        "disaggregation_decode_enable_offload_kvcache",
        "disaggregation_decode_retraction_backup",
        "disaggregation_decode_host_receive_threshold",
        "disaggregation_decode_allocation_policy",
        "disaggregation_decode_extra_slots",
        "enable_hisparse",
        "enable_pd_role_switch",
        "kv_canary",
        "kv_canary_real_data",
        "kv_canary_sweep_interval",
        "optimistic_prefill_attempts",
        "tokenizer_worker_num",
    )
)
"""Options that some version lacks: there, an abbreviation of theirs may have meant another option."""


@dataclass(frozen=True, slots=True)
class Flags:
    """What could be read.

    `values` by field, in the order of the arguments; `repeated` are fields given more than once (the last
    counts); `unread` are fields whose value is not of the option's type or still holds a shell variable;
    `others` is how many more options there were.
    """

    values: Mapping[str, Scalar] = field(default_factory=dict)
    repeated: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    others: int = 0

    def shown(self) -> tuple[str, ...]:
        """The options for a report: `--context-length 4096`, …, `+12 others not shown`."""
        texts = [
            _SHOWN[name] if value is True else f"{_SHOWN[name]} {value}"
            for name, value in self.values.items()
        ]
        if self.others:
            texts.append(f"+{self.others} others not shown")
        return tuple(texts)


def parse_argv(args: Sequence[str]) -> Flags:
    """Read the arguments of the engine (without the program) as its argparse does.

    `--name value`, `--name=value` and unambiguous prefixes count; underscores do not, argparse knows no such
    spelling.
    """
    values: dict[str, Scalar] = {}
    seen: dict[str, int] = {}
    unread: set[str] = set()
    others = 0
    i = 0
    while i < min(len(args), MAX_ARGS):
        token = args[i]
        i += 1
        if token == "--":  # noqa: S105 - the end of the options
            break
        option, equals, value = token.partition("=")
        if not token.startswith("--") or (" " in token and option not in OPTIONS):
            continue
        name = _resolve(option)
        if name is None:
            others += 1
            continue
        seen[name] = seen.get(name, 0) + 1
        given: str | None = value if equals else None
        if _TYPES[name] != "bool" and given is None and i < len(args) and _is_value(args[i]):
            given = args[i]
            i += 1
        typed = _typed(name, given)
        values.pop(name, None)
        unread.discard(name)
        if typed is None:
            unread.add(name)
        else:
            values[name] = typed
    return Flags(
        values=values,
        repeated=tuple(sorted(name for name, count in seen.items() if count > 1)),
        unread=tuple(sorted(unread)),
        others=others + len(unread),
    )


def _resolve(option: str) -> str | None:
    """The field behind an option string or an unambiguous prefix of one.

    A prefix that the running engine accepted was unambiguous there. It can only be ours where our option
    exists in every version, and only if it fits a single one of ours.
    """
    if option in OPTIONS:
        return OPTIONS[option]
    if len(option) < 4 or option == CONFIG:
        return None
    fits = {name for known, name in OPTIONS.items() if known.startswith(option)}
    if len(fits) == 1 and not fits & NEWER_FIELDS:
        return fits.pop()
    return None


def _is_value(word: str) -> bool:
    return not word.startswith("-") or " " in word or bool(_NEGATIVE.fullmatch(word)) or word == "-"


def _typed(name: str, text: str | None) -> Scalar | None:
    kind = _TYPES[name]
    if kind == "bool":
        return True if text is None else None
    if text is None or len(text) > MAX_DIGITS:
        return None
    if kind == "word":
        return text if text in _WORDS[name] else None
    try:
        number = int(text) if kind == "int" else float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def merge_config(args: Sequence[str], rows: Iterable[tuple[str, str]]) -> list[str]:
    """The arguments with those of the `--config` file put before them, so that the command line wins.

    `rows` are names and values as the node sends them. A name is an option string without its dashes; a truth
    value of a switch adds it or leaves it out, and a value that was blotted out stays unreadable.
    """
    merged: list[str] = []
    for name, value in dict(rows).items():
        known = OPTIONS.get("--" + name)
        if known is None:
            merged.append("--?")
        elif _TYPES[known] != "bool":
            merged.append(f"--{name}={value}")
        elif value.lower() in ("true", "yes", "on"):
            merged.append("--" + name)
        elif value.lower() not in ("false", "no", "off"):
            merged.append(f"--{name}=?")
    at = args.index(CONFIG) if CONFIG in args else len(args)
    return [*merged, *args[:at], *args[at + 2 :]]


def launch_flags(command: str | Sequence[str]) -> tuple[str, ...]:
    """What may be shown of a launch command.

    A text is split at white space alone: the engine joins its arguments with spaces and quotes none of them.
    """
    return parse_argv(command.split()[:MAX_ARGS] if isinstance(command, str) else command).shown()
