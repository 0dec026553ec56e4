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


def test_without_a_block_there_are_no_edits(follow):
    request = follow(ThinkingBudget(), {"thinking_budget": 2, **ONE_ID}, prompt=[1, 2, 3], output=[4, 5, 6])
    assert request.edits() == {}


def test_a_used_up_budget_forces_newline_then_end(follow):
    request = follow(ThinkingBudget(), {"thinking_budget": 2, **ONE_ID}, prompt=[1, START])
    assert request.append(5).edits() == {}
    assert request.append(6).edits() == {"FORCE": [NEWLINE]}
    assert request.append(NEWLINE).edits() == {"FORCE": [END]}
    assert request.append(END).edits() == {}
    assert request.append(7, 8, 9).edits() == {}


def test_a_newline_at_the_end_of_the_prompt_does_not_count(follow):
    params = {"thinking_budget": 1, **ONE_ID}
    assert follow(ThinkingBudget(), params, prompt=[START, NEWLINE]).edits() == {"FORCE": [NEWLINE]}
    assert follow(ThinkingBudget(), params, prompt=[START], output=[NEWLINE]).edits() == {"FORCE": [END]}


def test_a_budget_of_0_closes_immediately(follow):
    request = follow(ThinkingBudget(), {"thinking_budget": 0, **ONE_ID}, prompt=[7])
    assert request.edits() == {}
    assert request.append(START).edits() == {"FORCE": [NEWLINE]}


def test_each_block_has_the_whole_budget_and_a_new_start_tag_restarts_the_count(follow):
    params = {"thinking_budget": 2, **ONE_ID}
    closed = [START, 1, 1, 1, END]
    assert follow(ThinkingBudget(), params, prompt=[*closed, *closed, 2, START, 3]).edits() == {}
    assert follow(ThinkingBudget(), params, prompt=closed, output=[START, 1, 1]).edits() == {"FORCE": [NEWLINE]}
    assert follow(ThinkingBudget(), params, prompt=[START, 1, START, 1]).edits() == {}


def test_tags_of_several_ids(follow):
    params = {"thinking_budget": 2, "thinking_start_ids": [10, 11], "thinking_end_ids": [20, 21, 20, 22]}
    request = follow(ThinkingBudget(), {**params, "newline_id": NEWLINE}, prompt=[10], output=[11, 5])
    assert request.edits() == {}
    for token_id in (NEWLINE, 20, 21, 20, 22):
        request.append(6) if token_id == NEWLINE else None
        assert request.edits() == {"FORCE": [token_id]}
        request.append(token_id)
    assert request.edits() == {}


def test_an_end_tag_that_was_begun_is_continued_without_newline(follow):
    params = {"thinking_budget": 3, "thinking_start_ids": [10], "thinking_end_ids": [20, 20, 21], "newline_id": NEWLINE}
    assert follow(ThinkingBudget(), params, output=[10, 20, 20, 20]).edits() == {"FORCE": [21]}
    assert follow(ThinkingBudget(), params, output=[10, 21, 20, 20]).edits() == {"FORCE": [21]}
    assert follow(ThinkingBudget(), params, output=[10, 20, 21, 20]).edits() == {"FORCE": [20]}
    assert follow(ThinkingBudget(), params, prompt=[10, 1, 2, 20]).edits() == {"FORCE": [20]}


def test_ids_of_the_start_tag_do_not_begin_the_end_tag(follow):
    params = {"thinking_budget": 0, "thinking_start_ids": [10, 20], "thinking_end_ids": [20, 21]}
    assert follow(ThinkingBudget(), params, output=[10, 20]).edits() == {"FORCE": [20]}


def test_of_two_tags_that_end_at_one_id_the_longer_counts(follow):
    params = {"thinking_budget": 0, "thinking_start_ids": [9, 20], "thinking_end_ids": [20]}
    for request in (follow(ThinkingBudget(), params, output=[9, 20]), follow(ThinkingBudget(), params).append(9, 20)):
        assert request.edits() == {"FORCE": [20]}
        assert request.append(20).edits() == {}


def test_without_a_newline_id_the_end_tag_comes_immediately(follow):
    params = {"thinking_budget": 1, "thinking_start_ids": [START], "thinking_end_ids": [END]}
    assert follow(ThinkingBudget(), params, output=[START, 1]).edits() == {"FORCE": [END]}


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
