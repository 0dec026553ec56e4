"""One processor in a worker, and the state of each request that uses it."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

from logitport.errors import ProcessorFailed
from logitport_server.worker.shown_source import ShownSource
from logitport_session.dialects import failures

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Sequence

    import torch

    from logitport.core.history import History
    from logitport.errors import LogitportError
    from logitport_server.worker.output import Output
    from logitport_session.dialects import Dialect, RequestContext

# An engine's front end tries a chain in one session, and the engine uses another. It must not wait for the class twice.
_SLOW_INIT_SECONDS = 0.1


@dataclass(slots=True)
class _Request:
    """A request of one processor.

    Attributes:
        history: mirror of the server's history.
        token_callback: called with each id appended to the history; None if the dialect needs no call.
        stale: whether the state lags behind the history because the processor failed on an earlier event.
        rebuildable: whether the state is a function of the history.
    """

    history: History
    state: Any
    token_callback: Callable[[int], object] | None
    stale: bool = False
    rebuildable: bool = True


class WorkerProcessor:
    """Mirrors the histories of its requests from the server's events, and calls the processor.

    Attributes:
        memory: mapped memory with logits, host memory or a GPU's, by the server's number for it.
        device: the torch device of the logits that the processor receives.
        init_seconds: how long the creation of the instance took.
        output: what is printed in calls; None if it is not kept.
        source: the lines that tracebacks show.
    """

    def __init__(
        self,
        dialect: Dialect,
        digest: str = "",
        init_seconds: float = 0.0,
        output: Output | None = None,
        source: ShownSource | None = None,
    ) -> None:
        self.source = source or ShownSource()
        self.output = output
        self.dialect = dialect
        self.digest = digest
        self.init_seconds = init_seconds
        self.memory: dict[int, mmap.mmap | torch.Tensor] = {}
        self.device = "cpu"
        self._requests: dict[int, _Request] = {}
        self._numbers: Sequence[int] = ()
        self._selected: list[_Request | None] = []

    @property
    def kept(self) -> bool:
        """Whether the instance is worth keeping for the next session, because its creation took long."""
        return self.dialect.reusable and self.init_seconds > _SLOW_INIT_SECONDS

    def start(self, number: int, context: RequestContext, params: dict[str, Any]) -> None:
        """Build the state of a request."""
        state = self.dialect.start(context, params)
        self._requests[number] = _Request(context.history, state, self.dialect.token_callback(state))

    def drop(self, number: int) -> None:
        """Drop the state of a request."""
        self._requests.pop(number, None)

    def update(
        self, numbers: Sequence[int] | None, counts: Sequence[int] | None, events: Sequence[int], drafts: Sequence[int]
    ) -> tuple[dict[int, LogitportError], Sequence[int]]:
        """Apply the history events since the previous call.

        Args:
            numbers: the state of each row, which may occur twice; 0 for a row to leave out. None to use those of the
                previous call.
            counts: number of events of each row; None if each row has one.
            events: of all rows. An id was appended to the history; -1 - length means a rewind to that length.
            drafts: how many ids at the end of each history are draft tokens; empty if none is.

        Returns:
            The errors by row, and the rows to call: all but those left out and those that failed.
        """
        if numbers is not None:
            self._numbers = numbers
            self._selected = [self._requests.get(number) for number in numbers]
        selected, failed = self._selected, self._apply_events(counts, events)
        for request, count in zip(selected, drafts, strict=False):
            if request is not None:
                request.history.draft_tokens = count
        if not failed and None not in selected:
            return failed, range(len(selected))
        for row, number in enumerate(self._numbers):
            if number and selected[row] is None:
                failed[row] = ProcessorFailed("the state of the request is not in the worker: its start has failed")
        return failed, [row for row, request in enumerate(selected) if request is not None and row not in failed]

    def states(self, rows: Sequence[int]) -> list[Any]:
        """Return the dialect's state of each of these rows."""
        selected: Sequence[Any] = self._selected
        return [selected[row].state for row in rows]

    def failure(self, error: BaseException) -> LogitportError:
        """Convert an exception of the processor."""
        with self.source.shown():
            failure = failures.of_sandboxed(error, self.dialect.name)
        release_memory_after(error)
        return failure

    def output_of_one(self) -> str:
        """Return the output of a call for one request. Another call's output may show the prompts of all requests."""
        if self.output is None or len({*self._numbers} - {0}) > 1:
            return ""
        return self.output.since(0)

    def newly_not_rebuildable(self, rows: Sequence[int]) -> list[int]:
        """Return the numbers of the states, among these rows, that have ceased to be a function of the history."""
        numbers = []
        for row in rows:
            request = self._selected[row]
            if request is not None and request.rebuildable:
                try:
                    self.dialect.check_rebuildable(request.state)
                except BaseException:  # noqa: BLE001 - the check compares objects of shipped code
                    request.rebuildable = False
                    numbers.append(self._numbers[row])
        return numbers

    def _apply_events(self, counts: Sequence[int] | None, events: Sequence[int]) -> dict[int, LogitportError]:
        """Apply the history events of all rows. Returns the errors by row."""
        failed: dict[int, LogitportError] = {}
        begin = printed = 0
        output = self.output
        selected = self._selected
        for row, (request, count) in enumerate(zip(selected, counts or repeat(1, len(selected)), strict=True)):
            if request is None:
                begin += count
                continue
            if output is not None:
                printed = output.own_bytes
            try:
                if request.stale:
                    self._rebuild(request, events[begin : begin + count])
                elif count == 1 and events[begin] >= 0:  # fast path: one new id
                    request.history.append(events[begin])
                    if request.token_callback is not None:
                        request.token_callback(events[begin])
                elif count:
                    self._apply(request, events[begin : begin + count])
            except BaseException as error:  # noqa: BLE001 - shipped code may raise anything
                request.stale = True
                failed[row] = self.failure(error)
                if output is not None:
                    failed[row].output = output.since(printed)
            begin += count
        return failed

    def _apply(self, request: _Request, events: Sequence[int]) -> None:
        for position, event in enumerate(events):
            try:
                if event < 0:
                    request.history.rewind(-1 - event)
                    self.dialect.rewind(request.state)
                else:
                    request.history.append(event)
                    if request.token_callback is not None:
                        request.token_callback(event)
            except BaseException:
                _apply_to_history(request.history, events[position + 1 :])
                raise

    def _rebuild(self, request: _Request, events: Sequence[int]) -> None:
        _apply_to_history(request.history, events)
        self.dialect.rebuild(request.state)
        request.stale = False


def _apply_to_history(history: History, events: Sequence[int]) -> None:
    for event in events:
        if event < 0:
            history.rewind(-1 - event)
        else:
            history.append(event)


def release_memory_after(error: BaseException) -> None:
    """Return the GPU memory that torch keeps for later tensors, if the error is that the GPU had none left.

    Otherwise the worker would keep what the failed call has reserved, and the engine and other workers would lack it.
    Call it when the traceback is not needed any more: its frames are cleared, because torch returns only memory that
    no tensor uses.
    """
    torch = sys.modules.get("torch")  # processors that are edits need no torch
    if torch is None or not torch.cuda.is_initialized():
        return
    causes = list(failures.chain(error))
    if any(isinstance(cause, torch.cuda.OutOfMemoryError) for cause in causes):
        for cause in causes:
            traceback.clear_frames(cause.__traceback__)
        torch.cuda.empty_cache()
