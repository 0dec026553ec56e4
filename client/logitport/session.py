"""One engine's persistent batch, on the engine's side."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from logitport.buffers import LogitsDelivery
from logitport.conversation import Conversation
from logitport.errors import LimitExceeded, UnknownRequest, from_proto
from logitport.frames import Handle, RowLike, add_frame, place_rows, step_frame
from logitport.pending import PendingStep
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from logitport.request import Request
    from logitport.transports.base import Transport


class Session:
    """Requests come and go, and at each step the engine tells what was sampled and gets its logits processed.

    Made by `Client.session`. Not safe to use from several threads. Close it, or use it in a `with` statement.

    Attributes:
        vocab_size: width of the logits.
        datatype: of the logits: "FP32", "FP16" or "BF16".
        session_id: the server's name for it, for logs.
    """

    def __init__(
        self,
        transport: Transport,
        opening: processing_pb2.OpenSession,
        *,
        timeout: float,
        lane: Literal["auto", "grpc", "local"] = "auto",
        with_torch: bool = True,
    ) -> None:
        self.vocab_size = opening.vocab_size
        self.datatype = opening.datatype
        self._conversation = Conversation(transport)
        self._handles: dict[int, Handle] = {}
        self._generation = 0
        try:
            opened = self._conversation.exchange(processing_pb2.SessionRequest(open=opening)).opened
            if lane != "grpc":
                self._conversation.take_lane(opened, timeout, required=lane == "local")
        except BaseException:
            transport.close()
            raise
        self.session_id = opened.session_id
        self._free_slots = list(range(opened.max_requests))
        self._max_requests = opened.max_requests
        self._delivery = LogitsDelivery(self._conversation, self.vocab_size, self.datatype, with_torch=with_torch)

    @property
    def transport(self) -> str:
        """How frames travel: "grpc", or "local" over a Unix socket with shared memory."""
        return self._conversation.transport

    def logits_buffer(self, rows: int) -> Any:
        """Logits that the server can reach: float[rows, vocab_size] of the session's dtype, in shared memory.

        A step applied to them, or to their first rows, moves no logits. The buffer is the same memory at each call;
        asking for more rows than before makes a new one, and what was in the old one is not copied.

        Returns:
            A torch tensor on the CPU if the session was opened with a torch dtype, else a numpy array. Ordinary memory
            if the session has no local lane: then logits travel, and everything else is the same.

        Raises:
            LimitExceeded: more than the server's max_region_bytes.
        """
        return self._delivery.buffer.rows(rows)

    def add(self, request: Request) -> Handle:
        """Admit a request, with its whole history; its processors are found and their state is built now.

        Raises:
            UnknownProcessor, InvalidParams, PayloadError, InvalidTokenId: the request is refused; see docs/protocol.md.
            LimitExceeded: the session holds as many requests as it may.
        """
        if not self._free_slots:
            raise LimitExceeded(
                f"all {self._max_requests} slots are taken; remove requests that have ended, or raise max_requests"
            )
        handle = Handle(self._free_slots[0], self._generation, request)
        added = self._conversation.exchange(processing_pb2.SessionRequest(add=add_frame([handle]))).added
        for failure in added.failures:
            raise from_proto(failure.error)
        handle.reads_logits = bool(added.reads_logits[0])
        self._generation += 1
        heapq.heappop(self._free_slots)
        self._handles[handle.slot] = handle
        return handle

    def remove(self, handle: Handle) -> None:
        """Drop a request and its state. Raises UnknownRequest if it is not of this session, or was removed."""
        self._check(handle)
        del self._handles[handle.slot]
        heapq.heappush(self._free_slots, handle.slot)
        removal = processing_pb2.RemoveRequests(
            slots=np.array([handle.slot], "<i4").tobytes(), generations=np.array([handle.generation], "<i4").tobytes()
        )
        self._conversation.exchange(processing_pb2.SessionRequest(remove=removal))

    def step(
        self,
        new_token_ids: Mapping[Handle, Sequence[int]],
        *,
        rows: Sequence[RowLike] | None = None,
        drafts: Mapping[Handle, Sequence[int]] | None = None,
    ) -> PendingStep:
        """Tell what was sampled, and return at once; the server works while the model's forward pass runs.

        Args:
            new_token_ids: for each request of the step the ids that joined it since its last step; none in its first.
            rows: whose each row of the logits is: a handle, or (handle, number of drafts it has seen). By default the
                requests in order, each with one row and one more for each draft token.
            drafts: draft tokens of requests that speculate. They do not join the history.

        Returns:
            The step under way; `apply(logits)` finishes it.

        Raises:
            UnknownRequest, InvalidTokenId, InvalidArgument: the call is wrong, and nothing was sent.
        """
        drafts = drafts or {}
        for handle in new_token_ids:
            self._check(handle)
        placed = place_rows(new_token_ids, drafts, rows)
        frame = step_frame(new_token_ids, drafts, placed, self.vocab_size)
        pending = PendingStep(
            self._conversation,
            self._delivery,
            list(new_token_ids),
            drafts,
            placed,
            self.vocab_size,
            self.datatype,
        )
        self._conversation.begin(processing_pb2.SessionRequest(step=frame), pending.take_reply)
        for handle, token_ids in new_token_ids.items():
            handle.extend(token_ids)
        return pending

    def rewind(self, handle: Handle, length: int) -> None:
        """Cut a request's history back to `length` ids (prompt and output); its next step goes on from there.

        Raises:
            UnknownRequest: not a request of this session.
            InvalidArgument: longer than the history, or into the prompt.
        """
        self._check(handle)
        handle.rewind(length)

    def close(self) -> None:
        """End the session; the server forgets its requests. May be called twice."""
        self._handles.clear()
        self._conversation.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._handles)

    def _check(self, handle: Handle) -> None:
        if self._handles.get(getattr(handle, "slot", -1)) is not handle:
            raise UnknownRequest(f"{handle!r} is no request of this session: never added, removed, or of another one")
