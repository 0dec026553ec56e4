"""The compiled core reads steps and writes their frames as the Python version does."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitport import LogitportError, Request
from logitport.core import compiled
from logitport.session import Handle
from logitport.session.requests.request_table import RequestTable
from logitport.session.steps import step_content
from logitport.session.steps.step_content import StepReader
from logitport.session.transports.base import LENGTH
from tests.tiers import examples

if TYPE_CHECKING:
    from tests.core.implementations import Implementation

VOCAB = 50
ID = st.integers(0, VOCAB - 1)
IDS = st.one_of(
    st.lists(ID, max_size=4),
    st.lists(ID, max_size=4).map(tuple),
    st.lists(ID, max_size=4).map(lambda ids: array("q", ids)),
    st.lists(ID, max_size=4).map(lambda ids: np.array(ids, np.int32)),
)
# Values that the core leaves to the Python version: some of them are valid.
UNUSUAL = st.sampled_from(
    [
        [VOCAB],
        [-1],
        [2**31],
        [2**70],
        [True],
        [np.int64(3)],
        [1.5],
        ["1"],
        [None],
        3,
        None,
        "12",
        b"\1\2",
        range(3),
        np.array([1, VOCAB]),
        np.array([[1, 2]]),
        np.array([1, 2, 3, 4])[::2],
        np.array([1.0]),
        np.array(3),
        array("q", [-1]),
        array("b", [1]),
        {1: 2},
    ]
)


class Requests:
    """The requests of a session without a server."""

    def __init__(self, histories: list[list[int]]) -> None:
        self.table = RequestTable()
        self.failed: dict[Handle, str] = {}
        for slot, ids in enumerate(histories):
            handle = Handle(slot, 7 * slot, Request(ids[: len(ids) // 2], ids[len(ids) // 2 :], []))
            self.table.hold(handle)
        self.handles = list(self.table.handles.values())

    def fail(self, errors: dict[Handle, LogitportError]) -> None:
        self.failed = {handle: repr(error) for handle, error in errors.items()}


class Step:
    """The arguments of a step, by places of handles."""

    def __init__(self, new_ids: Any, drafts: Any, rows: Any, parents: Any) -> None:
        self.new_ids, self.drafts, self.rows, self.parents = new_ids, drafts, rows, parents

    def __repr__(self) -> str:
        return f"Step({self.new_ids}, {self.drafts}, {self.rows}, {self.parents})"

    def read_by(self, reader: StepReader, requests: Requests) -> tuple[Any, ...]:
        """All that can be observed of the step."""
        handles = requests.handles
        new_ids = {handles[place]: ids for place, ids in self.new_ids.items()}
        drafts = None if self.drafts is None else {handles[place]: ids for place, ids in self.drafts.items()}
        parents = None if self.parents is None else {handles[place]: each for place, each in self.parents.items()}
        rows = None if self.rows is None else [self._row(handles, row) for row in self.rows]
        try:
            content = reader.read(new_ids, drafts, rows, parents)
        except LogitportError as error:
            return type(error), str(error)
        frame = content.serialize(300)
        assert LENGTH.unpack_from(frame) == (len(frame) - LENGTH.size,)
        content.extend()
        return (
            frame,
            [handle.slot for handle in content.handles],
            {handle.slot: (tuple(ids), tuple(ids.parents)) for handle, ids in content.drafts.items()},
            [(handle.slot, offset) for handle, offset in content.rows],
            {handle.slot: error for handle, error in requests.failed.items()},
            [handle.history.token_ids.tolist() for handle in handles],
        )

    @staticmethod
    def _row(handles: list[Handle], row: Any) -> Any:
        return handles[row] if isinstance(row, int) else (handles[row[0]], row[1]) if isinstance(row, tuple) else row


@st.composite
def steps(draw: st.DrawFn, requests: int, ids: st.SearchStrategy[Any], plain: bool) -> Step:
    places = st.integers(0, requests - 1)
    members = draw(st.lists(places, unique=True))
    new_ids = {place: draw(ids) for place in members}
    drafting = draw(st.lists(places, unique=True))
    if plain:
        drafting = [place for place in drafting if place in members]
    drafts = {place: draw(ids) for place in drafting} if draw(st.booleans()) else None
    parents = draw(draft_parents(drafts, plain)) if draw(st.booleans()) else None
    rows = None
    if draw(st.booleans()):
        offsets = st.integers(0, 0 if plain else 2)
        row = st.tuples(st.sampled_from(members) if members and plain else places, offsets)
        rows = draw(st.lists(row if plain else st.one_of(row, places, st.just("odd")), min_size=int(bool(members))))
        rows = [] if plain and not members else rows
    return Step(new_ids, drafts, rows, parents)


@st.composite
def draft_parents(draw: st.DrawFn, drafts: dict[int, Any] | None, plain: bool) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for place, ids in (drafts or {}).items():
        if draw(st.booleans()):
            listed = [draw(st.integers(-1, at - 1)) for at in range(len(ids) if hasattr(ids, "__len__") else 2)]
            kind = draw(st.sampled_from([list, tuple, lambda each: np.array(each, np.int32)]))
            found[place] = kind(listed) if plain or draw(st.booleans()) else draw(UNUSUAL)
    return found


def _readers(patch: pytest.MonkeyPatch, histories: list[list[int]]) -> list[tuple[StepReader, Requests]]:
    requests = [Requests(histories) for _ in range(2)]
    readers = [(StepReader(each, VOCAB), each) for each in requests]  # type: ignore[arg-type]
    python = readers[0][0]
    patch.setattr(python, "_renewed_writer", lambda _: None)
    return readers


@settings(max_examples=examples(200))
@given(data=st.data())
def test_plain_steps_have_the_frames_of_the_python_version(
    both: tuple[Implementation, Implementation], data: st.DataObject
) -> None:
    histories = data.draw(st.lists(st.lists(ID, max_size=8), min_size=1, max_size=4))
    with pytest.MonkeyPatch.context() as patch:
        (python, python_requests), (fast, requests) = _readers(patch, histories)
        patch.setattr(fast, "_read_python", lambda *_: pytest.fail("the core has refused plain arguments"))
        for _ in range(data.draw(st.integers(1, 4))):
            step = data.draw(steps(len(histories), IDS, plain=True))
            expected = step.read_by(python, python_requests)
            assert step.read_by(fast, requests) == expected
            for place in data.draw(st.lists(st.integers(0, len(histories) - 1), max_size=2)):
                for each in (python_requests, requests):
                    each.handles[place].rewind(each.handles[place].history.prompt_length)


@settings(max_examples=examples(300))
@given(data=st.data())
def test_unusual_steps_have_the_same_outcome(both: tuple[Implementation, Implementation], data: st.DataObject) -> None:
    histories = data.draw(st.lists(st.lists(ID, max_size=8), min_size=1, max_size=3))
    with pytest.MonkeyPatch.context() as patch:
        (python, python_requests), (fast, requests) = _readers(patch, histories)
        for _ in range(data.draw(st.integers(1, 3))):
            step = data.draw(steps(len(histories), st.one_of(IDS, UNUSUAL), plain=False))
            expected = step.read_by(python, python_requests)
            assert step.read_by(fast, requests) == expected


@pytest.mark.usefixtures("both")
def test_the_writer_is_kept_until_the_requests_change(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Requests([[1, 2], [3, 4], [5, 6]])
    reader = StepReader(requests, VOCAB)  # type: ignore[arg-type]
    made: list[list[int]] = []

    class Core:
        def step_frame_writer(self, new_token_ids: Any, *arguments: Any) -> Any:
            made.append([handle.slot for handle in new_token_ids])
            return compiled.core.step_frame_writer(new_token_ids, *arguments)

    monkeypatch.setattr(step_content, "core", Core())
    first, second, third = requests.handles
    for _ in range(3):
        reader.read({first: [1], second: []}, None, None)
    assert made == [[0, 1]]
    reader.read({second: [1], first: []}, None, None)
    assert made == [[0, 1], [1, 0]]
    requests.table.remove([third])
    reader.read({second: [1], first: []}, None, None)
    assert made == [[0, 1], [1, 0], [1, 0]]


def test_a_removed_request_is_refused(both: tuple[Implementation, Implementation]) -> None:
    requests = Requests([[1, 2], [3, 4]])
    reader = StepReader(requests, VOCAB)  # type: ignore[arg-type]
    step = {handle: [1] for handle in requests.handles}
    reader.read(step, None, None)
    requests.table.remove(requests.handles[:1])
    with pytest.raises(LogitportError, match="is not in this session: it was removed"):
        reader.read(step, None, None)


@pytest.mark.usefixtures("both")
def test_a_writer_is_made_of_requests_of_the_session_only() -> None:
    requests, others = Requests([[1, 2]]), Requests([[1, 2]])
    held = requests.table.handles

    class Fake:
        slot: Any = 0
        generation = 0
        history = None

    unhashable = Fake()
    unhashable.slot = []
    for key in (others.handles[0], Fake(), unhashable, 3, "a"):
        assert compiled.core.step_frame_writer({key: [1]}, held, VOCAB) is None
    assert compiled.core.step_frame_writer([requests.handles[0]], held, VOCAB) is None
