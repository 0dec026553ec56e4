"""One engine's persistent batch, on the engine's side."""

from __future__ import annotations

import heapq
import threading
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from logitport import tensors
from logitport.buffers import LogitsBuffer
from logitport.errors import InvalidArgument, LimitExceeded, ServerUnavailable, UnknownRequest, from_proto
from logitport.frames import Handle, RowLike, place_rows, step_frame
from logitport.pending import PendingStep
from logitport.transports.local import LocalLane
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    import mmap
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
        self._transport = transport
        self._seq = 0
        # Held while a reply is awaited: by the engine's thread, or by the one that takes in replies early.
        self.receiving = threading.RLock()
        self._pending: PendingStep | None = None
        self._handles: dict[int, Handle] = {}
        self._generation = 0
        try:
            opened = self.exchange(processing_pb2.SessionRequest(open=opening)).opened
            if lane != "grpc":
                self._take_lane(opened, timeout, required=lane == "local")
        except BaseException:
            transport.close()
            raise
        self.session_id = opened.session_id
        self._free_slots = list(range(opened.max_requests))
        self._max_requests = opened.max_requests
        self._transport.on_readable(self._take_in)
        self.buffer = LogitsBuffer(self, with_torch=with_torch)
        self._staging: dict[bool, LogitsBuffer] = {}

    @property
    def transport(self) -> str:
        """How frames travel: "grpc", or "local" over a Unix socket with shared memory."""
        return self._transport.name

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
        return self.buffer.rows(rows)

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
        self.admit([handle])
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
        self.exchange(processing_pb2.SessionRequest(remove=removal))

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
        self.settle()
        self.send(processing_pb2.SessionRequest(step=frame))
        for handle, token_ids in new_token_ids.items():
            handle.extend(token_ids)
        self._pending = PendingStep(self, list(new_token_ids), drafts, placed)
        return self._pending

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
        self._transport.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._handles)

    # What PendingStep needs.

    def admit(self, handles: Sequence[Handle]) -> None:
        """Send requests with their histories as they are now. Raises the first refusal."""
        frame = processing_pb2.AddRequests()
        for handle in handles:
            message = handle.request.to_proto()
            message.output_token_ids[:] = handle.history.output_token_ids.tolist()
            frame.requests.append(
                processing_pb2.SlottedRequest(slot=handle.slot, generation=handle.generation, request=message)
            )
        added = self.exchange(processing_pb2.SessionRequest(add=frame)).added
        for failure in added.failures:
            raise from_proto(failure.error)
        for handle, reads_logits in zip(handles, added.reads_logits, strict=True):
            handle.reads_logits = bool(reads_logits)

    def exchange(self, frame: processing_pb2.SessionRequest) -> processing_pb2.SessionResponse:
        """Send a frame and wait for its reply. Raises the error, if the frame was refused."""
        with self.receiving:
            self.settle()
            self.send(frame)
            return self.receive()

    @property
    def shares_memory(self) -> bool:
        """Whether logits can lie in memory that the server reaches."""
        return self._transport.shares_memory

    def stage(self, logits: Any) -> tuple[Any, LogitsBuffer]:
        """A copy of these logits in memory that the server reaches, and the buffer in which it lies."""
        with_torch = tensors.is_torch(logits)
        buffer = self._staging.setdefault(with_torch, LogitsBuffer(self, with_torch=with_torch))
        staged = buffer.rows(len(logits))
        staged[...] = logits
        return staged, buffer

    def open_region(self, size_bytes: int, replaces: int) -> tuple[int, mmap.mmap] | None:
        """Memory shared with the server, and its id; None if the transport shares none. Raises LimitExceeded."""
        if not self._transport.shares_memory:
            return None
        opening = processing_pb2.OpenRegion(size_bytes=size_bytes, replaces=replaces)
        with self.receiving:
            self.settle()
            self.send(processing_pb2.SessionRequest(open_region=opening))
            reply, memory = self._transport.receive_region(size_bytes)
        self._check_reply(reply)
        assert memory is not None  # noqa: S101 - a reply that is no error brings it
        return reply.region.region_id, memory

    def send(self, frame: processing_pb2.SessionRequest) -> None:
        """Send a frame."""
        self._seq += 1
        frame.seq = self._seq
        self._transport.send(frame)

    def receive(self) -> processing_pb2.SessionResponse:
        """The reply to the frame that was sent last. Raises the error, if it was refused."""
        reply = self._transport.receive()
        self._check_reply(reply)
        return reply

    def _check_reply(self, reply: processing_pb2.SessionResponse) -> None:
        if reply.seq != self._seq:
            raise InvalidArgument(f"the server answered frame {reply.seq}, not frame {self._seq}; close the session")
        if reply.WhichOneof("frame") == "error":
            raise from_proto(reply.error)

    def settle(self) -> None:
        """Take in the reply of the step under way, so that another frame may be sent."""
        with self.receiving:
            under_way, self._pending = self._pending, None
            if under_way is not None:
                under_way.take_reply()

    def _take_in(self) -> bool:
        """Take in a reply that has come while the engine is busy elsewhere; whether there was one to take."""
        if self._pending is None or not self.receiving.acquire(blocking=False):
            return False
        try:
            taken = self._pending is not None
            self.settle()
            return taken
        finally:
            self.receiving.release()

    def _check(self, handle: Handle) -> None:
        if self._handles.get(getattr(handle, "slot", -1)) is not handle:
            raise UnknownRequest(f"{handle!r} is no request of this session: never added, removed, or of another one")

    def _take_lane(self, opened: processing_pb2.SessionOpened, timeout: float, *, required: bool) -> None:
        """Move to the local lane, if the server offers one and it can be reached from here."""
        try:
            if not opened.HasField("lane"):
                raise ConnectionRefusedError("the server offers none")
            self._transport = LocalLane.connect(opened.lane, self._transport, timeout)
        except OSError as error:
            if required:
                raise ServerUnavailable(f"no local lane to {self._transport.target}: {error}") from error
