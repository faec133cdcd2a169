"""Generation on one engine: admission, the handoff of its half, and what the client gets.

The behaviour of each version and pair of pools is the one measured on running engines:
who refuses at once, who waits out the timeout, and which versions answer from pages that nobody wrote.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pdguard.simulator import asking, bodies
from pdguard.simulator.asking import SSE, Ask
from pdguard.simulator.bodies import Outcome, Stamp
from pdguard.simulator.messages import Answer
from pdguard.simulator.metrics import record_hold, record_transfer
from pdguard.simulator.pairing import Background, Rendezvous, Room, Transfer, within
from pdguard.simulator.server import Reply
from pdguard.simulator.spec import EngineSpec
from pdguard.simulator.state import EngineState
from pdguard.simulator.versions import at_least, intake

_SIGNS = 94
_STUB_TOKEN = 29


class Generator:
    """The scheduler of one engine, as far as a request can tell."""

    def __init__(
        self, spec: EngineSpec, state: EngineState, rooms: Rendezvous, background: Background
    ) -> None:
        self._spec = spec
        self._state = state
        self._rooms = rooms
        self._background = background
        self._under_way: set[str] = set()

    async def serve(self, ask: Ask, reply: Reply) -> Answer | None:
        """Answer one request; a client that leaves is counted."""
        stamp = Stamp() if ask.rid is None else Stamp(rid=ask.rid)
        if stamp.rid in self._under_way:
            return asking.bad(self._spec, ask.path, f"Duplicate request ID detected: {stamp.rid}")
        self._under_way.add(stamp.rid)
        try:
            return await self._serve(ask, stamp, reply)
        finally:
            self._under_way.discard(stamp.rid)

    async def _serve(self, ask: Ask, stamp: Stamp, reply: Reply) -> Answer | None:
        try:
            if ask.stream:
                await self._stream(ask, stamp, reply)
                return None
            outcome = await self._outcome(ask, stamp)
            for _ in outcome.tokens if self._spec.token_seconds else ():
                await asyncio.sleep(self._spec.token_seconds)
        except asyncio.CancelledError:
            self._state.add("num_aborted_requests_total")
            raise
        self._count(ask, outcome)
        if ask.openai:
            return bodies.openai_answer(ask.model, stamp, outcome, chat=ask.chat)
        return bodies.generate_answer(self._spec.version, self._spec.role_now, stamp, outcome)

    async def _stream(self, ask: Ask, stamp: Stamp, reply: Reply) -> None:
        headers = ((b"content-type", SSE),)
        if not ask.openai:
            reply.start(200, headers)
        outcome = await self._outcome(ask, stamp)
        if ask.openai:
            reply.start(200, headers)
        count = 0
        while True:
            count += 1
            if ask.openai:
                await reply.write(bodies.openai_event(ask.model, stamp, outcome, count, chat=ask.chat))
            else:
                count = min(count, len(outcome.tokens))
                await reply.write(
                    bodies.generate_event(self._spec.version, self._spec.role_now, stamp, outcome, count)
                )
            if count >= len(outcome.tokens):
                break
            await asyncio.sleep(self._spec.token_seconds)
        self._count(ask, outcome)
        if ask.openai and ask.usage and outcome.kind == "ok":
            await reply.write(bodies.usage_event(ask.model, stamp, outcome, chat=ask.chat))
        await reply.write(bodies.DONE)

    def _count(self, ask: Ask, outcome: Outcome) -> None:
        self._state.served = True
        if outcome.kind == "ok":
            labels = (("is_streaming", str(ask.stream).lower()),)
            self._state.add("num_requests_total", labels)
            self._state.add("prompt_tokens_total", labels, float(outcome.prompt_tokens))
            self._state.add("generation_tokens_total", labels, float(len(outcome.tokens)))

    async def _outcome(self, ask: Ask, stamp: Stamp) -> Outcome:
        role = self._spec.role_now
        paired = role != "null" and ask.room != 0
        if paired and ask.room is None:
            return Outcome("refused", ask.length, message="A disaggregated request needs bootstrap_room.")
        rank = (ask.room or 0) % self._spec.dp if paired else ask.rank
        limit = self._spec.limit_of(rank)
        length, refusal = ask.length, ""
        if length >= limit:
            if self._spec.allow_auto_truncate:
                length = limit
            else:
                refusal = bodies.over_limit(length, limit)
        if refusal and (not paired or intake(self._spec.version) == "door"):
            return Outcome("refused", 1 if paired else length, message=refusal)
        if not paired:
            self._state.ran(ask.digest)
            tokens = _tokens(ask.digest, ask.new)
            return Outcome("ok", length, tokens[:1] if role == "prefill" else tokens)
        room = ask.room or 0
        with self._rooms.enter(room) as place:
            if role == "prefill":
                return await self._prefill(ask, stamp, place, length, refusal)
            return await self._decode(ask, stamp, place, length, refusal)

    async def _prefill(self, ask: Ask, stamp: Stamp, room: Room, length: int, refusal: str) -> Outcome:
        number = ask.room or 0
        implied = number % self._spec.dp
        room.prefill_version = self._spec.version
        reason = ""
        if implied != ask.rank:
            reason = bodies.room_conflict(number, ask.rank, implied)
        else:
            with self._queued("prefill_bootstrap"):
                if not await within(room.decode_ready, self._spec.waiting_timeout):
                    reason = bodies.bootstrap_timeout(number, self._spec.waiting_timeout)
        if reason:
            self._state.add("num_bootstrap_failed_reqs_total")
            return Outcome(
                "failed", length, message=bodies.prefill_failure(stamp.rid, number, "bootstrap", reason)
            )
        if refusal and intake(self._spec.version) == "late":
            return Outcome("refused", 1, message=refusal)
        self._state.ran(ask.digest)
        seconds = self._spec.transfer_seconds
        room.writing_until = time.monotonic() + seconds
        if seconds:
            with self._queued("prefill_inflight"):
                left = await within(room.decode_left, seconds)
            if left and at_least(self._spec.version, "0.5.19"):
                self._state.add("num_transfer_failed_reqs_total")
                text = bodies.prefill_failure(stamp.rid, number, "transfer", "aborted by decode")
                return Outcome("failed", length, message=text)
        first = _STUB_TOKEN if refusal else _tokens(ask.digest, 1)[0]
        record_transfer(self._state, seconds)
        room.deliver(Transfer(first, whole=not refusal))
        return Outcome("ok", 1 if refusal else length, (first,))

    async def _decode(self, ask: Ask, stamp: Stamp, room: Room, length: int, refusal: str) -> Outcome:
        number = ask.room or 0
        rank = number % self._spec.dp
        pages = 1 if refusal else length
        if not refusal and pages + self._spec.num_reserved_decode_tokens > self._spec.ranks[rank]:
            with self._queued("decode_prealloc"):
                await asyncio.Event().wait()  # never admitted: only the client's leaving ends it
        room.decode_ready.set()
        try:
            with self._queued("decode_transfer", pages):
                arrived = await within(room.arrived, self._spec.waiting_timeout)
        except asyncio.CancelledError:
            self._left(room)
            raise
        transfer = room.transfer
        if not arrived or transfer is None:
            self._state.add("num_transfer_failed_reqs_total")
            text = bodies.decode_timeout(stamp.rid, number, self._spec.waiting_timeout)
            return Outcome("failed", length, message=text)
        if refusal:
            return Outcome("refused", 1, message=refusal)
        if transfer.whole:
            tokens = _tokens(ask.digest, ask.new)
        else:
            tokens = (transfer.first_token, *_tokens(self._state.left_behind() + ask.digest, ask.new))[
                : ask.new
            ]
        self._state.ran(ask.digest)
        return Outcome("ok", length, tokens)

    def _left(self, room: Room) -> None:
        """The client left while pages were reserved: hold them, if this engine does."""
        room.decode_left.set()
        remaining = room.writing_until - time.monotonic()
        if room.transfer is not None or remaining <= 0:
            return
        self._state.add("num_transfer_failed_reqs_total")
        if self._spec.holds:
            self._background.start(self._hold(remaining, self._acknowledged(room.prefill_version)))

    def _acknowledged(self, prefill: str) -> bool:
        mine = self._spec.version
        return at_least(mine, "0.5.21") and at_least(prefill, "0.5.22") == at_least(mine, "0.5.22")

    async def _hold(self, remaining: float, acknowledged: bool) -> None:
        limit = self._spec.hold_seconds
        drained = acknowledged and remaining <= limit
        seconds = max(0.0, min(remaining, limit) if drained else limit)
        self._state.queues["held"] += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._state.queues["held"] -= 1
        record_hold(self._state, "drained" if drained else "timeout", seconds)

    @contextmanager
    def _queued(self, queue: str, tokens: int = 0) -> Iterator[None]:
        self._state.queues[queue] += 1
        self._state.used_tokens += tokens
        try:
            yield
        finally:
            self._state.queues[queue] -= 1
            self._state.used_tokens -= tokens


def _tokens(seed: bytes, count: int) -> tuple[int, ...]:
    """Synthetic tokens that a seed determines."""
    digest = hashlib.blake2b(seed, digest_size=32).digest()
    tokens: list[int] = []
    block = 0
    while len(tokens) < count:
        tokens += [
            byte % _SIGNS for byte in hashlib.blake2b(digest + block.to_bytes(4), digest_size=64).digest()
        ]
        block += 1
    return tuple(tokens[:count])
