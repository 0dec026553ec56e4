"""Events of recordings, drawn by hypothesis."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from logitport.edits import EditKind
from logitport.recording.events import (
    RecordedProcessor,
    RecordedRow,
    RecordingStopped,
    RequestBegan,
    RequestEnded,
    RequestStepped,
    SessionOpened,
    StepsDropped,
    TopLogits,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBER = st.integers(0, 2**31 - 1)
IDS = st.lists(NUMBER, max_size=6).map(lambda ids: np.array(ids, np.int32))
PARAMS = st.dictionaries(TEXT, st.one_of(st.booleans(), st.integers(-5, 5), TEXT), max_size=2)
_FLOATS = st.floats(width=32, allow_nan=False)


@st.composite
def _columns(draw: st.DrawFn) -> tuple[Any, Any]:
    ids = draw(IDS)
    values = draw(st.lists(_FLOATS, min_size=len(ids), max_size=len(ids)))
    return ids, np.array(values, np.float32)


TOPS = st.builds(lambda columns, total: TopLogits(*columns, total), _columns(), st.floats(allow_nan=False))
EDITS = st.one_of(
    st.tuples(st.sampled_from([EditKind.DENY, EditKind.ALLOW, EditKind.BITMASK, EditKind.FORCE]), IDS, st.none()),
    _columns().filter(lambda columns: len(columns[0])).map(lambda columns: (EditKind.BIAS, *columns)),
)
ROWS = st.builds(
    RecordedRow,
    st.integers(0, 4),
    st.one_of(st.none(), st.lists(EDITS, max_size=3).map(tuple)),
    st.one_of(st.none(), TOPS),
    st.one_of(st.none(), TOPS),
)
EVENTS = st.one_of(
    st.builds(SessionOpened, NUMBER, TEXT, TEXT, TEXT, TEXT, st.lists(NUMBER, max_size=2).map(tuple), TEXT),
    st.builds(
        RequestBegan,
        NUMBER,
        TEXT,
        IDS,
        IDS,
        st.lists(st.builds(RecordedProcessor, TEXT, TEXT, TEXT, TEXT, PARAMS, TEXT), max_size=2).map(tuple),
        PARAMS,
        st.sampled_from(["abort", "skip"]),
    ),
    st.builds(
        RequestStepped,
        NUMBER,
        NUMBER,
        NUMBER,
        IDS,
        IDS,
        st.lists(ROWS, max_size=3).map(tuple),
        greedy=st.booleans(),
        finished=st.booleans(),
        error=TEXT,
    ),
    st.builds(RequestEnded, NUMBER),
    st.builds(StepsDropped, NUMBER),
    st.builds(RecordingStopped, TEXT, TEXT, NUMBER),
)


def plain(value: Any) -> Any:
    """The value with lists in place of arrays, for comparisons."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tolist()
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if hasattr(value, "__dataclass_fields__"):
        return type(value).__name__, {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value
