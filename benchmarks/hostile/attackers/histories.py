"""Small frames that are much work because of long histories."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from benchmarks.hostile.attackers.base import Attacker
from benchmarks.hostile.raw import checksum, int32
from logitport_proto import common_pb2, processing_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

_VOCAB_SIZE = 1 << 20
_PENALTIES = ("frequency_penalty", "presence_penalty")
_PROMPT = (1,)


class Histories(Attacker):
    """A round admits the requests, runs a step with a row of each, one after another, and removes them.

    The first step of a penalty counts the history, and takes longest.

    Attributes:
        requests: how many requests the session has.
        ids: length of each history; all ids differ.
        penalties: length of each chain.
    """

    requests: ClassVar[int] = 1
    ids: ClassVar[int]
    penalties: ClassVar[int]

    def prepare(self) -> None:
        self._session = self.raw_session(vocab_size=_VOCAB_SIZE)
        history = [*_PROMPT, *range(len(_PROMPT), self.ids)]
        output = int32(history[len(_PROMPT) :])
        self._additions = [_addition(slot, output, self.penalties) for slot in range(self.requests)]
        self._steps = [step(self.requests, history, row) for row in range(self.requests)]

    def attack(self, thread: int) -> None:
        for addition in self._additions:
            added = self._session.send(add=processing_pb2.AddRequests(requests=[addition]))
            self.counts["refused"] += len(added.added.failures)
        for frame in self._steps:
            self._send_step(frame)
        slots, generations = int32(range(self.requests)), int32([0] * self.requests)
        self._session.send(remove=processing_pb2.RemoveRequests(slots=slots, generations=generations))

    def _send_step(self, frame: processing_pb2.Step) -> None:
        """Send a step. The reply of many megabytes is not parsed."""
        self._session.seq += 1
        request = processing_pb2.SessionRequest(seq=self._session.seq, step=frame)
        reply = self._session.exchange(request.SerializeToString())
        self.counts["edits" if len(reply) > self.ids else "other replies"] += 1


class SevenPenalties(Histories):
    """The compiled core computes its steps."""

    name = "1M ids, 7 penalties"
    does = "a small step over a history of 1M ids under 7 penalties, and a new request"
    ids, penalties = 1_000_000, 7


class SixteenPenalties(Histories):
    """Python computes its steps, because they are too large for the core."""

    name = "1M ids, 16 penalties"
    does = "a small step over a history of 1M ids under 16 penalties, and a new request"
    ids, penalties = 1_000_000, 16


class Rewinds(Histories):
    """Each state removes the ids that it has counted, one by one."""

    name = "16 long rewinds"
    does = "a step of one row that rewinds 16 histories of 250,000 ids under 4 penalties"
    requests, ids, penalties = 16, 250_000, 4

    def prepare(self) -> None:
        super().prepare()
        self._steps.append(step(self.requests, _PROMPT, 0))


def step(requests: int, history: Sequence[int], row: int) -> processing_pb2.Step:
    """A step without new ids of requests that have this history, with one row: that of this request."""
    return processing_pb2.Step(
        slots=int32(range(requests)),
        generations=int32([0] * requests),
        base_lengths=int32([len(history)] * requests),
        history_crcs=checksum(history) * requests,
        row_requests=int32([row]),
    )


def _addition(slot: int, output: bytes, penalties: int) -> processing_pb2.SlottedRequest:
    names = (_PENALTIES[link % len(_PENALTIES)] for link in range(penalties))
    chain = [
        common_pb2.ProcessorCall(
            processor=common_pb2.Processor(builtin=name), params=f'{{"{name}": {link / 100 + 0.1}}}'.encode()
        )
        for link, name in enumerate(names)
    ]
    request = common_pb2.Request(request_id=f"{slot}", prompt_token_ids=_PROMPT, output_ids=output, processors=chain)
    return processing_pb2.SlottedRequest(slot=slot, generation=0, request=request)


ATTACKERS: tuple[type[Attacker], ...] = (SevenPenalties, SixteenPenalties, Rewinds)
