"""What operators write into variables, and what is made of it."""

from __future__ import annotations

import math
import re

from pdguard.facts._env_tables import MOONCAKE_FLOOR, MOONCAKE_SECONDS, SAYS_OFF, SAYS_ON
from pdguard.facts.interface import Missing

MAX_RAW = 64


def say_raw(raw: str | None) -> str:
    """A value of the hold's variable in words that may be shown: a known spelling, or that it is none."""
    if raw is None:
        return "unset"
    if len(raw) > MAX_RAW:
        return "an unknown word"
    bare = raw.strip()
    word = bare.strip("\"'")
    if word.lower() not in SAYS_ON | SAYS_OFF:
        return "an unknown word"
    return (
        (word or "empty") + (" in quotes" if bare != word else "") + (" with spaces" if raw != bare else "")
    )


def said(raw: str | None) -> str:
    """What an operator means by a value: on, off, something unknown, or nothing at all."""
    if raw is None:
        return ""
    word = raw.strip().strip("\"'").lower() if len(raw) <= MAX_RAW else "?"
    if word in SAYS_ON:
        return "on"
    return "off" if word in SAYS_OFF else "something unknown"


def kind_of(seconds: float) -> str:
    """T_hold in a word: finite, zero, negative, nan or infinite."""
    if math.isnan(seconds):
        return "nan"
    if seconds == math.inf:
        return "infinite"
    if seconds < 0:
        return "negative"
    return "zero" if seconds == 0 else "finite"


def mooncake_timeout(raw: str | None) -> float | Missing:
    """Seconds that Mooncake makes of MC_TRANSFER_TIMEOUT: C's `atoi`, and never less than 5.

    A text that does not begin with a number is 0 to `atoi`, and so 5 seconds, not the default of 30.
    """
    if raw is None:
        return float(MOONCAKE_SECONDS)
    match = re.match(r"[ \t\n\v\f\r]*([-+]?[0-9]{1,40})", raw)
    number = int(match.group(1)) if match else 0
    if abs(number) >= 2**31:
        return Missing("MC_TRANSFER_TIMEOUT is larger than what Mooncake can read")
    return float(max(MOONCAKE_FLOOR, number))
