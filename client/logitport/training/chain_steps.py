"""The edits and programs of sampled sequences, computed by a session in this process, many rows in one step."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from logitport.client.call_sender import get_call
from logitport.client.embedded_server import EmbeddedSender
from logitport.core.compiled import core
from logitport.errors import InvalidArgument, LogitportError, NotFound, PayloadError
from logitport.session.requests.program_trust import ProgramTrust
from logitport.session.session import Session
from logitport.shipping.request import ProcessorRef, Request
from logitport.system.frame_limits import DEFAULT_MAX_MESSAGE_BYTES
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from logitport.client import Client
    from logitport.core.edits import Edits
    from logitport.session.handle import Handle, ProgramCall
    from logitport.shipping.request import ProcessorLike
    from logitport.training.rollout import Rollout

# Rows of one step. A session accepts 256 drafts of a request.
_MAX_ROWS = 256
# Threads with a session each. The compiled core computes a step without the interpreter's lock.
_MAX_THREADS = 8
# Memory of edits that are computed ahead.
_AHEAD_BYTES = 64 << 20
# No reply takes as long: there is no connection that could be lost.
_TIMEOUT_SECONDS = 1e6
# An id of an edit, and its value.
_ID_BYTES = 8
_WAY_OUT = (
    "a trainer runs built-ins, grammars and programs: make a program of it with `logitport_programs.lift` "
    "(docs/programs.md), name an EditProcessor in `ChainReplay(trusted=...)` to run its code in this process, or "
    "install its class in a package with the entry point group 'logitport.processors'"
)


class OutputSpan(NamedTuple):
    """Consecutive ids of a rollout's output.

    Attributes:
        rollout: index of the rollout.
        begin, end: positions in its output.
    """

    rollout: int
    begin: int
    end: int

    @property
    def rows(self) -> int:
        """Number of ids, and of rows of logits that predict them."""
        return self.end - self.begin


class Block(NamedTuple):
    """What the chains do to the rows of some spans.

    Attributes:
        spans: the rows, in their order.
        edits: those before the first program of each row's chain, after it, after the second one, ...
        programs: the programs of each span's chain.
    """

    spans: Sequence[OutputSpan]
    edits: Sequence[Edits]
    programs: Sequence[Sequence[ProgramCall]]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(span.rows for span in self.spans)

    @property
    def nbytes(self) -> int:
        """Memory of the edits."""
        return sum(
            column.nbytes for one in self.edits for column in (one.rows, one.kinds, one.offsets, one.ids, one.values)
        )


class ChainSteps:
    """Computes what the chains of rollouts do. Thread-safe.

    Args:
        tokenizer_id: see `Client.session`.
        eos_token_ids: see `Client.session`.
        programs: see `Client.embedded`.
        client, trusted: see `ChainReplay`.
    """

    def __init__(
        self,
        tokenizer_id: str,
        eos_token_ids: Sequence[int],
        programs: str,
        client: Client | None = None,
        trusted: Sequence[ProcessorLike] = (),
    ) -> None:
        target = f"embedded:{programs}" if programs else "embedded"
        self._sender = EmbeddedSender(target, _TIMEOUT_SECONDS, DEFAULT_MAX_MESSAGE_BYTES, trusted)
        # Trusted code need not be thread-safe, and Python computes in one thread at a time.
        self._most_threads = _MAX_THREADS if core is not None and not trusted else 1
        self._fetching = threading.Lock()
        self._client = client
        # Of the client's server, by the name or digest in a chain.
        self._fetched: dict[str, ProcessorLike] = {}
        self._tokenizer_id = tokenizer_id
        self._eos_token_ids = list(eos_token_ids)

    def blocks(
        self, rollouts: Sequence[Rollout], tiles: Sequence[Sequence[OutputSpan]], vocab_size: int
    ) -> Iterator[list[Block]]:
        """Yield the blocks of each tile, which has its rows in the order of the rollouts.

        Raises:
            InvalidArgument: a rollout's chain is refused, or fails; the message names the rollout.
        """
        opening = processing_pb2.OpenSession(
            vocab_size=vocab_size,
            datatype="FP32",
            device="cpu",
            tokenizer_id=self._tokenizer_id,
            eos_token_ids=self._eos_token_ids,
            max_draft_tokens=_MAX_ROWS,
            engine="logitport.training",
            runs_programs=True,
        )
        thread_of = _threads_of(rollouts, min(torch.get_num_threads(), self._most_threads))
        complete = partial(self._with_programs, vocab_size=vocab_size)
        with ExitStack() as stack:
            sessions = [stack.enter_context(self._session(opening)) for _ in range(max(thread_of, default=0) + 1)]
            requests = [_Requests(session, rollouts, complete) for session in sessions]
            if len(requests) == 1:
                yield from map(requests[0].blocks, tiles)
            else:
                yield from _in_threads(requests, thread_of, tiles)

    def _session(self, opening: processing_pb2.OpenSession) -> Session:
        return Session(
            self._sender.connect,
            opening,
            timeout=_TIMEOUT_SECONDS,
            trust=ProgramTrust("all"),
            limits_programs=False,  # the time of a step does not matter
        )

    def _with_programs(self, request: Request, vocab_size: int) -> Request:
        """Return a request with the programs that this process lacks. Raises the errors of the client's server."""
        found = [(self._found(processor, params, vocab_size), params) for processor, params in request.processors]
        return replace(request, processors=found)

    def _found(self, processor: ProcessorLike, params: Mapping[str, Any], vocab_size: int) -> ProcessorLike:
        name = processor.digest if isinstance(processor, ProcessorRef) else processor
        if self._client is None or not isinstance(name, str) or not name or name.lstrip().startswith("{"):
            return processor
        with self._fetching:
            if name not in self._fetched:
                try:
                    self._sender.result(get_call(name))
                except NotFound:
                    self._fetched[name] = self._fetch(self._client, name, params, vocab_size)
                else:
                    self._fetched[name] = processor
            return self._fetched[name]

    def _fetch(self, client: Client, name: str, params: Mapping[str, Any], vocab_size: int) -> ProcessorLike:
        """Fetch a program as an engine does: a session receives those of its requests, and checks their digests."""
        with client.session(vocab_size=vocab_size, dtype=torch.float32, record=False, programs="all") as session:
            handle = session.add(Request(processors=[(name, params)]))
        if handle.programs_on_server:
            raise InvalidArgument(f"{name!r} is a program that takes too long for an engine; give its payload instead")
        if not handle.programs:
            raise InvalidArgument(f"{name!r} is code, which the server does not give away; {_WAY_OUT}")
        program = handle.programs[0].verified.program
        if handle.digests() != [program.digest]:
            raise PayloadError(f"the server sent the program {program.digest} in place of {name}")
        return program


