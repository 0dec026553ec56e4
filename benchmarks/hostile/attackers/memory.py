"""Few bytes of frames that the server turns into much memory."""

from __future__ import annotations

import itertools
from typing import Any

from benchmarks.hostile.attackers.base import Attacker
from benchmarks.hostile.raw import RawSession, checksum, int32
from logitport_proto import common_pb2, processing_pb2

_IDS = 1_000_000
_REQUESTS = 64
# Penalties of a request. One of many is refused; requests with a few then take up what the limit leaves.
_PENALTIES = (16, 2, 1)


class LongHistories(Attacker):
    """A million distinct generated ids, which each penalty counts."""

    name = "histories of a million ids"
    does = (
        f"adds requests of {_IDS:,} generated ids with {', '.join(map(str, _PENALTIES))} penalties, and steps each once"
    )

    def prepare(self) -> None:
        ids = range(_IDS)
        self._ids, self._checksum = int32(ids), checksum(ids)
        self._penalties = itertools.cycle(_PENALTIES)
        self._session: RawSession | None = None
        self._slots = iter(())

    def attack(self, thread: int) -> None:
        if (slot := next(self._slots, None)) is None:
            if self._session is not None:
                self._session.end()
            self._session = self.raw_session(vocab_size=_IDS, max_requests=_REQUESTS)
            self._slots = iter(range(_REQUESTS))
            return
        assert self._session is not None
        call = common_pb2.ProcessorCall(
            processor=common_pb2.Processor(builtin="frequency_penalty"), params=b'{"frequency_penalty": 1.0}'
        )
        request = common_pb2.Request(output_ids=self._ids, processors=[call] * next(self._penalties))
        addition = processing_pb2.SlottedRequest(slot=slot, request=request)
        added = self._session.send(add=processing_pb2.AddRequests(requests=[addition]))
        self._count(added, added.added.failures)
        if not added.added.failures:
            step = processing_pb2.Step(
                slots=int32([slot]), generations=int32([0]), base_lengths=int32([_IDS]), history_crcs=self._checksum
            )
            edited = self._session.send(step=step)
            self._count(edited, edited.edits.failures)

    def _count(self, reply: processing_pb2.SessionResponse, failures: Any) -> None:
        """Count the errors of a reply by their code."""
        errors = [reply.error] if reply.HasField("error") else [failure.error for failure in failures]
        for error in errors:
            self.counts[common_pb2.ErrorCode.Name(error.code)] += 1


ATTACKERS: tuple[type[Attacker], ...] = (LongHistories,)
