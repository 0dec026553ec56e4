from __future__ import annotations

from itertools import cycle, islice
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitport import Client, Request
from logitport.core.edits import RowEdits
from logitport.core.history import History
from logitport.errors import InvalidArgument
from logitport.processors import EditRequest
from logitport_builtins import LoopGuard
from tests.tiers import examples

REPORT = {"action": "report"}
EARLY = {"repeats": 2, "min_length": 0, "plain_repeats": 0}
TAGS = {"thinking_start_ids": [100], "thinking_end_ids": [101, 102], "newline_id": 103}


def naive(output, repeats=3, max_period=512, min_length=64, plain_repeats=96):
    """Reference from the whole output: the shortest period of a complete cycle and its begin, or None."""
    for period in range(1, min(max_period, len(output)) + 1):
        begin = len(output) - period
        while begin > 0 and output[begin - 1] == output[begin - 1 + period]:
            begin -= 1
        blocks = max(repeats, plain_repeats if len(set(output[-period:])) < 12 else 0)
        if len(output) - begin >= max(blocks * period, min_length):
            return period, begin
    return None


def found_after(output, params=REPORT):
    """The number of ids of an output when a cycle is found first, with the cycle; None without one."""
    request = EditRequest(params, History([7, 7, 7], []), 1 << 20)
    processor = LoopGuard()
    processor.start(request)
    for count, token_id in enumerate(output, 1):
        request.history.append(token_id)
        processor.advance(request, token_id)
        if request.state.cycle is not None:
            return count, request.state.cycle
    return None


PERIODS = [int(period) for period in np.linspace(1, 400, 50)]


@pytest.mark.parametrize("period", PERIODS)
def test_a_loop_is_found_within_three_periods_or_64_ids(period):
    random = Random(period)
    before, block = random.sample(range(50_000), 300), random.sample(range(50_000, 90_000), period)
    loop = [*before, *islice(cycle(block), 3 * 64 * period)]
    prompt, at_once = 3, max(3 * period, 64)
    repeats = 96 * period if period < 12 else 0
    assert found_after(loop) == (300 + max(at_once, repeats), (period, prompt + 300))
    assert found_after(loop, {**REPORT, "plain_repeats": 0}) == (300 + at_once, (period, prompt + 300))


def test_texts_of_equal_cells_and_rows_are_no_loops():
    row = [*[0, 1] * 26, 2]
    boxes = [3, *[4] * 60, 5]
    assert found_after(row * 60) is None
    assert found_after(boxes * 60) is None
    assert found_after([9] * 95) is None
    assert found_after(row * 96) == (len(row) * 96, (len(row), 3))


def test_a_block_that_repeats_twice_is_no_loop():
    block = Random(0).sample(range(1000), 200)
    assert found_after([*block, *block, *block[:-1], 5]) is None


def test_a_rejected_draft_leaves_a_cycle_as_it_was(follow):
    """Wherever it lies between the ids at which all periods are compared."""
    block = Random(0).sample(range(500), 15)
    request = follow(LoopGuard(), REPORT, output=block * 2)
    for count in range(30, 120):
        request.append(999, block[0])
        assert request.request.state.cycle is None
        request.rewind(count).append(block[count % 15], 999).rewind(count + 1)
        assert request.request.state.cycle == ((15, 0) if count + 1 >= 64 else None)


def test_the_prompt_does_not_count(follow):
    params = {"action": "deny_next", **EARLY}
    assert follow(LoopGuard(), params, prompt=[1, 2, 1, 2, 1, 2], output=[1]).edits() == {}
    assert follow(LoopGuard(), params, output=[1, 2, 1, 2, 1, 2]).edits() == {"DENY": [1]}


def test_the_next_id_is_denied_until_the_cycle_is_broken(follow):
    request = follow(LoopGuard(), {"action": "deny_next", **EARLY}, output=[9, 1, 2, 3, 1, 2])
    assert request.edits() == {}
    assert request.append(3).edits() == {"DENY": [1]}
    assert request.append(4).edits() == {}
    assert request.append(4).edits() == {"DENY": [4]}
    assert request.rewind(7).edits() == {"DENY": [1]}
    assert request.rewind(5).edits() == {}


def test_an_id_outside_the_vocabulary_is_not_denied(follow):
    assert follow(LoopGuard(), {"action": "deny_next", **EARLY}, output=[50, 50], vocab_size=50).edits() == {}


def test_only_the_end_is_allowed(follow):
    history = History([], [1, 2, 3])
    request = EditRequest({"action": "end", **EARLY}, history, 1000, eos_token_ids=(4, 2, 10**6))
    processor = LoopGuard()
    processor.start(request)
    for token_id, expected in ((3, [2, 4]), (5, [])):
        history.append(token_id)
        processor.advance(request, token_id)
        edits = RowEdits()
        processor.edit(request, edits)
        assert [ids.tolist() for _, ids, _ in edits] == ([expected] if expected else [])
    with pytest.raises(InvalidArgument, match="no id that ends a sequence is known"):
        follow(LoopGuard(), {"action": "end"})