def _threads_of(rollouts: Sequence[Rollout], threads: int) -> list[int]:
    """Return the thread of each rollout, from 0.

    A rollout stays in one thread, because its rows are computed in their order. Short rollouts that follow each other
    share a thread, because one step computes them together.
    """
    found, run, rows = [], 0, 0
    for rollout in rollouts:
        found.append(run % threads)
        rows += len(rollout)
        if rows >= _MAX_ROWS:
            run, rows = run + 1, 0
    return found


def _in_threads(
    requests: Sequence[_Requests], thread_of: Sequence[int], tiles: Sequence[Sequence[OutputSpan]]
) -> Iterator[list[Block]]:
    """Yield the blocks of each tile. Later tiles are computed meanwhile, as far as their edits need little memory.

    Raises the errors of `_Requests.blocks`, at the tile that has one.
    """
    with ExitStack() as stack:
        names = [f"logitport-training-{number}" for number in range(len(requests))]
        executors = [stack.enter_context(ThreadPoolExecutor(1, name)) for name in names]
        stack.callback(_stop, requests, executors)  # runs first: no thread begins another step while one is waited for
        ahead: deque[list[Future[list[Block]]]] = deque()
        most = 0  # tiles that are computed ahead; none before the size of one is known
        for tile in tiles:
            by_thread = groupby(tile, lambda span: thread_of[span.rollout])
            ahead.append([executors[at].submit(requests[at].blocks, list(spans)) for at, spans in by_thread])
            while len(ahead) > most:
                blocks = _results(ahead.popleft())
                tile_bytes = sum(block.nbytes for block in blocks)
                most = min(2 * len(requests), _AHEAD_BYTES // max(1, tile_bytes))
                yield blocks
        yield from map(_results, ahead)


def _results(parts: Sequence[Future[list[Block]]]) -> list[Block]:
    return [block for part in parts for block in part.result()]


def _stop(requests: Sequence[_Requests], executors: Sequence[ThreadPoolExecutor]) -> None:
    for each in requests:
        each.is_stopped = True
    for executor in executors:
        executor.shutdown(wait=False, cancel_futures=True)


class _Requests:
    """The rollouts as requests of a session, admitted when their first row comes, and removed after their last one.

    Attributes:
        is_stopped: set on another thread to begin no further step.
    """

    def __init__(self, session: Session, rollouts: Sequence[Rollout], complete: Callable[[Request], Request]) -> None:
        self._session = session
        self._rollouts = rollouts
        self._complete = complete
        self._handles: dict[int, Handle] = {}
        self._sent: dict[int, int] = {}  # ids of the output that the session has
        self.is_stopped = False

    def blocks(self, spans: Sequence[OutputSpan]) -> list[Block]:
        """Return what the chains do to the rows of these spans, in several steps if they are many.

        Raises InvalidArgument as `ChainSteps.blocks`.
        """
        return [self._step(part) for part in self._divided(spans) if not self.is_stopped]

    def _divided(self, tile: Sequence[OutputSpan]) -> Iterator[list[OutputSpan]]:
        """Yield the spans of each step. Rows with programs and rows without are in different steps."""
        spans: list[OutputSpan] = []
        room, with_programs = 0, False
        for rollout, first, end in tile:
            handle = self._handle(rollout)
            most = self._most_rows(handle)
            begin = first
            while begin < end:
                if not spans or with_programs != bool(handle.programs) or room <= 0:
                    if spans:
                        yield spans
                    spans, room, with_programs = [], most, bool(handle.programs)
                rows = min(end - begin, room, most)
                spans.append(OutputSpan(rollout, begin, begin + rows))
                begin += rows
                room = min(room, most) - rows
        if spans:
            yield spans

    def _step(self, spans: Sequence[OutputSpan]) -> Block:
        """Return what the chains do to the rows of these spans."""
        new, drafts = {}, {}
        for index, begin, end in spans:
            handle, ids = self._handles[index], self._rollouts[index].output_token_ids
            new[handle] = ids[self._sent[index] : begin].tolist()
            drafts[handle] = ids[begin : end - 1].tolist()
            self._sent[index] = begin
        pending = self._session.step(new, drafts=drafts)
        edits = pending.parts()
        result = pending.result
        for index, begin, end in spans if result is not None and result.failures else ():
            error = result.failures.get(self._handles[index]) if result is not None else None
            if error is not None:
                raise _refused(index, error, f" at the positions {begin} to {end - 1} of the output")
        programs = [self._handles[span.rollout].programs for span in spans]
        ended = [span.rollout for span in spans if span.end == len(self._rollouts[span.rollout])]
        if ended:
            self._session.remove(*[self._handles.pop(index) for index in ended])
        return Block(spans, edits, programs)

    def _handle(self, index: int) -> Handle:
        if index in self._handles:
            return self._handles[index]
        try:
            handle = self._session.add(self._complete(self._rollouts[index].request))
        except LogitportError as error:
            raise _refused(index, error) from error
        if handle.sends_logits:
            raise InvalidArgument(
                f"rollout {index}: a processor of its chain reads logits, and is no program; {_WAY_OUT}"
            )
        self._handles[index], self._sent[index] = handle, 0
        return handle

    def _most_rows(self, handle: Handle) -> int:
        """Return how many rows of a request have edits that fit into a reply, if each processor lists all ids."""
        processors = len(handle.processors) - len(handle.programs)
        return min(
            _MAX_ROWS, max(1, DEFAULT_MAX_MESSAGE_BYTES // (_ID_BYTES * self._session.vocab_size * max(1, processors)))
        )


def _refused(index: int, error: LogitportError, where: str = "") -> LogitportError:
    """Return the error of a rollout whose chain cannot be replayed."""
    message = error.message
    if isinstance(error, PayloadError) and error.code == PayloadError.NOT_ALLOWED:
        message = f"its chain has a class, which is code; {_WAY_OUT}"
    return InvalidArgument(f"rollout {index}{where}: {message}", remote_traceback=error.remote_traceback)
