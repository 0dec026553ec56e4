from __future__ import annotations

from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitport.errors import InvalidArgument
from logitport_builtins import ThinkingBudget
from logitport_builtins.thinking_budget import PRESETS
from tests.tiers import examples

START, END, NEWLINE = 100, 101, 102
ONE_ID = {"thinking_start_ids": [START], "thinking_end_ids": [END], "newline_id": NEWLINE}


def forced(prompt, output, params):
    """Reference from the whole history: the id that must come next, or None."""
    ids, start, end = [*prompt, *output], params["thinking_start_ids"], params["thinking_end_ids"]
    opened_at = None
    for length in range(1, len(ids) + 1):
        opens, closes = ids[:length][-len(start) :] == start, ids[:length][-len(end) :] == end
        if opens and (not closes or len(start) >= len(end)):
            opened_at = length
        elif closes:
            opened_at = None
    if opened_at is None or len(ids) - opened_at < params["thinking_budget"]:
        return None
    thought = ids[opened_at:]
    begun = max(n for n in range(min(len(end), len(thought) + 1)) if thought[len(thought) - n :] == end[:n])
    if not begun and params["newline_id"] is not None and output[-1:] != [params["newline_id"]]:
        return params["newline_id"]
    return end[begun]


def is_usable(params):
    try:
        ThinkingBudget.validate_params(params)
    except InvalidArgument:
        return False
    return True


def test_a_used_up_budget_forces_newline_then_end(follow):
    request = follow(ThinkingBudget(), {"thinking_budget": 2, **ONE_ID}, prompt=[1, START])
    assert request.append(5).edits() == {}
    assert request.append(6).edits() == {"FORCE": [NEWLINE]}
    assert request.append(NEWLINE).edits() == {"FORCE": [END]}
    assert request.append(END).edits() == {}
    assert request.append(7, 8, 9).edits() == {}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_names_the_ids_of_a_model(follow, preset):
    tags = PRESETS[preset]
    request = follow(ThinkingBudget(), {"thinking_budget": 0, "preset": preset}, prompt=tags.start, vocab_size=201_088)
    assert request.edits() == {"FORCE": [tags.newline]}
    assert request.append(tags.newline).edits() == {"FORCE": [*tags.end]}
    assert request.append(*tags.end).edits() == {}


def test_a_preset_of_another_model_is_rejected_at_the_start(follow):
    with pytest.raises(InvalidArgument, match=r"thinking_budget: .* token id 151668, .* for this model"):
        follow(ThinkingBudget(), {"thinking_budget": 5, "preset": "qwen3"}, vocab_size=32_000)


@pytest.mark.parametrize(
    "tags",
    [
        {"thinking_start_ids": [0, 0], "thinking_end_ids": [0]},
        {"thinking_start_ids": [1, 1], "thinking_end_ids": [1, 0]},
        {"thinking_start_ids": [2, 1, 2], "thinking_end_ids": [2, 3], "newline_id": 1},
    ],
)
def test_closing_ids_that_complete_a_start_tag_are_refused(follow, tags):
    with pytest.raises(InvalidArgument, match="with thinking_budget 0, no block would close"):
        ThinkingBudget.validate_params({"thinking_budget": 0, **tags})
    request = follow(ThinkingBudget(), {"thinking_budget": 1, **tags}, tags["thinking_start_ids"], [9])
    for _ in range(3):
        request.append(*request.edits().get("FORCE", []))
    assert request.edits() == {}


TAG = st.lists(st.integers(0, 3), min_size=1, max_size=3)
PARAMS = st.fixed_dictionaries(
    {
        "thinking_budget": st.integers(0, 6),
        "thinking_start_ids": TAG,
        "thinking_end_ids": TAG,
        "newline_id": st.none() | st.integers(0, 3),
    }
).filter(is_usable)
MOVES = st.lists(st.integers(0, 3) | st.tuples(st.floats(0, 1)), max_size=40)
IDS = st.lists(st.integers(0, 3), max_size=12)


@settings(max_examples=examples(300))
@given(PARAMS, IDS, IDS, MOVES)
def test_any_appends_and_rewinds_follow_the_rule(follow, params, prompt, output, moves):
    params = MappingProxyType(params)  # may be shared with other requests, so it is never written
    request = follow(ThinkingBudget(), params, prompt, output)
    for move in [None, *moves]:
        if isinstance(move, tuple):
            request.rewind(int(move[0] * len(request.output)))
        elif move is not None:
            request.append(move)
        expected = forced(request.prompt, request.output, params)
        assert request.edits() == ({} if expected is None else {"FORCE": [expected]})
        assert follow(ThinkingBudget(), params, request.prompt, request.output).edits() == request.edits()


@given(PARAMS, IDS, IDS)
def test_the_forced_ids_close_the_block(follow, params, prompt, output):
    request = follow(ThinkingBudget(), params, prompt, output)
    for _ in range(12):
        request.append(*request.edits().get("FORCE", []))
    assert request.edits() == {}
