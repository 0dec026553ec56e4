"""vLLM's batch dialect: batch updates, live lists, and random sequences of steps."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.server.dialects.vllm.v1_requests import VOCAB, Counts, DialectRequest, RecordsUpdates, shipped_dialect, step

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_session.dialects import Dialect


def test_one_instance_gets_the_batch_updates() -> None:
    dialect = shipped_dialect()
    first, second = DialectRequest(dialect, [1, 2], a=1), DialectRequest(dialect, [3])
    step(dialect, first, second)
    step(dialect, first, second)
    step(dialect, second)
    (instance,) = RecordsUpdates.made
    added, nothing, removed = instance.updates
    assert nothing is None
    assert added is not None
    assert (added.batch_size, added.removed, added.moved) == (2, [], [])
    (index, params, prompt, output), other = added.added
    assert (index, params.extra_args, prompt, output) == (0, {"a": 1}, [1, 2], [])
    assert (other[0], other[1].extra_args, other[2:]) == (1, None, ([3], []))
    assert removed is not None
    assert [(source, target, kind.name) for source, target, kind in removed.moved] == [(1, 0, "UNIDIRECTIONAL")]
    assert (removed.batch_size, removed.removed, removed.added) == (1, [], [])


def test_the_lists_are_live() -> None:
    dialect = shipped_dialect()
    request = DialectRequest(dialect, [1])
    step(dialect, request)
    output = RecordsUpdates.made[0].updates[0].added[0][3]  # type: ignore[union-attr]
    request.append(5)
    assert output == [5]
    step(dialect, request)
    assert RecordsUpdates.made[0].updates[1] is None


def test_a_request_that_skips_a_step_is_added_again() -> None:
    dialect = shipped_dialect(Counts)
    stays, comes_and_goes = DialectRequest(dialect, [1], by=1), DialectRequest(dialect, [2], by=1)
    step(dialect, stays, comes_and_goes)
    step(dialect, stays)
    comes_and_goes.append(4)
    assert step(dialect, stays, comes_and_goes)[1].tolist() == comes_and_goes.expected()
    assert len(Counts.made) == 1
    assert [len(update.added) for update in Counts.made[0].updates if update] == [2, 0, 1]


def test_a_rewound_request_is_added_again() -> None:
    dialect = shipped_dialect(Counts)
    request = DialectRequest(dialect, [1], by=1)
    for token_id in (3, 4, 5):
        request.append(token_id)
    step(dialect, request)
    request.rewind(1)
    assert step(dialect, request)[0].tolist() == request.expected()
    update = Counts.made[0].updates[1]
    assert update is not None
    assert (update.removed, [index for index, *_ in update.added]) == ([], [0])


def test_a_request_on_several_rows_of_a_call() -> None:
    dialect = shipped_dialect(Counts)
    one, other = DialectRequest(dialect, [1], by=1), DialectRequest(dialect, [2], by=2)
    one.append(3)
    other.append(3)
    result = step(dialect, one, one, other, one)
    assert result.tolist() == [request.expected() for request in (one, one, other, one)]
    assert len(Counts.made) == 1


def test_state_can_be_rebuilt() -> None:
    dialect = shipped_dialect(Counts)
    request = DialectRequest(dialect, [1], by=1)
    request.append(2)
    step(dialect, request)
    dialect.check_rebuildable(request.state)
    request.history.append(3)
    request.output.append(3)
    dialect.rebuild(request.state)
    assert step(dialect, request)[0].tolist() == request.expected()


CHANGES: list[Callable[[random.Random, Dialect, list[DialectRequest]], None]] = [
    lambda draw, dialect, requests: requests.append(
        DialectRequest(dialect, [draw.randrange(VOCAB)], by=draw.choice((None, 1, 2, 3, 13)))
    ),
    lambda draw, _, requests: requests.remove(draw.choice(requests)) if requests else None,
    lambda draw, _, requests: draw.shuffle(requests),
    lambda draw, _, requests: draw.choice(requests).rewind(0) if requests else None,
]


@pytest.mark.parametrize("seed", range(30))
def test_random_steps_equal_each_request_alone(seed: int) -> None:
    """Requests are added, removed, paused, cut back, reordered, and have several rows; some raise an error."""
    draw, dialect, requests = random.Random(seed), shipped_dialect(Counts), list[DialectRequest]()
    for _ in range(64):
        for _ in range(draw.randrange(3)):
            draw.choice(CHANGES)(draw, dialect, requests)
        for request in requests:
            request.append(draw.randrange(VOCAB))
        rows = [request for request in requests for _ in range(draw.choice((0, 1, 1, 1, 1, 2)))]
        if not rows:
            continue
        if any(request.by == 13 and len(request.output) == 3 for request in rows):
            with pytest.raises(RuntimeError, match="thirteen"):
                step(dialect, *rows)
        else:
            assert step(dialect, *rows).tolist() == [request.expected() for request in rows]
