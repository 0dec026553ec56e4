"""Frames of sessions that are much work, or take much memory. None of them runs code in workers."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import orjson

from benchmarks.hostile.attackers.base import PRINCIPALS, Attacker
from benchmarks.hostile.raw import RawSession, checksum, int32
from logitport_proto import common_pb2, processing_pb2

_REQUESTS, _LINKS, _DRAFTS = 4, 64, 127  # the largest work that the server accepts
_PROMPT, _CHAIN_PROMPT = (1,), tuple(range(10, 42))
_CHAIN = (("no_repeat_ngram", {"ngram_size": 2}), ("disallowed_tokens", {"token_ids": list(range(100))}))
_IDS = 1_000_000
# Penalties of a request. One of many is refused; requests with a few then take up what the limit leaves.
_PENALTIES = (16, 2, 1)
_PARAMS_BYTES = 1_000_000
# Each unknown slot is a failure of about 80 bytes: the reply is larger than the buffers of a socket.
_UNKNOWN_SLOTS = 6_000
_MAX_SOCKETS = 4_000


class Chains(Attacker):
    """Small frames that are much work: long chains of built-ins for many drafts."""

    name = "chains, 1 session"
    does = f"a step of {_REQUESTS} requests x {_LINKS} built-ins x {_DRAFTS} drafts, again and again"

    def prepare(self) -> None:
        rows = list(itertools.product(range(_REQUESTS), range(_DRAFTS + 1)))
        self._step = _step(
            range(_REQUESTS),
            _CHAIN_PROMPT,
            row_requests=int32([request for request, _ in rows]),
            row_draft_offsets=int32([offset for _, offset in rows]),
            draft_counts=int32([_DRAFTS] * _REQUESTS),
            draft_token_ids=int32([token_id % 1000 for token_id in os.urandom(_REQUESTS * _DRAFTS)]),
        )
        chain = [_CHAIN[link % len(_CHAIN)] for link in range(_LINKS)]
        self._sessions = [self.raw_session(thread % 4, max_draft_tokens=_DRAFTS) for thread in range(self.threads)]
        for session in self._sessions:
            _add(session, *(_request(slot, chain, prompt=_CHAIN_PROMPT) for slot in range(_REQUESTS)))

    def attack(self, thread: int) -> None:
        reply = self._sessions[thread].send(step=self._step)
        self.counts[f"reply: {reply.WhichOneof('frame')}"] += 1


class ManyChains(Chains):
    name = "chains, 16 sessions"
    threads = 16


class Histories(Attacker):
    """A round admits the requests, runs a step with a row of each, one after another, and removes them.

    The first step of a penalty counts the history, and takes longest. The compiled core computes the steps.

    Attributes:
        requests: how many requests the session has.
        ids: length of each history; all ids differ.
        penalties: length of each chain.
    """

    name = "1M ids, 7 penalties"
    does = "a small step over a history of 1M ids under 7 penalties, and a new request"
    requests: ClassVar[int] = 1
    ids: ClassVar[int] = _IDS
    penalties: ClassVar[int] = 7

    def prepare(self) -> None:
        self._session = self.raw_session(vocab_size=1 << 20)
        history = [*_PROMPT, *range(len(_PROMPT), self.ids)]
        output = int32(history[len(_PROMPT) :])
        names = ("frequency_penalty", "presence_penalty")
        chain = [(names[link % 2], {names[link % 2]: link / 100 + 0.1}) for link in range(self.penalties)]
        slots = range(self.requests)
        self._additions = [_request(slot, chain, output) for slot in slots]
        self._steps = [_step(slots, history, row_requests=int32([row])) for row in slots]

    def attack(self, thread: int) -> None:
        for addition in self._additions:
            self.counts["refused"] += len(_add(self._session, addition).added.failures)
        for step in self._steps:  # the reply of many megabytes is not parsed
            self._session.seq += 1
            request = processing_pb2.SessionRequest(seq=self._session.seq, step=step)
            reply = self._session.exchange(request.SerializeToString())
            self.counts["edits" if len(reply) > self.ids else "other replies"] += 1
        _remove(self._session, range(self.requests))


class SixteenPenalties(Histories):
    """Python computes its steps, because they are too large for the core."""

    name = "1M ids, 16 penalties"
    does = "a small step over a history of 1M ids under 16 penalties, and a new request"
    penalties = 16


class Rewinds(Histories):
    """Each state removes the ids that it has counted, one by one."""

    name = "16 long rewinds"
    does = "a step of one row that rewinds 16 histories of 250,000 ids under 4 penalties"
    requests, ids, penalties = 16, 250_000, 4

    def prepare(self) -> None:
        super().prepare()
        self._steps.append(_step(range(self.requests), _PROMPT, row_requests=int32([0])))


class LongHistories(Attacker):
    """Few bytes of frames that the server turns into much memory: distinct generated ids, which each penalty counts."""

    name = "histories of a million ids"
    does = (
        f"adds requests of {_IDS:,} generated ids with {', '.join(map(str, _PENALTIES))} penalties, and steps each once"
    )

    def prepare(self) -> None:
        self._output, self._penalties = int32(range(_IDS)), itertools.cycle(_PENALTIES)
        self._step = _step([0], range(_IDS))
        self._session: RawSession | None = None
        self._slots = iter(())

    def attack(self, thread: int) -> None:
        if (slot := next(self._slots, None)) is None:
            if self._session is not None:
                self._session.end()
            self._session = self.raw_session(vocab_size=_IDS, max_requests=64)
            self._slots = iter(range(64))
            return
        assert self._session is not None
        chain = [("frequency_penalty", {"frequency_penalty": 1.0})] * next(self._penalties)
        added = _add(self._session, _request(slot, chain, self._output, prompt=()))
        self._count(added, added.added.failures)
        if not added.added.failures:
            self._step.slots = int32([slot])
            edited = self._session.send(step=self._step)
            self._count(edited, edited.edits.failures)

    def _count(self, reply: processing_pb2.SessionResponse, failures: Any) -> None:
        """Count the errors of a reply by their code."""
        errors = [reply.error] if reply.HasField("error") else [failure.error for failure in failures]
        self.counts.update(common_pb2.ErrorCode.Name(error.code) for error in errors)


class LargeParams(Attacker):
    """The list is a built-in's, so the server itself reads it."""

    name = "1 MB of parameters"
    does = f"4 sessions admit and remove requests with {_PARAMS_BYTES:,} bytes of parameters"
    threads = 4

    def prepare(self) -> None:
        text = orjson.dumps({"token_ids": [*range(10_000, 32_000)] * 10})
        params = text[: text.rindex(b",", 0, _PARAMS_BYTES - 2)] + b"]}"
        self._request = _request(0, [("disallowed_tokens", params)])
        self._sessions = [self.raw_session(thread % PRINCIPALS) for thread in range(self.threads)]

    def attack(self, thread: int) -> None:
        self.counts["refused"] += len(_add(self._sessions[thread], self._request).added.failures)
        _remove(self._sessions[thread], [0])


