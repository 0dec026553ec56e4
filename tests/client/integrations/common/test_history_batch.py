from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from logitport.integrations.common.history_batch import HistoryBatch
from logitport.session.frames import Handle

if TYPE_CHECKING:
    from logitport import Request


class RecordingSession:
    """The part of a session that a batch uses; keeps histories as one does."""

    def __init__(self) -> None:
        self.handles: list[Handle] = []
        self.ids_taken_back = 0

    def add(self, request: Request) -> Handle:
        self.handles.append(Handle(len(self.handles), 0, request))
        return self.handles[-1]

    def rewind(self, handle: Handle, length: int) -> None:
        self.ids_taken_back += len(handle.history) - length
        handle.rewind(length)


def started(prompts: np.ndarray) -> tuple[HistoryBatch, RecordingSession]:
    session = RecordingSession()
    batch = HistoryBatch(session, prompts)  # type: ignore[arg-type]
    chain = [("disallowed_tokens", {"token_ids": [1]})]
    batch.admit(np.ones(prompts.shape, bool), [chain] * len(prompts))
    return batch, session


def advance(batch: HistoryBatch, ids: np.ndarray) -> list[tuple[Handle, list[int]]]:
    assert batch.continues_with(ids)
    told = batch.new_ids(ids, range(len(ids)))
    for handle, new_ids in told.items():
        handle.extend(new_ids)
    return list(told.items())


@given(st.data())
def test_histories_follow_beams_wherever_they_go(data: st.DataObject) -> None:
    beams, prompts = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 2))
    rows = np.repeat(np.arange(10, 10 + prompts), beams)
    ids = np.stack([rows, rows], axis=1)
    batch, _ = started(ids)
    advance_nothing = batch.new_ids(ids, range(len(ids)))
    assert not any(advance_nothing.values())
    for _ in range(data.draw(st.integers(1, 6))):
        parents = [
            row // beams * beams + data.draw(st.integers(0, beams - 1), label=f"parent of {row}")
            for row in range(len(ids))
        ]
        sampled = data.draw(st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids)), label="sampled")
        ids = np.concatenate([ids[parents], np.array(sampled)[:, None]], axis=1)
        told = advance(batch, ids)
        assert len(told) == len(ids)
        assert [handle.history.token_ids.tolist() for handle, _ in told] == ids.tolist()


def test_rows_that_only_change_places_keep_their_requests() -> None:
    prompts = np.array([[7], [7], [7]])
    batch, session = started(prompts)
    advance(batch, np.array([[7, 1], [7, 2], [7, 3]]))
    told = advance(batch, np.array([[7, 3, 4], [7, 1, 5], [7, 2, 6]]))
    assert told == [(session.handles[2], [4]), (session.handles[0], [5]), (session.handles[1], [6])]
    assert not session.ids_taken_back


def test_a_beam_that_forks_takes_the_request_of_one_that_died() -> None:
    batch, session = started(np.array([[7], [7]]))
    advance(batch, np.array([[7, 1], [7, 2]]))
    told = advance(batch, np.array([[7, 2, 3], [7, 2, 4]]))
    assert told == [(session.handles[1], [3]), (session.handles[0], [2, 4])]
    assert session.ids_taken_back == 1


def test_what_cannot_be_the_next_step() -> None:
    batch, _ = started(np.array([[7, 8], [7, 9]]))
    advance(batch, np.array([[7, 8, 1], [7, 9, 2]]))
    assert batch.continues_with(np.array([[7, 8, 1, 3], [7, 9, 2, 3]]))
    assert batch.continues_with(np.array([[7, 8, 4], [7, 9, 4]])), "an id was taken back"
    assert not batch.continues_with(np.array([[7, 8], [7, 9]])), "the prompts themselves"
    assert not batch.continues_with(np.array([[7, 8, 1, 3, 3], [7, 9, 2, 3, 3]])), "two ids more"
    assert not batch.continues_with(np.array([[7, 8, 1, 3]])), "fewer rows"
    assert not batch.continues_with(np.array([[7, 8, 1, 3], [6, 9, 2, 3]])), "another prompt"
