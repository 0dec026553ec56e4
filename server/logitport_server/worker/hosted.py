"""One processor in a worker, and the state of each request that uses it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

from logitport_server.dialects import failures

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Container, Sequence

    import torch

    from logitport.core.history import History
    from logitport.errors import LogitportError
    from logitport_server.dialects import Dialect, RequestContext


@dataclass(slots=True)
class _Request:
    """A request as one processor knows it.

    Attributes:
        history: the server's, mirrored.
        state: the dialect's.
        advance: what to call with each id that joins the history; None if nothing.
        behind: whether the state is behind the history, for the processor failed as it was told of an id.
        kept: whether the state is not a function of the history.
    """

    history: History
    state: Any
    advance: Callable[[int], object] | None
    behind: bool = False
    kept: bool = False


class Hosted:
    """Follows the histories of its requests as the server tells of them, and calls the processor.

    Attributes:
        dialect: the processor.
        memory: where it finds logits, as the server numbered it, of the host or of a GPU; given up with the processor.
        device: where it is handed them.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.memory: dict[int, mmap.mmap | torch.Tensor] = {}
        self.device = "cpu"
        self._requests: dict[int, _Request] = {}
        self._numbers: Sequence[int] = ()
        self._called: list[_Request | None] = []

    def start(self, number: int, context: RequestContext, params: dict[str, Any]) -> None:
        """Build the state of a request."""
        state = self.dialect.start(context, params)
        self._requests[number] = _Request(context.history, state, self.dialect.advancer(state))

    def forget(self, number: int) -> None:
        """The request is gone."""
        self._requests.pop(number, None)

    def call_for(self, numbers: Sequence[int]) -> None:
        """The states that this call and the next ones are for, 0 for a row to be left out; one may stand twice."""
        self._numbers = numbers
        self._called = [self._requests[number] if number else None for number in numbers]

    def follow(self, counts: Sequence[int] | None, told: Sequence[int]) -> dict[int, LogitportError]:
        """Bring the states in line with what the server told since their last call.

        Args:
            counts: how much was told of each; None if one thing of each.
            told: of all; an id that joined the history, or -1 - length where it was cut back to a length.

        Returns:
            By place, what the processor raised: it is not to be called for these.
        """
        failed: dict[int, LogitportError] = {}
        at = 0
        called = self._called
        for place, (request, count) in enumerate(zip(called, counts or repeat(1, len(called)), strict=True)):
            if request is None:
                continue
            try:
                if request.behind:
                    self._catch_up(request, told[at : at + count])
                elif count == 1 and told[at] >= 0:  # the usual step
                    request.history.append(told[at])
                    if request.advance is not None:
                        request.advance(told[at])
                elif count:
                    self._tell(request, told[at : at + count])
            except BaseException as error:  # noqa: BLE001 - somebody else's code may raise anything
                request.behind = True
                failed[place] = failures.of_sandboxed(error, self.dialect.name)
            at += count
        return failed

    def mark_drafts(self, draft_tokens: Sequence[int]) -> None:
        """Take note of how many ids at the end of each history are draft tokens; none of any where nothing is said."""
        for request, drafts in zip(self._called, draft_tokens, strict=False):
            if request is not None:
                request.history.draft_tokens = drafts

    def present(self, failed: Container[int]) -> Sequence[int]:
        """The places of the call but for rows to be left out, and these that failed."""
        called = self._called
        if not failed and None not in called:
            return range(len(called))
        return [place for place, request in enumerate(called) if request is not None and place not in failed]

    def states(self, places: Sequence[int]) -> list[Any]:
        """What the dialect keeps of the requests at these places."""
        called: Sequence[Any] = self._called
        return [called[place].state for place in places]

    def newly_kept(self, places: Sequence[int]) -> list[int]:
        """The numbers, at these places, whose state has ceased to be a function of the history."""
        kept = []
        for place in places:
            request = self._called[place]
            if request is not None and not request.kept:
                try:
                    self.dialect.check_rebuildable(request.state)
                except BaseException:  # noqa: BLE001 - it compares what a processor left there
                    request.kept = True
                    kept.append(self._numbers[place])
        return kept

    def _tell(self, request: _Request, told: Sequence[int]) -> None:
        for at, said in enumerate(told):
            try:
                if said < 0:
                    request.history.rewind(-1 - said)
                    self.dialect.rewind(request.state)
                else:
                    request.history.append(said)
                    if request.advance is not None:
                        request.advance(said)
            except BaseException:
                _write(request.history, told[at + 1 :])
                raise

    def _catch_up(self, request: _Request, told: Sequence[int]) -> None:
        _write(request.history, told)
        self.dialect.rebuild(request.state)
        request.behind = False


def _write(history: History, told: Sequence[int]) -> None:
    for said in told:
        if said < 0:
            history.rewind(-1 - said)
        else:
            history.append(said)
