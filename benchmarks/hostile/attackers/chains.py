"""Long chains of built-ins for many drafts: small frames that are much work."""

from __future__ import annotations

import os

import orjson

from benchmarks.hostile.attackers.base import Attacker
from benchmarks.hostile.raw import RawSession, checksum, int32
from logitport_proto import common_pb2, processing_pb2

_REQUESTS, _LINKS, _DRAFTS = 4, 64, 127  # the largest work that the server accepts
_PROMPT = tuple(range(10, 42))
_BUILTINS = (
    ("no_repeat_ngram", {"ngram_size": 2}),
    ("disallowed_tokens", {"token_ids": list(range(100))}),
)


class Chains(Attacker):
    """One session."""

    name = "chains, 1 session"
    does = f"a step of {_REQUESTS} requests x {_LINKS} built-ins x {_DRAFTS} drafts, again and again"

    def prepare(self) -> None:
        self._frame = step()
        self._sessions = [self._open(thread % 4) for thread in range(self.threads)]

    def attack(self, thread: int) -> None:
        reply = self._sessions[thread].send(step=self._frame)
        self.counts[f"reply: {reply.WhichOneof('frame')}"] += 1

    def _open(self, principal: int) -> RawSession:
        session = self.raw_session(principal, max_draft_tokens=_DRAFTS)
        session.send(add=processing_pb2.AddRequests(requests=[_request(slot) for slot in range(_REQUESTS)]))
        return session


class ManyChains(Chains):
    """Sixteen sessions."""

    name = "chains, 16 sessions"
    threads = 16


def step() -> processing_pb2.Step:
    """A step without new ids: all its work is for the drafts."""
    requests = range(_REQUESTS)
    rows = [(request, offset) for request in requests for offset in range(_DRAFTS + 1)]
    return processing_pb2.Step(
        slots=int32(requests),
        generations=int32([0] * _REQUESTS),
        base_lengths=int32([len(_PROMPT)] * _REQUESTS),
        history_crcs=checksum(_PROMPT) * _REQUESTS,
        row_requests=int32([request for request, _ in rows]),
        row_draft_offsets=int32([offset for _, offset in rows]),
        draft_counts=int32([_DRAFTS] * _REQUESTS),
        draft_token_ids=int32([token_id % 1000 for token_id in os.urandom(_REQUESTS * _DRAFTS)]),
    )


def _request(slot: int) -> processing_pb2.SlottedRequest:
    chain = [
        common_pb2.ProcessorCall(processor=common_pb2.Processor(builtin=name), params=orjson.dumps(params))
        for name, params in (_BUILTINS[link % len(_BUILTINS)] for link in range(_LINKS))
    ]
    request = common_pb2.Request(request_id=f"{slot}", prompt_token_ids=_PROMPT, processors=chain)
    return processing_pb2.SlottedRequest(slot=slot, generation=0, request=request)


ATTACKERS: tuple[type[Attacker], ...] = (Chains, ManyChains)