def test_the_thinking_is_ended_and_the_answer_is_kept(follow):
    params = {"action": "end_thinking", **EARLY, **TAGS}
    request = follow(LoopGuard(), params, prompt=[1, 100], output=[1, 2, 3, 2])
    assert request.edits() == {}
    assert request.append(3).edits() == {"FORCE": [103]}
    assert request.append(103).edits() == {"FORCE": [101]}
    assert request.append(101).edits() == {"FORCE": [102]}
    assert request.append(102).edits() == {}
    assert request.append(5, 5, 5).edits() == {}  # the answer may cycle
    assert request.append(100).edits() == {}  # another block
    assert request.append(8, 8).edits() == {"FORCE": [103]}
    assert request.append(9).edits() == {"FORCE": [103]}  # as with a budget, until the block is closed
    assert request.rewind(7).edits() == {"FORCE": [102]}
    assert request.rewind(4).edits() == {}
    assert request.append(3).edits() == {"FORCE": [103]}


def test_a_preset_of_another_model_is_rejected_at_the_start(follow):
    with pytest.raises(InvalidArgument, match=r"loop_guard: .* token id 151668, .* for this model"):
        follow(LoopGuard(), {"action": "end_thinking", "preset": "qwen3"}, vocab_size=32_000)


def closes(prompt, output, rule):
    """Reference for `end_thinking` with tags of one id, 2 and 3: whether the end tag is forced."""
    ids, opened_at, due = [*prompt, *output], None, False
    for length in range(1, len(ids) + 1):
        if ids[length - 1] in (2, 3):
            opened_at, due = (length if ids[length - 1] == 2 else None), False
        written = ids[len(prompt) : length]
        due = due or (opened_at is not None and length > len(prompt) and naive(written, **rule) is not None)
    return due


RULES = st.fixed_dictionaries(
    {
        "repeats": st.integers(2, 4),
        "max_period": st.sampled_from([1, 4, 30, 512]),
        "min_length": st.sampled_from([0, 1, 9, 20]),
        "plain_repeats": st.sampled_from([0, 4]),
    }
)
# Append ids; repeat so many of the last ids; or cut off so many.
MOVES = st.lists(
    st.integers(0, 3)
    | st.tuples(st.just("again"), st.integers(1, 20), st.integers(1, 40))
    | st.tuples(st.just("rewind"), st.integers(1, 30)),
    max_size=25,
)


@settings(max_examples=examples(300))
@given(RULES, st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 20), max_size=40), MOVES)
def test_any_appends_and_rewinds_follow_the_rule(follow, rule, prompt, output, moves):
    params = {"action": "deny_next", **rule}

    def check(request):
        expected = naive(request.output, **rule)
        begin = None if expected is None else (expected[0], expected[1] + len(prompt))
        assert request.request.state.cycle == begin
        assert request.edits() == ({} if expected is None else {"DENY": [request.output[-expected[0]]]})
        assert follow(LoopGuard(), params, prompt, request.output).edits() == request.edits()

    check_after_each_move(follow(LoopGuard(), params, prompt, output), moves, check)


@settings(max_examples=examples(300))
@given(RULES, st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=20), MOVES)
def test_any_appends_and_rewinds_end_the_same_blocks(follow, rule, prompt, output, moves):
    params = {"action": "end_thinking", "thinking_start_ids": [2], "thinking_end_ids": [3], **rule}

    def check(request):
        assert request.edits() == ({"FORCE": [3]} if closes(prompt, request.output, rule) else {})
        assert follow(LoopGuard(), params, prompt, request.output).edits() == request.edits()

    check_after_each_move(follow(LoopGuard(), params, prompt, output), moves, check)


def check_after_each_move(request, moves, check):
    check(request)
    for move in moves:
        if isinstance(move, int):
            check(request.append(move))
        elif move[0] == "rewind":
            check(request.rewind(max(0, len(request.output) - move[1])))
        else:
            for _ in range(move[2] if len(request.output) >= move[1] else 0):
                check(request.append(request.output[-move[1]]))


@pytest.mark.parametrize(
    ("first", "expected"),
    [([], [2, 4]), ([4], [2]), ([1, 3], [2, 4])],
    ids=["alone", "one end denied", "others denied"],
)
def test_the_end_in_a_session(first, expected):
    """In an embedded session, where the compiled core computes the step."""
    chain = [("disallowed_tokens", {"token_ids": first}), ("loop_guard", {"action": "end", **EARLY})]
    logits = np.zeros((1, 10), np.float32)
    with Client.embedded() as client, client.session(vocab_size=10, eos_token_ids=[2, 4]) as session:
        request = session.add(Request([1], [5, 6, 5], chain))
        result = session.step({request: [6]}).apply(logits, check=False)
    assert result.all_denied_rows == ()
    assert np.flatnonzero(np.isfinite(logits[0])).tolist() == expected
