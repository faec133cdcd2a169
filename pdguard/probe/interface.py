"""The seams of a probe: one request, what was seen of its answer, one step, its result. Frozen, content-free.

Nothing here can hold a byte of a body: an answer is a status, counts, times, an error *class*, numbers that
a refusal quotes, and keyed hashes. The key of the hashes is made anew for each run and never leaves the
process.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from pdguard.facts._fetch import PLAIN, Tls
from pdguard.facts.interface import Scalar
from pdguard.facts.observed import EngineMark


class Api(enum.Enum):
    """A path that takes prompts."""

    GENERATE = "/generate"
    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"


class Role(enum.Enum):
    """Who answered."""

    PREFILL = "prefill"
    DECODE = "decode"
    ROUTER = "router"


@dataclass(frozen=True, slots=True)
class Target:
    """A server that requests go to. `key` is its API key, shown to it alone and in no representation."""

    name: str
    role: Role
    base: str
    key: str | None = field(default=None, repr=False)
    tls: Tls = PLAIN


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Where the two halves of one direct request meet. `room` is congruent to the DP rank modulo dp_size."""

    host: str
    port: int
    room: int


@dataclass(frozen=True, slots=True)
class Ask:
    """One request with a synthetic prompt of `length` tokens, the same for the same `seed`.

    `rid` is the request id, which begins with `pdguard-probe-`. `words` replaces the token ids by a text of
    so many words, for paths that take no ids (`length` is then what is expected of it). `rank` pins a DP
    rank. `model` is the name that OpenAI's paths want.
    """

    api: Api
    length: int
    rid: str
    seed: int = 0
    new_tokens: int = 4
    stream: bool = False
    words: int | None = None
    model: str = ""
    bootstrap: Bootstrap | None = None
    rank: int | None = None


class ErrorClass(enum.Enum):
    """What kind of error an answer holds, told by the engine's own sentences, of which none is kept."""

    NONE = "none"
    OVER_LIMIT = "over the admission limit"
    OVER_CONTEXT = "over the context length"
    OVER_TOTAL = "prompt and completion over the context length"
    WAITED_DECODE = "decode waited for the transfer in vain"
    WAITED_PREFILL = "prefill waited for decode in vain"
    TRANSFER = "transfer failed"
    RELEASED = "ended by the other half's door"
    CHECKSUM = "checksum mismatch"
    RANK_CONFLICT = "the room belongs to another DP rank"
    ABORTED = "aborted"
    UNAUTHORIZED = "key refused"
    NOT_TAKEN = "this path, or this form of a prompt, is not taken"
    UNAVAILABLE = "no engine available"
    OTHER = "another error"


class Finish(enum.Enum):
    """The finish reason, as far as it is one of the known words."""

    NONE = "none"
    LENGTH = "length"
    STOP = "stop"
    ABORT = "abort"
    OTHER = "other"


class End(enum.Enum):
    """How the exchange ended."""

    COMPLETE = "complete"
    CLOSED = "closed by the probe"
    NO_CONNECTION = "no connection"
    BROKEN = "the connection broke"
    UNREADABLE = "not an answer that can be read"
    TOO_LARGE = "more than is read"


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of one answer. Times are seconds since the request was sent; None: it never came.

    `status` is the HTTP status, 0 where none came; `inner_status` the one inside a body or event, which a
    stream hides behind 200. `error_side` is the half that a router names. `said_tokens`, `said_limit` and
    `said_seconds` are the numbers that a refusal or a timeout quotes. `outputs` counts tokens (of /generate)
    or characters, `digest` is the keyed hash of all of them in hex ("" where there are none), `marks` a
    keyed number for each of the first 512. `trouble` is a sentence of our own, or empty.
    """

    end: End
    ended_after: float
    status: int = 0
    headers_after: float | None = None
    first_output_after: float | None = None
    error: ErrorClass = ErrorClass.NONE
    inner_status: int | None = None
    error_side: Role | None = None
    said_tokens: int | None = None
    said_limit: int | None = None
    said_seconds: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish: Finish = Finish.NONE
    outputs: int = 0
    digest: str = ""
    marks: tuple[int, ...] = ()
    received: int = 0
    events: int = 0
    trouble: str = ""

    @property
    def answered(self) -> bool:
        """HTTP 200, no error inside, and at least one token or character of output."""
        return self.status == 200 and self.error is ErrorClass.NONE and self.outputs > 0

    @property
    def refused(self) -> bool:
        """The admission limit was named as the reason."""
        return self.error is ErrorClass.OVER_LIMIT


class Kind(enum.Enum):
    """What a step probes."""

    OVER_POOL = "over-pool"
    ABORT = "abort"
    PAIRING = "pairing"
    CANARY = "canary"
    STAGING = "staging"


class Side(enum.Enum):
    """Where a prompt's length lies."""

    CONTEXT = "over the context"
    ADMITTED = "just admitted"
    BOTH = "both reject"
    DECODE = "only decode rejects"
    PREFILL = "only prefill rejects"


@dataclass(frozen=True, slots=True)
class Length:
    """A prompt length in tokens with the limits it was chosen by; `new_tokens` fits beside it.

    `rank` is the DP rank of both halves that it is meant for, None where all ranks are alike.
    """

    side: Side
    tokens: int
    prefill_limit: int
    decode_limit: int
    context: int
    new_tokens: int = 4
    rank: int | None = None


