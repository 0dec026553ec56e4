from __future__ import annotations

from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitport.errors import InvalidArgument
from logitport.tokenizers import named_tokenizers, read_tokenizer
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
    with pytest.raises(InvalidArgument, match="no block that is cut short at once would close"):
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


def limited(prompt, output, params):
    """Reference from the whole history, for tags of one id: the kind of the row's edit, its id and its value."""
    ids = [*prompt, *output]
    opened_at = max((at + 1 for at, one in enumerate(ids) if one == START), default=0)
    if not opened_at or END in ids[opened_at:]:
        return {}
    thought = ids[opened_at:]
    used, budget, soft_from = len(thought), params["thinking_budget"], params.get("soft_from", 1000)
    if used < min(budget, params.get("min_thinking", 0)):
        return {"DENY": [END]}
    if used < budget:
        share = (used - soft_from + 1) / (budget - soft_from)
        return {"BIAS": [(END, 20 * share)]} if used >= soft_from else {}
    text = params.get("end_text", [])
    begun = max(n for n in range(min(len(text), used) + 1) if thought[used - n :] == text[:n])
    if not begun and output[-1:] != [NEWLINE]:
        return {"FORCE": [NEWLINE]}
    return {"FORCE": [[*text, END][begun]]}


@given(st.data())
def test_a_text_a_soft_start_and_a_minimum(follow, data):
    ids = st.lists(st.sampled_from([1, 2, START, END, NEWLINE]), max_size=8)
    budget = data.draw(st.integers(0, 8))
    params = {"thinking_budget": budget, **ONE_ID}
    params["end_text"] = data.draw(st.lists(st.sampled_from([1, 2]), max_size=4))
    params["min_thinking"] = data.draw(st.integers(0, budget))
    if budget and data.draw(st.booleans()):
        params["soft_from"] = data.draw(st.integers(0, budget - 1))
    prompt, output = data.draw(ids), data.draw(ids)
    request = follow(ThinkingBudget(), params, prompt, output)
    for token_id in [None, *data.draw(ids)]:
        if token_id is not None:
            request.append(token_id)
        expected = limited(prompt, request.output, params)
        if "BIAS" in expected:
            assert request.biases() == pytest.approx(dict(expected["BIAS"]))
        else:
            assert request.edits() == expected


def test_the_bias_grows_by_the_same_amount_with_each_id(follow):
    request = follow(ThinkingBudget(), {"thinking_budget": 6, "soft_from": 2, **ONE_ID}, prompt=[START], output=[1])
    biases = []
    for _ in range(4):
        request.append(1)
        biases.append(request.biases()[END])
    assert biases == [5, 10, 15, 20]
    assert request.append(1).edits() == {"FORCE": [NEWLINE]}


def test_the_text_follows_if_the_model_has_begun_it_and_the_tag_if_it_has_begun_that(follow):
    params = {"thinking_budget": 2, "thinking_start_ids": [START], "thinking_end_ids": [8, 9], "end_text": [1, 2, 3]}
    for written, rest in (([7, 1], [2, 3, 8, 9]), ([1, 2], [3, 8, 9]), ([7, 8], [9]), ([7, 7], [1, 2, 3, 8, 9])):
        request = follow(ThinkingBudget(), params, prompt=[START], output=written)
        for token_id in rest:
            assert request.edits() == {"FORCE": [token_id]}
            request.append(token_id)
        assert request.edits() == {}


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"thinking_budget": 3, "min_thinking": 4}, "min_thinking is 4, and thinking_budget 3"),
        ({"thinking_budget": 3, "soft_from": 3}, "soft_from is 3, and thinking_budget 3"),
        ({"thinking_budget": 3, "soft_from": -1}, "soft_from"),
        (
            {"thinking_budget": 3, "end_text": [1, END]},
            "end_text must not begin like thinking_end_ids, or contain them",
        ),
        ({"thinking_budget": 3, "end_text": [END]}, "end_text must not begin like thinking_end_ids"),
        ({"thinking_budget": 3, "end_text": [1, START]}, "newline_id, end_text and thinking_end_ids must not contain"),
        ({"thinking_budget": 3, "end_text": [1] * 257}, "end_text has 257 ids; give at most 256"),
        ({"thinking_budget": 3, "end_text": ""}, "end_text has an empty string"),
        ({"thinking_budget": 3, "end_text": 5}, "end_text must be a list of token ids"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(params, problem):
    with pytest.raises(InvalidArgument, match=problem):
        ThinkingBudget.validate_params({**ONE_ID, **params})


def test_a_text_has_the_ids_of_the_sessions_tokenizer(follow, tmp_path):
    pytest.importorskip("tokenizers")
    from tests.tokenizer_files import write_trained

    library = write_trained(tmp_path)
    named_tokenizers.configure({"own": read_tokenizer("own", tmp_path)})
    ids = library.encode("red and blue").ids
    try:
        params = {"thinking_budget": 0, "thinking_start_ids": [400], "thinking_end_ids": [401]}
        request = follow(ThinkingBudget(), {**params, "end_text": "red and blue"}, prompt=[400])
        for token_id in [*ids, 401]:
            assert request.edits() == {"FORCE": [token_id]}
            request.append(token_id)
        with pytest.raises(InvalidArgument, match="end_text must not begin like thinking_end_ids"):
            follow(ThinkingBudget(), {**params, "thinking_end_ids": [ids[0]], "end_text": "red and blue"})
    finally:
        named_tokenizers.configure({})
    with pytest.raises(InvalidArgument, match=r"end_text is a text, .* no tokenizer is named .* or give its ids"):
        follow(ThinkingBudget(), {**params, "end_text": "red and blue"})
