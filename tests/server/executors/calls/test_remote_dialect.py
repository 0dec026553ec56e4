"""Remote dialects: the state list that the worker holds, and the limit on edits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from logitport import EditProcessor, History, ProcessorFailed
from logitport_session.dialects import RequestContext
from logitport_session.dialects.base import States, by_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport import EditRequest, RowEdits
    from logitport_runner.process_executor import ProcessExecutor
    from logitport_session.processor_sources.source import Source

VOCAB = 64


class DeniesItsLength(EditProcessor):
    """Denies the id that equals the length of the history. `start` raises for a history of two ids."""

    def start(self, request: EditRequest) -> None:
        if len(request.history) == 2:
            raise ValueError("two ids")

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([len(request.history)])


def denied(dialect: Any, states: States) -> list[list[int]]:
    """Return the ids that a call denies, by row."""
    return [[int(token) for _, ids, _ in row for token in ids] for row in by_row(dialect.edit(states), len(states))]


def test_the_state_list_is_resent_after_a_failed_rebuild_of_another_list(
    workers: ProcessExecutor, ship: Callable[..., Source]
) -> None:
    """Two state lists of one processor alternate, like chains with and without another processor that reads logits."""
    dialect = workers.load(ship(DeniesItsLength, tenant="alternating"))
    contexts = [RequestContext(f"r{length}", History([1] * length), {}, VOCAB) for length in (1, 7, 1)]
    states = [dialect.start(context, {}) for context in contexts]
    callbacks = [dialect.token_callback(state) for state in states]

    def append(place: int, token_id: int) -> None:
        contexts[place].history.append(token_id)
        callback = callbacks[place]
        assert callback is not None
        callback(token_id)

    first, others = States([states[0]]), States(states[1:])
    assert denied(dialect, others) == [[7], [1]]
    append(2, 3)
    dialect.worker.process(60.0).kill()  # type: ignore[attr-defined]
    while dialect.worker.process(60.0) is dialect._calls.process:  # type: ignore[attr-defined]
        time.sleep(0.01)
    assert denied(dialect, first) == [[1]]
    assert denied(dialect, others) == [[7], []]  # the second state cannot be built: its history has two ids
    assert list(dialect.failed) == [1]
    append(0, 5)
    assert denied(dialect, first) == [[2]]


class MakesManyEdits(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        for token_id in request.params["deny"]:
            edits.deny([token_id])
            if "bias" in request.params:
                edits.bias([token_id], request.params["bias"])
        for _ in range(request.params["allow"]):
            edits.allow([1, 2])


def test_edits_per_row_are_limited(workers: ProcessExecutor, ship: Callable[..., Source]) -> None:
    """Decoding an edit takes the server much longer than the worker. Edits that deny single ids are merged instead."""
    dialect = workers.load(ship(MakesManyEdits, tenant="much"))

    def denied_by(**params: Any) -> list[list[int]]:
        state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), params)
        return denied(dialect, States([state]))

    assert denied_by(deny=[*range(40)] * 5, allow=0) == [[*range(40)] * 5]
    assert denied_by(deny=[*range(35)], allow=0, bias=2.0) == [[*range(35)] * 2]
    assert denied_by(deny=[5], allow=60) == [[5, *[1, 2] * 60]]
    first = dialect._calls.process  # type: ignore[attr-defined]
    with pytest.raises(ProcessorFailed, match=r"MakesManyEdits .* 1000 edits in a call, .*the limit is 64"):
        denied_by(deny=[], allow=1000)
    assert denied_by(deny=[], allow=0) == [[]]
    assert dialect._calls.process is first  # type: ignore[attr-defined]
