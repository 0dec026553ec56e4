"""Large messages: parameters, payloads and logits near their limits."""

from __future__ import annotations

import os

import orjson
import torch

from benchmarks.hostile.attackers.base import PRINCIPALS, Attacker, numbered
from benchmarks.hostile.raw import int32
from logitport import EditProcessor, EditRequest, Request, RowEdits
from logitport_proto import common_pb2, processing_pb2

_PARAMS_BYTES = 1_000_000
_PAYLOAD_BYTES = 5_500_000
_APPLY_ROWS, _APPLY_VOCAB_SIZE = 128, 152_064


class LargeParams(Attacker):
    """The list is a built-in's, so the server itself reads it."""

    name = "1 MB of parameters"
    does = f"4 sessions admit and remove requests with {_PARAMS_BYTES:,} bytes of parameters"
    threads = 4

    def prepare(self) -> None:
        text = orjson.dumps({"token_ids": [*range(10_000, 32_000)] * 10})
        params = text[: text.rindex(b",", 0, _PARAMS_BYTES - 2)] + b"]}"
        call = common_pb2.ProcessorCall(processor=common_pb2.Processor(builtin="disallowed_tokens"), params=params)
        request = common_pb2.Request(prompt_token_ids=[1], processors=[call])
        slotted = processing_pb2.SlottedRequest(slot=0, generation=0, request=request)
        self._add = processing_pb2.AddRequests(requests=[slotted])
        self._remove = processing_pb2.RemoveRequests(slots=int32([0]), generations=int32([0]))
        self._sessions = [self.raw_session(thread % PRINCIPALS) for thread in range(self.threads)]

    def attack(self, thread: int) -> None:
        reply = self._sessions[thread].send(add=self._add)
        self.counts["refused"] += len(reply.added.failures)
        self._sessions[thread].send(remove=self._remove)


class Heavy(EditProcessor):
    """A class with data that makes its payload large."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([1])


class LargePayloads(Attacker):
    """Each registration is deleted again, so that the registry does not fill up."""

    name = "5.5 MB payloads"
    does = f"2 callers register and delete payloads of {_PAYLOAD_BYTES:,} characters"
    threads = 2

    def prepare(self) -> None:
        self._payloads = []
        for thread in range(self.threads):
            heavy = numbered(Heavy, thread)
            heavy.data = os.urandom(_PAYLOAD_BYTES // 2)  # type: ignore[attr-defined]
            self._payloads.append(heavy.to_str())  # type: ignore[attr-defined]

    def attack(self, thread: int) -> None:
        client = self.client(thread)
        client.delete(client.register(self._payloads[thread]).digest)


class LargeApply(Attacker):
    """One call at a time."""

    name = "78 MB Apply"
    does = f"a stateless call with {_APPLY_ROWS * _APPLY_VOCAB_SIZE * 4:,} bytes of logits"

    def prepare(self) -> None:
        self._logits = torch.zeros(_APPLY_ROWS, _APPLY_VOCAB_SIZE)
        self._requests = [Request([1], processors=[("disallowed_tokens", {"token_ids": [2]})])] * _APPLY_ROWS

    def attack(self, thread: int) -> None:
        self.client().apply(self._logits, self._requests)


ATTACKERS: tuple[type[Attacker], ...] = (LargeParams, LargePayloads, LargeApply)
