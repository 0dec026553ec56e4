from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport import InvalidArgument
from logitport.integrations.common.history_batch import HistoryBatch, running_rows, tokens_by_id
from logitport.session import Handle

if TYPE_CHECKING:
    from logitport import Request


class RecordingSession:
    """The part of a session that a batch uses; keeps histories as a session does."""

    def __init__(self) -> None:
        self.handles: list[Handle] = []
        self.rewound_ids = 0

    def add(self, request: Request) -> Handle:
        self.handles.append(Handle(len(self.handles), 0, request))
        return self.handles[-1]

    def rewind(self, handle: Handle, length: int) -> None:
        self.rewound_ids += len(handle.history) - length
        handle.rewind(length)


def started(prompts: np.ndarray) -> tuple[HistoryBatch, RecordingSession]:
    session = RecordingSession()
    batch = HistoryBatch(session, prompts)  # type: ignore[arg-type]
    chain = [("disallowed_tokens", {"token_ids": [1]})]
    batch.admit(np.ones(prompts.shape, bool), [chain] * len(prompts), [""] * len(prompts))
    return batch, session


def advance(batch: HistoryBatch, ids: np.ndarray) -> list[tuple[Handle, list[int]]]:
    assert batch.continues_with(ids)
    new_ids_of = batch.new_ids(ids, range(len(ids)))
    for handle, new_ids in new_ids_of.items():
        handle.history.extend(new_ids)
    return list(new_ids_of.items())


@given(st.data())
def test_histories_follow_beams(data: st.DataObject) -> None:
    beams, prompts = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 2))
    rows = np.repeat(np.arange(10, 10 + prompts), beams)
    ids = np.stack([rows, rows], axis=1)
    batch, _ = started(ids)
    initial = batch.new_ids(ids, range(len(ids)))
    assert not any(initial.values())
    for _ in range(data.draw(st.integers(1, 6))):
        parents = [
            row // beams * beams + data.draw(st.integers(0, beams - 1), label=f"parent of {row}")
            for row in range(len(ids))
        ]
        sampled = data.draw(st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids)), label="sampled")
        ids = np.concatenate([ids[parents], np.array(sampled)[:, None]], axis=1)
        new_ids_of = advance(batch, ids)
        assert len(new_ids_of) == len(ids)
        assert [handle.history.token_ids.tolist() for handle, _ in new_ids_of] == ids.tolist()


def test_rows_that_only_change_places_keep_their_requests() -> None:
    prompts = np.array([[7], [7], [7]])
    batch, session = started(prompts)
    advance(batch, np.array([[7, 1], [7, 2], [7, 3]]))
    new_ids_of = advance(batch, np.array([[7, 3, 4], [7, 1, 5], [7, 2, 6]]))
    assert new_ids_of == [(session.handles[2], [4]), (session.handles[0], [5]), (session.handles[1], [6])]
    assert not session.rewound_ids


def test_a_forked_beam_reuses_the_request_of_a_dropped_one() -> None:
    batch, session = started(np.array([[7], [7]]))
    advance(batch, np.array([[7, 1], [7, 2]]))
    new_ids_of = advance(batch, np.array([[7, 2, 3], [7, 2, 4]]))
    assert new_ids_of == [(session.handles[1], [3]), (session.handles[0], [2, 4])]
    assert session.rewound_ids == 1


def test_batches_that_can_be_the_next_step() -> None:
    batch, _ = started(np.array([[7, 8], [7, 9]]))
    advance(batch, np.array([[7, 8, 1], [7, 9, 2]]))
    assert batch.continues_with(np.array([[7, 8, 1, 3], [7, 9, 2, 3]]))
    assert batch.continues_with(np.array([[7, 8, 4], [7, 9, 4]])), "an id was taken back"
    assert not batch.continues_with(np.array([[7, 8], [7, 9]])), "the prompts themselves"
    assert not batch.continues_with(np.array([[7, 8, 1, 3, 3], [7, 9, 2, 3, 3]])), "two ids more"
    assert not batch.continues_with(np.array([[7, 8, 1, 3]])), "fewer rows"
    assert not batch.continues_with(np.array([[7, 8, 1, 3], [6, 9, 2, 3]])), "another prompt"


def test_only_leading_padding_is_found_by_id() -> None:
    prompts = np.array([[0, 0, 5, 0], [6, 0, 5, 0], [0, 0, 0, 0]])
    assert tokens_by_id(prompts, 0).tolist() == [[False, False, True, True], [True] * 4, [False] * 4]
    assert tokens_by_id(prompts, None).all()


@pytest.mark.parametrize(
    ("outputs", "eos_token_ids", "pad_token_id", "running"),
    [
        ([[5, 6], [5, 1], [1, 0]], [1], 0, [0]),
        ([[5, 6], [5, 1], [2, 0]], [1, 2], 0, [0]),
        ([[5, 6], [1, 1], [5, 1]], [1], 1, [0]),
        ([[5, 2], [2, 1], [1, 1]], [1, 2], None, []),
        ([[5, 6], [5, 1], [1, 9]], [], 0, [0, 1, 2]),
        ([[], []], [1], 0, [0, 1]),
        ([[0, 0], [0, 5]], [1], 0, [0, 1]),
    ],
)
def test_a_row_ends_with_an_end_of_sequence_id(
    outputs: list[list[int]], eos_token_ids: list[int], pad_token_id: int | None, running: list[int]
) -> None:
    assert running_rows(np.array(outputs, int), eos_token_ids, pad_token_id) == running


def test_a_row_that_continues_after_its_end_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="row 1 continues with 7 "):
        running_rows(np.array([[1, 0, 0], [1, 0, 7]]), [1], 0)
