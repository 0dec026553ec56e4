"""What a worker was told, and what the server takes it to know, where a call in between did not go as usual."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from logitport import EditProcessor, History, ProcessorFailed
from logitport_server.dialects import RequestContext
from logitport_server.dialects.base import States, by_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport import EditRequest, RowEdits
    from logitport_server.executors import ProcessExecutor
    from logitport_server.registry.source import Source

VOCAB = 64


class DeniesItsLength(EditProcessor):
    """Denies the id that is as large as the history is long; cannot start from two ids."""

    def start(self, request: EditRequest) -> None:
        if len(request.history) == 2:
            raise ValueError("two ids")

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([len(request.history)])


def denied(dialect: Any, states: States) -> list[list[int]]:
    """Of each row, the ids that a call denies."""
    return [[int(token) for _, ids, _ in row for token in ids] for row in by_row(dialect.edit(states), len(states))]


def test_who_is_called_again_is_named_again_where_others_could_not_be_built_in_between(
    workers: ProcessExecutor, ship: Callable[..., Source]
) -> None:
    """Two lists of one processor's states take turns, as chains of it alone and chains that also read logits do."""
    dialect = workers.host(ship(DeniesItsLength, tenant="in turn"))
    contexts = [RequestContext(f"r{length}", History([1] * length), {}, VOCAB) for length in (1, 7, 1)]
    states = [dialect.start(context, {}) for context in contexts]
    tell = [dialect.token_callback(state) for state in states]

    def happens(place: int, token_id: int) -> None:
        contexts[place].history.append(token_id)
        advance = tell[place]
        assert advance is not None
        advance(token_id)

    first, others = States([states[0]]), States(states[1:])
    assert denied(dialect, others) == [[7], [1]]
    happens(2, 3)
    dialect._worker.process().kill()  # type: ignore[attr-defined]
    while dialect._worker.process() is dialect._process:  # type: ignore[attr-defined]
        time.sleep(0.01)
    assert denied(dialect, first) == [[1]]
    assert denied(dialect, others) == [[7], []]  # the second could not be built: two ids
    assert list(dialect.failed) == [1]
    happens(0, 5)
    assert denied(dialect, first) == [[2]]


class SaysMuch(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        for token_id in request.params["deny"]:
            edits.deny([token_id])
        for _ in range(request.params["allow"]):
            edits.allow([1, 2])


def test_how_much_a_worker_may_say_of_a_row(workers: ProcessExecutor, ship: Callable[..., Source]) -> None:
    """Each edit costs this process many times what it costs a worker to say; ids that are denied one by one do not."""
    dialect = workers.host(ship(SaysMuch, tenant="much"))

    def said(**params: Any) -> list[list[int]]:
        state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), params)
        return denied(dialect, States([state]))

    assert said(deny=[*range(40)] * 5, allow=0) == [[*range(40)] * 5]
    assert said(deny=[5], allow=60) == [[5, *[1, 2] * 60]]
    first = dialect._process  # type: ignore[attr-defined]
    with pytest.raises(
        ProcessorFailed, match=r"^processor SaysMuch \(sha256:.*: 1000 edits in a call, the limit is 64 "
    ):
        said(deny=[], allow=1000)
    assert said(deny=[], allow=0) == [[]]
    assert dialect._process is first  # type: ignore[attr-defined]
