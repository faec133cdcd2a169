"""The engines' and routers' own error sentences: which kind each is, and the numbers that it quotes.

The text comes in, a class and a few bounded numbers go out, nothing else of it is kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pdguard.probe.interface import ErrorClass

LONGEST = 64 * 1024
"""Characters of an error that are looked at."""

_N = r"(?P<{}>\d{{1,12}})"
_TOKENS, _LIMIT = _N.format("tokens"), _N.format("limit")
_SECONDS = r"(?P<seconds>\d{1,9}(?:\.\d{1,9})?)"

# The first that is found decides: a sentence about a transfer ends with its reason, which says more.
_PATTERNS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        # What a hardened half says of the other one, whose own reason may follow.
        (ErrorClass.RELEASED, r"(?:prefill|decode) has refused the request at its door"),
        (
            ErrorClass.OVER_LIMIT,
            rf"Input length \({_TOKENS} tokens?\) exceeds the maximum allowed length \({_LIMIT} tokens?\)",
        ),
        (ErrorClass.OVER_LIMIT, rf"exceeds the maximum number of tokens: {_TOKENS} > {_LIMIT}"),
        (ErrorClass.OVER_LIMIT, r"exceeds the maximum allowed length|exceeds the maximum number of tokens"),
        (
            ErrorClass.OVER_CONTEXT,
            rf"The input \({_TOKENS} tokens?\) is longer than the model.{{1,6}}s context length"
            rf" \({_LIMIT} tokens?\)",
        ),
        (ErrorClass.OVER_CONTEXT, r"is longer than the model.{1,6}s context length"),
        (
            ErrorClass.OVER_TOTAL,
            rf"Requested token count exceeds the model.{{1,6}}s maximum context length of {_LIMIT} tokens?\."
            rf".{{0,80}}?: {_TOKENS} tokens? from the input",
        ),
        (ErrorClass.OVER_TOTAL, r"Requested token count exceeds the model"),
        (ErrorClass.RANK_CONFLICT, r"follow_bootstrap_room conflict"),
        (ErrorClass.CHECKSUM, r"KV checksum mismatch"),
        (ErrorClass.WAITED_DECODE, rf"timed out after {_SECONDS} ?s in KVPoll\.WaitingForInput"),
        (ErrorClass.WAITED_PREFILL, rf"timed out after {_SECONDS} ?s in KVPoll\.Bootstrapping"),
        (ErrorClass.WAITED_DECODE, r"Timed out waiting for prefill completion"),
        (ErrorClass.ABORTED, r"Aborted by |Abort in waiting queue|Request is disconnected"),
        (
            ErrorClass.TRANSFER,
            r"(?:Decode|Prefill) (?:transfer|bootstrap) failed|KVTransferError|Lost connection with prefill"
            r"|Could not fetch (?:bootstrap info|prefill parallel info)|Decode instance could be dead",
        ),
        (
            ErrorClass.UNAVAILABLE,
            r"(?i)no[_ ]available[_ ](?:\w+ )?workers?|no (?:healthy |prefill |decode )+workers?"
            r"|circuit.?breaker|request queue is full|no active dp workers",
        ),
        (
            ErrorClass.NOT_TAKEN,
            r"did not match any variant|Invalid URL \(|unknown field `|invalid type: |Method Not Allowed",
        ),
        (ErrorClass.ABORTED, r"\A\s*Aborted\b"),
        (ErrorClass.UNAUTHORIZED, r"(?i)\A\s*(?:unauthorized|forbidden|invalid api key)"),
        (ErrorClass.NOT_TAKEN, r"\A\s*Not Found\s*\Z"),
    )
)

_BY_STATUS = {
    401: ErrorClass.UNAUTHORIZED,
    403: ErrorClass.UNAUTHORIZED,
    404: ErrorClass.NOT_TAKEN,
    405: ErrorClass.NOT_TAKEN,
    415: ErrorClass.NOT_TAKEN,
    422: ErrorClass.NOT_TAKEN,
    429: ErrorClass.UNAVAILABLE,
    499: ErrorClass.ABORTED,
    502: ErrorClass.UNAVAILABLE,
    503: ErrorClass.UNAVAILABLE,
    504: ErrorClass.UNAVAILABLE,
}


@dataclass(frozen=True, slots=True)
class Told:
    """What a sentence says: its class, and the numbers it quotes where it does."""

    error: ErrorClass
    tokens: int | None = None
    limit: int | None = None
    seconds: float | None = None


def told(text: str) -> Told | None:
    """What this error says, None where it is no known sentence."""
    text = text[:LONGEST]
    for kind, pattern in _PATTERNS:
        found = pattern.search(text)
        if found is not None:
            given = {name: value for name, value in found.groupdict().items() if value is not None}
            return Told(
                kind,
                tokens=int(given["tokens"]) if "tokens" in given else None,
                limit=int(given["limit"]) if "limit" in given else None,
                seconds=float(given["seconds"]) if "seconds" in given else None,
            )
    return None


def by_status(status: int | None) -> ErrorClass:
    """The class that a status alone tells."""
    return _BY_STATUS.get(status or 0, ErrorClass.OTHER)