class Danger(enum.Enum):
    """The worst that a step may do to others, mildest first."""

    ORDINARY = "an ordinary request"
    HOLDS = "may hold one half until its timeout"
    EXPOSES = "may draw another request's text, or harm another's answer"


@dataclass(frozen=True, slots=True)
class Route:
    """The way a request takes: through `router`, or straight to both halves of one pair.

    `prefills` and `decodes` name the engines that may serve it (one each, where it is direct); `engines`
    is where these answer for themselves, so that their loads and metrics can be read beside a router.
    `tries` is how often a router may send it, `waiting` decode's own timeout in seconds where known.
    `truncates` says that some engine cuts prompts, `prefill_cuts` that a prefill does; `limits` are the
    admission limits that the prefills told, by name.
    """

    prefills: tuple[str, ...]
    decodes: tuple[str, ...]
    router: Target | None = None
    prefill: Target | None = None
    decode: Target | None = None
    bootstrap_host: str = ""
    bootstrap_port: int = 0
    dp_size: int = 1
    tries: int = 1
    waiting: float | None = None
    truncates: bool = False
    prefill_cuts: bool = False
    limits: tuple[tuple[str, int], ...] = ()
    engines: tuple[Target, ...] = ()

    @property
    def name(self) -> str:
        """`through r0`, or `p0→d0 direct`."""
        if self.router is not None:
            return f"through {self.router.name}"
        return f"{self.prefills[0]}→{self.decodes[0]} direct"

    @property
    def subject(self) -> tuple[str, str]:
        """Kind and name of what a result is about: the router, or the pair."""
        if self.router is not None:
            return "router", self.router.name
        return "pair", f"{self.prefills[0]}→{self.decodes[0]}"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a probe does. `requests`, `tokens`, `seconds` and `held_tokens` are the worst case.

    `held_share` is `held_tokens` over the smallest decode pool that it may meet, None where not known.
    """

    number: int
    kind: Kind
    route: Route
    danger: Danger
    requests: int
    tokens: int
    seconds: float
    held_tokens: int
    held_share: float | None = None
    length: Length | None = None
    api: Api = Api.GENERATE
    stream: bool = False

    @property
    def control(self) -> bool:
        """Whether it says nothing by itself: a prompt that is admitted, or that no engine looks at."""
        sides = (Side.CONTEXT, Side.ADMITTED)
        return self.kind is Kind.OVER_POOL and self.length is not None and self.length.side in sides


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that was asked for and is not done, with the reason and what to do.

    `lost` is False where a run tells no less without it: a control, a side that does not exist between these
    limits, engines that others stand for.
    """

    what: str
    why: str
    todo: str = ""
    lost: bool = True


MAX_REQUESTS, MAX_TOKENS, MAX_SECONDS, MAX_WAIT, MAX_PROMPT = 500, 256_000_000, 3600.0, 600.0, 4_000_000
"""Hard limits; no option goes beyond them. At most three requests are ever open: two halves and a canary."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may spend in all; `wait` is how long one answer is waited for, in seconds."""

    requests: int = 300
    tokens: int = 16_000_000
    seconds: float = 1800.0
    wait: float = 20.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run would do, mildest first. `consents` says why --accept-exposure is needed."""

    steps: tuple[Step, ...]
    left_out: tuple[LeftOut, ...]
    budget: Budget
    consents: tuple[str, ...] = ()
    canary: bool = False
    engines: tuple[EngineMark, ...] = ()
    """What the engines were when the plan was made."""


class Verdict(enum.Enum):
    """What one half, or one step, did. `HELD` reads `still held after N s`."""

    ADMITTED = "admitted"
    TOKENIZER = "refused by the tokenizer"
    DOOR = "rejected at the door"
    LATE = "rejected late"
    WALKED_ON = "walked on"
    WAITED = "waited for the timeout"
    HELD = "still held"
    TRUNCATED = "truncated by configuration"
    EXPOSED = "exposed"
    TOLD = "both halves were told"
    NOT_TOLD = "not both halves were told"
    PAIRED = "paired"
    UNPAIRED = "unpaired"
    STEADY = "the same answers"
    DRIFTED = "other answers"
    INDEPENDENT = "nothing to compare"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Release:
    """Whether a half let go of a request after the probe had closed it; `after` is seconds since then."""

    released: bool | None
    after: float | None
    how: str
    """What was read (`/v1/loads decode_transfer_queue_reqs`), or why nothing could be."""


@dataclass(frozen=True, slots=True)
class HalfResult:
    """One server's part of a step."""

    name: str
    role: Role
    verdict: Verdict
    reason: str
    seen: Seen | None = None
    release: Release | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a step. `unit` is empty for counts and words."""

    name: str
    value: Scalar
    unit: str = ""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of a step: a verdict with its reason, the halves behind it, and figures."""

    step: Step
    verdict: Verdict
    reason: str
    halves: tuple[HalfResult, ...] = ()
    measures: tuple[Measure, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A whole run. `stopped` says why it ended before its plan did, or is empty. Times are UTC, ISO 8601.

    `requests` and `tokens` are what was booked, a router's retries at their most; `sent` counts the requests
    that the probe itself sent.
    """

    cluster: str
    run_id: str
    started_at: str
    ended_at: str
    plan: Plan
    results: tuple[StepResult, ...]
    requests: int
    tokens: int
    seconds: float
    stopped: str = ""
    sent: int = 0

    @property
    def exposed(self) -> bool:
        """Whether an exposure was observed."""
        return any(r.verdict is Verdict.EXPOSED for r in self.results)
