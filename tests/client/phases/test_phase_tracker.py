"""The phases of random histories, as the rules say, in both implementations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport.core import compiled
from logitport.core.history import History, PythonHistory
from logitport.phases.phase_presets import PHASE_PRESETS
from logitport.phases.phase_tags import ANSWER, HEADER, THINKING, TOOL_CALL, thinking_tags
from logitport.phases.phase_tracker import PhaseTracker, PythonPhaseTracker, tracker_of
from tests.client.phases.phase_rules import block_of

if TYPE_CHECKING:
    from collections.abc import Sequence

ID = st.integers(0, 6)
IDS = st.lists(ID, max_size=30)
TAG = st.tuples(st.lists(ID, min_size=1, max_size=3), st.integers(0, 3), st.integers(-1, 3), st.booleans())
CHANGES = st.lists(
    st.one_of(st.tuples(st.just("append"), IDS), st.tuples(st.just("cut"), st.integers(0, 40))), max_size=6
)

START, END = 5, 6


def both(prompt: Sequence[int], output: Sequence[int], *fields: Any) -> list[tuple[Any, Any]]:
    """A history and its tracker: in Python, and compiled where the core runs."""
    python = PythonHistory(prompt, output)
    found: list[tuple[Any, Any]] = [(python, PythonPhaseTracker(python, *fields))]
    if compiled.core is not None:
        history = History(prompt, output)
        found.append((history, PhaseTracker(history, *fields)))
    return found


@given(
    st.lists(TAG, min_size=1, max_size=5), st.integers(0, 3), st.integers(-1, 6), st.integers(-1, 6), IDS, IDS, CHANGES
)
def test_random_histories(
    tags: Any, starts_in: int, opening_id: int, newline: int, prompt: Any, output: Any, changes: Any
) -> None:
    fields = tags, starts_in, opening_id, newline
    followed = both(prompt, output, *fields)
    written = list(output)
    for kind, argument in [("append", []), *changes]:
        written = [*written, *argument] if kind == "append" else written[: max(0, len(written) - argument)]
        expected = block_of(*fields, prompt, written)
        for history, tracker in followed:
            if kind == "append":
                history.extend(argument)
                tracker.read(history)
            else:
                history.rewind(len(prompt) + len(written))
                tracker.rewind(history)
            assert (tracker.phase, tracker.begin, tracker.exempt_id(history)) == expected


def phase_of(tags: Any, prompt: Sequence[int], output: Sequence[int] = ()) -> tuple[int, int]:
    tracker = tracker_of(tags, History(prompt, output))
    return tracker.phase, tracker.begin


def test_the_prompt_opens_or_closes_the_block() -> None:
    tags = thinking_tags([START], [END])
    assert phase_of(tags, [1, START, 2]) == (THINKING, 2)
    assert phase_of(tags, [1, START, END, 2]) == (ANSWER, 3)
    for prompt in ([1, START, END, 2], [1, END]):  # closed, or with an end tag alone: the model cannot open it
        history = History(prompt)
        assert tracker_of(tags, history).exempt_id(history) == -1


def test_tags_of_an_earlier_turn_do_not_decide() -> None:
    prompt = [START, 1, END, 2, 2, 2, 2, 2]
    tracker = tracker_of(thinking_tags([START], [END]), History(prompt))
    assert (tracker.phase, tracker.begin, tracker.exempt_id(History(prompt))) == (ANSWER, len(prompt), START)
    assert phase_of(thinking_tags([START], [END], starts_in="thinking"), prompt) == (THINKING, len(prompt))


@pytest.mark.parametrize(
    ("output", "phase"),
    [
        ([], HEADER),
        ([200005, 35644], HEADER),
        ([200005, 35644, 200008, 9], THINKING),
        ([200005, 35644, 200008, 9, 200007, 200006, 173781], HEADER),
        ([200005, 35644, 200008, 9, 200007, 200006, 173781, 200005, 17196, 200008], ANSWER),
        ([200005, 12606, 815, 316], TOOL_CALL),
        ([200005, 12606, 815, 316, 200008, 9, 200012], HEADER),
    ],
)
def test_harmony(output: list[int], phase: int) -> None:
    assert phase_of(PHASE_PRESETS["harmony"], [200006, 173781], output)[0] == phase