class UnreadReplies(Attacker):
    """Keeps the sockets of sessions whose streams it has ended."""

    name = "ended streams with unread replies"
    does = "opens sessions, sends a step with a large reply, ends the stream, and does not receive the reply"
    threads = 4

    def prepare(self) -> None:
        columns = bytes(4 * _UNKNOWN_SLOTS)
        step = processing_pb2.Step(
            slots=int32(range(_UNKNOWN_SLOTS)), generations=columns, base_lengths=columns, history_crcs=columns
        )
        self._frame = processing_pb2.SessionRequest(seq=2, step=step).SerializeToString()
        self._sessions: list[RawSession] = []

    def attack(self, thread: int) -> None:
        session = self.raw_session()
        self.counts["sessions"] += 1
        self._sessions.append(session)
        session.post(self._frame)
        session.end_stream()
        if len(self._sessions) > _MAX_SOCKETS:
            self._sessions.pop(0).end()


def _request(
    slot: int, chain: Iterable[tuple[str, Any]], output: bytes = b"", prompt: Sequence[int] = _PROMPT
) -> processing_pb2.SlottedRequest:
    """A request with a chain of built-ins; parameters are JSON already, or become JSON."""
    calls = [
        common_pb2.ProcessorCall(
            processor=common_pb2.Processor(builtin=name),
            params=params if isinstance(params, bytes) else orjson.dumps(params),
        )
        for name, params in chain
    ]
    request = common_pb2.Request(request_id=f"{slot}", prompt_token_ids=prompt, output_ids=output, processors=calls)
    return processing_pb2.SlottedRequest(slot=slot, request=request)


def _step(slots: Sequence[int], history: Sequence[int], **columns: bytes) -> processing_pb2.Step:
    """A step without new ids of requests that have this history."""
    return processing_pb2.Step(
        slots=int32(slots),
        generations=int32([0] * len(slots)),
        base_lengths=int32([len(history)] * len(slots)),
        history_crcs=checksum(history) * len(slots),
        **columns,
    )


def _add(session: RawSession, *requests: processing_pb2.SlottedRequest) -> processing_pb2.SessionResponse:
    return session.send(add=processing_pb2.AddRequests(requests=requests))


def _remove(session: RawSession, slots: Sequence[int]) -> None:
    session.send(remove=processing_pb2.RemoveRequests(slots=int32(slots), generations=int32([0] * len(slots))))


ATTACKERS: tuple[type[Attacker], ...] = (
    Chains, ManyChains, Histories, SixteenPenalties, Rewinds, LongHistories, LargeParams, UnreadReplies,
)  # fmt: skip
