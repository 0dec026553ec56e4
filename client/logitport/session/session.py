"""An engine's session: the client side of one persistent batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from logitport.core import compiled
from logitport.session.connection.frame_channel import FrameChannel
from logitport.session.failover.moves import Moves
from logitport.session.failover.stopped_servers import StoppedServerWatch
from logitport.session.logits.logits_transfer import LogitsTransfer
from logitport.session.requests.chain_programs import ChainPrograms
from logitport.session.requests.program_trust import ProgramTrust
from logitport.session.requests.session_requests import SessionRequests
from logitport.session.steps.pending_step import PendingStep, StepContext
from logitport.session.steps.step_content import StepReader
from logitport.shipping.calls import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from logitport.core.history import TokenIds
    from logitport.core.row_events import RequestEvent
    from logitport.errors import LogitportError
    from logitport.session.failover.moves import OtherServer
    from logitport.session.handle import Handle, RowLike
    from logitport.session.requests.pending_request import PendingRequest
    from logitport.session.transports.base import Transport
    from logitport.shipping.request import Request
    from logitport_proto import processing_pb2


class Session:
    """A persistent batch: requests are added and removed, and each step sends new tokens and processes logits.

    Made by `Client.session`. Not safe to use from several threads. Close it, or use it in a `with` statement.

    If the connection is lost, or the server does not reply within its own deadlines, the session reconnects. If there
    are several servers, it also does so when its server answers neither a frame nor other calls for 3 s. Every
    request with a state that follows from its history continues unchanged; a request with a processor that has read
    logits fails with StateLost, unless all of its processors are programs. The new server admits the requests in the
    background: one with processors that load too slowly fails with ProcessorFailed, and the others do not wait for it.

    Attributes:
        vocab_size: width of the logits.
        datatype: of the logits: "FP32", "FP16" or "BF16".
    """

    _step_class: type[PendingStep] = PendingStep

    def __init__(
        self,
        connect: Callable[[float], Transport],
        opening: processing_pb2.OpenSession,
        *,
        timeout: float,
        reconnect_seconds: float = 0.0,
        restore: Callable[[], dict[str, LogitportError]] = dict,
        refused: Callable[[], object] = lambda: None,
        local: Literal["auto", "grpc", "local"] = "auto",
        with_torch: bool = True,
        trust: ProgramTrust | None = None,
        answers: Callable[[], bool] | None = None,
        elsewhere: Callable[[], OtherServer | None] | None = None,
        limits_programs: bool = True,  # whether the server runs programs that together take too long for a step
    ) -> None:
        compiled.warn_if_missing()
        self.vocab_size = opening.vocab_size
        self.datatype = opening.datatype
        self._channel = FrameChannel(connect, opening, timeout=timeout, local=local, refused=refused)
        programs = ChainPrograms(
            self.vocab_size,
            trust or ProgramTrust("off"),
            with_torch=with_torch,
            rows=1 + opening.max_draft_tokens if limits_programs else 0,
        )
        self._watch = None if answers is None else StoppedServerWatch(self._channel, answers)
        moves = None if elsewhere is None else Moves(elsewhere, opening, timeout=timeout, local=local)
        self._requests = SessionRequests(self._channel, restore, reconnect_seconds, programs, moves)
        self._table = self._requests.table
        try:
            self._requests.with_reconnect(self._channel.check)
        except BaseException:
            self._end()
            raise
        programs.prepare()
        self._transfer = LogitsTransfer(
            self._channel, self.vocab_size, self.datatype, with_torch=with_torch, device=opening.device
        )
        self._buffer = self._transfer.buffer
        self._reader = StepReader(self._requests, self.vocab_size)
        self._steps = StepContext(self._channel, self._requests, self._transfer, self.vocab_size)
        self._begun: PendingStep | None = None

    @property
    def session_id(self) -> str:
        """The server's id of the session, for logs; it changes after a reconnect."""
        return self._channel.opened.session_id

    @property
    def reconnects(self) -> int:
        """Number of reconnects."""
        return self._channel.connections - 1

    @property
    def resyncs(self) -> int:
        """How often a request's history was sent again because the server's history differed."""
        return self._requests.resyncs

    @property
    def transport(self) -> str:
        """How frames are sent: "grpc", or "local" over a Unix socket with shared memory."""
        return self._channel.transport.name

    @property
    def logits_memory(self) -> str:
        """Where the server last read logits; "" before the first time.

        "device" is memory of the engine's GPU, "host" is memory shared with the server; "inline" logits were sent.
        """
        return self._transfer.memory

    def logits_buffer(self, rows: int) -> Any:
        """Return logits in memory shared with the server: float[rows, vocab_size] of the session's dtype.

        For a session opened with a torch dtype and device="cuda:…" they are on that GPU. If the server uses the same
        GPU, it edits them there. CUDA events order the work, so no process waits for the GPU: `apply` and the server's
        edits run after the work already queued on the current stream, and before work queued later.

        A step applied to these rows, or to the first of them, copies no logits. The buffer is the same memory at each
        call. A call with more rows than before, or after a reconnect, makes a new buffer, and does not copy the old
        contents.

        Use the buffer until the next `add`, `begin_add`, `enter` or `poll`, and then call again, which waits for the
        admissions of `enter`. A processor in a worker may
        have had exclusive use of the buffer, and that worker keeps write access. If a request of another trust domain
        is added, the buffer is retired: a step applied to it raises InvalidArgument, and the next call returns another
        buffer. A buffer that was replaced by a larger one is retired at the next `add` of any request; until then steps
        may be applied to it.

        Returns:
            A torch tensor if the session was opened with a torch dtype, else a numpy array. It is ordinary memory if
            none can be shared with the server: then logits are sent, and everything else is the same.

        Raises:
            InvalidArgument: `rows` is not a whole number, or negative.
            LimitExceeded: more than the server's max_region_bytes.
        """
        num_rows = count(rows, "rows", 0)
        if self._table.restoring:
            self._requests.collect()  # now, because it may retire the buffer
        if self._table.entering:
            self._requests.end_entering()  # for the same reason
        if self._channel.sent:
            self._requests.with_reconnect(self._channel.receive_posted)  # also of requests removed since
        return self._requests.with_reconnect(lambda: self._buffer.rows(num_rows))

    def add(self, request: Request) -> Handle:
        """Admit a request, with its whole history. The server looks up its processors and builds their state now.

        Raises:
            NotFound, InvalidArgument, PayloadError: the request is refused; see docs/protocol.md.
            LimitExceeded: the session holds as many requests as it may.
        """
        handle = self._requests.add(request)
        self._buffer.request_added()
        return handle

    def begin_add(self, requests: Iterable[Request]) -> list[PendingRequest]:
        """Begin to admit requests, and return at once; the server admits them while the session makes its steps.

        It sends one frame, or several for very long histories. A request of built-ins is admitted at once, because that
        is fast; `poll` returns it, too. A request that the server refuses does not affect the others.

        Returns:
            The pending requests, in the order of `requests`.

        Raises:
            InvalidArgument: a request cannot be sent. None is begun.
            LimitExceeded: more requests than the session may hold, the pending ones included. None is begun.
        """
        pending = self._requests.begin_add(list(requests))
        if pending:
            self._buffer.request_added()  # they may have been admitted at once
        return pending

    def enter(self, requests: Iterable[Request], *, seconds: float = 5.0) -> list[Handle]:
        """Admit requests without waiting: they may take part in the next step at once, and each step after it.

        Their frame is written before the step's, and the reply is received with the step's reply, after the forward
        pass. The method that finishes the step, such as `PendingStep.apply`, then waits for admissions that have not
        ended, because their processors load, and for programs that the engine is to run: no row is left unedited.
        The step is then processed twice. This is so for each chain with a shipped class, also one that is loaded.

        A request that the server refuses fails in its steps, with the error that `add` would raise; remove it then. So
        does a request whose admission takes longer than `seconds` after the forward pass, with ProcessorFailed. Until
        the first step of a request is finished, its handle does not state what the server has admitted, such as
        `Handle.processors`.

        Args:
            requests: sent with one frame, or several for very long histories. The session waits for the reply to a
                frame of more than 256 KiB.
            seconds: how long a step waits for the admissions of these requests.

        Returns:
            Their handles, in the order of `requests`.

        Raises:
            InvalidArgument: a request cannot be sent. None is admitted.
            LimitExceeded: more requests than the session may hold. None is admitted.
        """
        handles = self._requests.enter(list(requests), seconds)
        if handles:
            self._buffer.request_added()
        return handles

    def poll(self) -> list[PendingRequest]:
        """Return the requests of `begin_add` with an admission that has ended since the last call, each once.

        Call it before each step. It sends a frame only if requests are pending, and the last step has not reported that
        none of their admissions has ended.
        """
        return self._requests.poll()

    def remove(self, *handles: Handle) -> None:
        """Drop requests and their state, with one frame. Does not wait for its reply, which the next step receives.

        Raises:
            NotFound: one is not of this session, was removed, or occurs twice. None is dropped.
        """
        self._requests.remove(*handles)

    def together(self) -> AbstractContextManager[None]:
        """Send what `enter` and `remove` send within the block with the step that follows them there.

        On the local transport this is one write. Three writes take longer, because each wakes the server. A call within
        the block that waits for a reply, such as `add`, sends them before.

        Raises:
            ServerUnavailable: at the end of a block without a step, if the server did not receive them in time.
        """
        return self._channel.together()

    def step(
        self,
        new_token_ids: Mapping[Handle, TokenIds],
        *,
        rows: Sequence[RowLike] | None = None,
        drafts: Mapping[Handle, TokenIds] | None = None,
        draft_parents: Mapping[Handle, TokenIds] | None = None,
    ) -> PendingStep:
        """Send the new tokens, and return at once; the server works while the model's forward pass runs.

        Args:
            new_token_ids: for each request of the step, the ids added since its last step; [] in its first step. Ids
                are a list, or another sequence, or a numpy array or torch tensor of integers, [n]. A tensor on a GPU is
                copied for each request: where all ids are in one tensor, copy that with `.tolist()` first.
            rows: the request of each row of the logits: a handle, or (handle, draft offset). A row with offset 0 sees
                the history, and one with offset j the history, the ancestors of `drafts[j - 1]`, and that draft. By
                default the requests in order, each with one row and one more for each draft token.
            drafts: draft tokens of requests that speculate. They are not added to the history.
            draft_parents: for each draft of a request, the index of the draft that it follows, which comes before it;
                -1 if it follows the history. The drafts of a request without an entry are a chain.

        Returns:
            The pending step; `apply(logits)` finishes it. A request with ids or drafts outside the vocabulary
            fails there with InvalidArgument, and in every later step, because its history differs from the engine's.

        Raises:
            NotFound, InvalidArgument: an argument is invalid, and nothing was sent.
        """
        if self._channel.should_move:
            self._requests.with_reconnect(self._requests.move)
        if self._requests.admissions.answers:
            self._requests.settle()
        content = self._reader.read(new_token_ids, drafts, rows, draft_parents)
        if self._table.restoring:
            self._leave_restoring(content.handles)
        entering = self._table.entering_of(content.handles) if self._table.entering else ()
        steps = self._steps
        replies = steps.replies
        sent = self._channel.begin(
            content.serialize,
            replies.read,
            content,
            replies.compiled(content),
            len(content.rows),
            is_read_later=bool(entering),
        )
        pending = self._step_class(steps, content, sent, [each.handle for each in entering] if entering else ())
        if self._begun is not None:
            self._begun.superseded = True
        self._begun = pending
        content.extend()
        if steps.reports.unconfirmed or steps.reports.changes:
            steps.reports.confirm(content.handles)
        return pending

    @property
    def report_changes(self) -> Mapping[Handle, tuple[int, Sequence[RequestEvent]]]:
        """Changes of `Handle.report` by the last step, for an engine that collects reports in another process.

        For each request that has any: the first position in the output that may have changed, and the events from there
        on, of rows that were sampled from, and of the step.
        """
        return self._steps.reports.changes

    def rewind(self, handle: Handle, length: int) -> None:
        """Cut a request's history back to `length` ids (prompt and output); its next step continues from there.

        Raises:
            NotFound: the handle is not in this session.
            InvalidArgument: `length` is above the history's, or below the prompt's.
        """
        self._table.check(handle)
        handle.rewind(length)
        self._steps.reports.rewound(handle)

    def close(self) -> None:
        """End the session; the server drops its requests. May be called twice."""
        self._requests.clear()
        self._end()

    def _leave_restoring(self, handles: Sequence[Handle]) -> None:
        """Collect the results of requests that a new server admits. Ends the step's admissions that still run."""
        if any(map(self._table.is_restoring, handles)):
            if not self._buffer.is_used:  # the engine may have written the logits to it already
                self._requests.collect()
            admissions = self._requests.admissions
            self._requests.with_reconnect(lambda: admissions.end_restoring(handles))

    def _end(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._channel.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._table.handles)

    def __bool__(self) -> bool:
        return True  # even without requests, where __len__ is 0
