"""One engine's persistent batch, on the engine's side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from logitport.calls import count
from logitport.errors import InvalidTokenId, LogitportError
from logitport.session.channel import FrameChannel
from logitport.session.frames import Handle, RowLike, misused, place_rows, step_frame, wrong_ids
from logitport.session.logits_buffer import LogitsTransfer
from logitport.session.requests import SessionRequests
from logitport.session.step import PendingStep
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from logitport.request import Request
    from logitport.session.transports.base import Transport


class Session:
    """Requests come and go, and at each step the engine tells what was sampled and gets its logits processed.

    Made by `Client.session`. Not safe to use from several threads. Close it, or use it in a `with` statement.

    If the connection breaks, it is made again, and every request whose state follows from its history goes on as if
    nothing had been; one whose processors have read logits fails with StateLost.

    Attributes:
        vocab_size: width of the logits.
        datatype: of the logits: "FP32", "FP16" or "BF16".
    """

    def __init__(
        self,
        connect: Callable[[float], Transport],
        opening: processing_pb2.OpenSession,
        *,
        timeout: float,
        reconnect_seconds: float = 0.0,
        restore: Callable[[], dict[str, LogitportError]] = dict,
        local: Literal["auto", "grpc", "local"] = "auto",
        with_torch: bool = True,
    ) -> None:
        self.vocab_size = opening.vocab_size
        self.datatype = opening.datatype
        self._channel = FrameChannel(connect, opening, timeout=timeout, local=local)
        self._requests = SessionRequests(self._channel, restore, reconnect_seconds)
        self._transfer = LogitsTransfer(
            self._channel, self.vocab_size, self.datatype, with_torch=with_torch, device=opening.device
        )
        self._begun: PendingStep | None = None

    @property
    def session_id(self) -> str:
        """The server's name for it, for logs; another one after a reconnect."""
        return self._channel.opened.session_id

    @property
    def reconnects(self) -> int:
        """How often the connection broke and was made again."""
        return self._channel.connections - 1

    @property
    def resyncs(self) -> int:
        """How often a request's history was sent again because the server's was another one."""
        return self._requests.resyncs

    @property
    def transport(self) -> str:
        """How frames travel: "grpc", or "local" over a Unix socket with shared memory."""
        return self._channel.transport

    @property
    def logits_memory(self) -> str:
        """Where logits were when the server read them last; "" before.

        "device" is memory of the engine's GPU, "host" memory shared with the server; "inline" logits travelled.
        """
        return self._transfer.memory

    def logits_buffer(self, rows: int) -> Any:
        """Logits that the server can reach: float[rows, vocab_size] of the session's dtype, in shared memory.

        For a session opened with a torch dtype and device="cuda:…" they are on that GPU. If the server works on the
        same one, it edits them there, ordered by events: nobody waits for the GPU. The work that `apply` and the server
        do comes after what the current stream was told before, and before what it is told afterwards.

        A step applied to them, or to their first rows, moves no logits. The buffer is the same memory at each call;
        asking for more rows than before, or after a reconnect, makes a new one, and what was in the old one is not
        copied.

        It is good until the next `add`: a processor in a worker, whose requests had the buffer to themselves, can write
        there for ever. Where a request is added that is not its own, the buffer is retired: steps are not applied to it
        any more (InvalidLogits), and the next call gives another. So is a buffer that a new one has replaced, whoever
        is added; until then steps may be applied to it, as to any other logits.

        Returns:
            A torch tensor if the session was opened with a torch dtype, else a numpy array. Ordinary memory if the
            server cannot reach such: then logits travel, and everything else is the same.

        Raises:
            InvalidArgument: `rows` is no whole number, or negative.
            LimitExceeded: more than the server's max_region_bytes.
        """
        wanted = count(rows, "rows", 0)
        return self._requests.with_reconnect(lambda: self._transfer.buffer.rows(wanted))

    def add(self, request: Request) -> Handle:
        """Admit a request, with its whole history; its processors are found and their state is built now.

        Raises:
            UnknownProcessor, InvalidParams, PayloadError, InvalidTokenId: the request is refused; see docs/protocol.md.
            LimitExceeded: the session holds as many requests as it may.
        """
        handle = self._requests.add(request)
        self._transfer.buffer.request_added()
        return handle

    def remove(self, handle: Handle) -> None:
        """Drop a request and its state. Raises UnknownRequest if it is not of this session, or was removed."""
        self._requests.remove(handle)

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
            The step under way; `apply(logits)` finishes it. A request whose ids, or drafts, are no ids of the
            vocabulary fails there with InvalidTokenId, and in every later step: its history is not what the engine has.

        Raises:
            UnknownRequest, InvalidArgument: the call is wrong, and nothing was sent.
        """
        drafted: Mapping[Handle, Sequence[int]] = {}
        try:
            drafted = {handle: tuple(token_ids) for handle, token_ids in drafts.items()} if drafts else {}
            for handle in new_token_ids:
                self._requests.check(handle)
            placed = place_rows(new_token_ids, drafted, rows)
            frame = step_frame(new_token_ids, drafted, placed, self.vocab_size)
        except InvalidTokenId:
            wrong = wrong_ids(new_token_ids, self.vocab_size) | wrong_ids(drafted, self.vocab_size)
            self._requests.give_up(wrong)
            new_token_ids = {handle: () if handle in wrong else ids for handle, ids in new_token_ids.items()}
            drafted = {handle: (0,) * len(ids) if handle in wrong else ids for handle, ids in drafted.items()}
            frame = step_frame(new_token_ids, drafted, placed, self.vocab_size)
        except LogitportError:
            raise
        except (AttributeError, TypeError, ValueError) as error:
            raise misused(new_token_ids, drafts, rows) from error
        pending = PendingStep(
            self._channel, self._requests, self._transfer, list(new_token_ids), drafted, placed, self.vocab_size
        )
        self._channel.begin(processing_pb2.SessionRequest(step=frame), pending.take_reply)
        if self._begun is not None:
            self._begun.supersede()
        self._begun = pending
        for handle, token_ids in new_token_ids.items():
            handle.extend(token_ids)
        return pending

    def rewind(self, handle: Handle, length: int) -> None:
        """Cut a request's history back to `length` ids (prompt and output); its next step goes on from there.

        Raises:
            UnknownRequest: not a request of this session.
            InvalidArgument: longer than the history, or into the prompt.
        """
        self._requests.check(handle)
        handle.rewind(length)

    def close(self) -> None:
        """End the session; the server forgets its requests. May be called twice."""
        self._requests.clear()
        self._channel.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._requests)

    def __bool__(self) -> bool:
        return True  # also while it holds no request
