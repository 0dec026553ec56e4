"""Compares every built-in with its class of SGLang 0.5.23: logits bit for bit, over random histories."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import logitport_builtins as ours
from logitport.core.edits import Edits, RowEdits
from logitport.core.history import History
from logitport.ops import apply_edits
from logitport.processors import EditRequest
from logitport_builtins.thinking_budget import PRESETS

VOCAB_SIZE = 8
START, END, NEWLINE = 0, 1, 2
MODELS = {
    "qwen3": "Qwen3ThinkingBudgetLogitProcessor",
    "deepseek_r1": "DeepSeekR1ThinkingBudgetLogitProcessor",
    "glm4_moe": "Glm4MoeThinkingBudgetLogitProcessor",
    "inkling": "InklingThinkingBudgetLogitProcessor",
}

DTYPES = st.sampled_from([torch.float32, torch.float16, torch.bfloat16])
HISTORIES = st.tuples(*[st.lists(st.integers(0, 4), max_size=25)] * 2)
BUDGETS = st.integers(0, 8)
NGRAMS = st.fixed_dictionaries(
    {"ngram_size": st.integers(1, 5), "window_size": st.integers(1, 60)},
    optional={"whitelist_token_ids": st.lists(st.integers(0, 7))},
)
# Values that users of SGLang may send: it accepts or silently ignores all of them.
SLOPPY_NUMBER = st.none() | st.integers(-2, 6) | st.booleans() | st.sampled_from(["3", "x", 2.9, [], [2]])
SLOPPY_NGRAMS = st.dictionaries(st.sampled_from(["ngram_size", "window_size", "other"]), SLOPPY_NUMBER) | (
    st.fixed_dictionaries(
        {"ngram_size": SLOPPY_NUMBER, "window_size": SLOPPY_NUMBER | st.just(90)},
        optional={"whitelist_token_ids": st.lists(SLOPPY_NUMBER) | SLOPPY_NUMBER},
    )
)


def rows_of(histories, params_list):
    """One dict per row, as SGLang's sampler passes them; None where a request has none."""
    return [
        params if params is None else {**params, "__req__": request_of(prompt, output)}
        for (prompt, output), params in zip(histories, params_list, strict=True)
    ]


def request_of(prompt, output):
    return SimpleNamespace(rid="r", origin_input_ids=array("q", prompt), output_ids=array("q", output))


def assert_same(our_processor, their_processor, rows, dtype=torch.float32, vocab_size=VOCAB_SIZE):
    torch.manual_seed(len(rows))
    logits = torch.randn(len(rows), vocab_size).to(dtype)
    got, expected = our_processor(logits.clone(), rows), their_processor(logits.clone(), rows)
    as_bits = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    assert torch.equal(got.view(as_bits), expected.view(as_bits)), f"{got}\n{expected}"


def small(base):
    """Create the same subclass of our base or of SGLang's, for a model with a tiny vocabulary."""
    ids = {"THINKING_START_TOKEN_ID": START, "THINKING_END_TOKEN_ID": END, "NEW_LINE_TOKEN_ID": NEWLINE}
    return type("Small", (base,), ids)


def test_each_processor_of_sglang_has_a_class_of_the_same_name(sglang_processors):
    base = sglang_processors.CustomLogitProcessor
    theirs = {name for name, value in vars(sglang_processors).items() if isinstance(value, type)}
    theirs = {name for name in theirs if issubclass(getattr(sglang_processors, name), base)} - {base.__name__}
    assert {name for name in theirs if not hasattr(ours, name)} == set()


@pytest.mark.parametrize("preset", MODELS)
def test_presets_have_their_ids(sglang_processors, preset):
    for module in (sglang_processors, ours):
        model, tags = getattr(module, MODELS[preset]), PRESETS[preset]
        assert tags.start == (model.THINKING_START_TOKEN_ID,)
        assert tags.end == (model.THINKING_END_TOKEN_ID,)
        assert tags.newline == model.NEW_LINE_TOKEN_ID
    assert set(MODELS) == set(PRESETS)


@pytest.mark.parametrize("preset", MODELS)
@pytest.mark.parametrize("budget", [0, 2, None])
def test_thinking_budget_of_each_model(sglang_processors, preset, budget):
    (start,), (end,), newline = PRESETS[preset].start, PRESETS[preset].end, PRESETS[preset].newline
    histories = [
        ([start, 5], [6, 7]),
        ([start, 5], [6, newline]),
        ([start, 5, newline], []),
        ([start, 5, end], [6, newline]),
        ([start, 5, end, start], [6]),
        ([5], [start, 6, start, 7, 8]),
    ]
    processors = getattr(ours, MODELS[preset])(), getattr(sglang_processors, MODELS[preset])()
    rows = rows_of(histories, [{"thinking_budget": budget}] * len(histories))
    assert_same(*processors, rows, vocab_size=201_088)
    if budget is not None:
        rows = rows_of(histories, [{"thinking_budget": budget, "preset": preset}] * len(histories))
        assert_same(ours.ThinkingBudget(), processors[1], rows, vocab_size=201_088)


@given(st.lists(st.tuples(HISTORIES, BUDGETS | st.booleans() | st.none() | st.integers() | st.just("2"))), DTYPES)
def test_thinking_budget_under_their_name(sglang_processors, cases, dtype):
    rows = rows_of([history for history, _ in cases], [{"thinking_budget": budget} for _, budget in cases])
    processors = small(ours.ThinkingBudgetLogitProcessor)(), small(sglang_processors.ThinkingBudgetLogitProcessor)()
    assert_same(*processors, [*rows, None, {}], dtype)
    assert_same(*processors, [], dtype)


@given(st.lists(st.tuples(HISTORIES, BUDGETS)), DTYPES)
def test_thinking_budget_under_our_name(sglang_processors, cases, dtype):
    params = {"thinking_start_ids": [START], "thinking_end_ids": [END], "newline_id": NEWLINE}
    rows = rows_of([history for history, _ in cases], [{**params, "thinking_budget": budget} for _, budget in cases])
    assert_same(ours.ThinkingBudget(), small(sglang_processors.ThinkingBudgetLogitProcessor)(), rows, dtype)


@given(st.lists(st.tuples(HISTORIES, SLOPPY_NGRAMS | st.none())), DTYPES)
def test_no_repeat_ngram_under_their_name(sglang_processors, cases, dtype):
    rows = rows_of([history for history, _ in cases], [params for _, params in cases])
    name = "DeepseekOCRNoRepeatNGramLogitProcessor"
    assert_same(getattr(ours, name)(), getattr(sglang_processors, name)(), rows, dtype)


@given(st.lists(st.tuples(HISTORIES, NGRAMS)), DTYPES)
def test_no_repeat_ngram_under_our_name(sglang_processors, cases, dtype):
    rows = rows_of([history for history, _ in cases], [params for _, params in cases])
    theirs = sglang_processors.DeepseekOCRNoRepeatNGramLogitProcessor()
    assert_same(ours.NoRepeatNGram(), theirs, rows, dtype)


@pytest.mark.parametrize("name", ["DisallowedTokens", "DisallowedTokensLogitsProcessor"])
@given(token_ids=st.lists(st.integers(0, VOCAB_SIZE - 1)), count=st.integers(1, 4), dtype=DTYPES)
def test_disallowed_tokens(sglang_processors, name, token_ids, count, dtype):
    theirs = sglang_processors.DisallowedTokensLogitsProcessor()
    assert_same(getattr(ours, name)(), theirs, [{"token_ids": token_ids} for _ in range(count)], dtype)


def test_only_sglang_requires_one_list_for_all_rows(sglang_processors):
    rows = [{"token_ids": [1]}, {"token_ids": [2]}]
    with pytest.raises(AssertionError):
        sglang_processors.DisallowedTokensLogitsProcessor()(torch.zeros(2, 4), rows)
    logits = ours.DisallowedTokensLogitsProcessor()(torch.zeros(2, 4), rows)
    assert logits.isinf().nonzero().tolist() == [[0, 1], [1, 2]]


STEPS = st.lists(st.integers(0, 4) | st.just("rewind"), max_size=40)


@given(HISTORIES, STEPS, NGRAMS, BUDGETS)
def test_state_kept_from_step_to_step(sglang_processors, history, steps, ngrams, budget):
    """Append ids one by one, as in a session, and sometimes cut some."""
    cases = [
        (ours.NoRepeatNGram, sglang_processors.DeepseekOCRNoRepeatNGramLogitProcessor, ngrams),
        (
            small(ours.ThinkingBudgetLogitProcessor),
            small(sglang_processors.ThinkingBudgetLogitProcessor),
            {"thinking_budget": budget},
        ),
    ]
    for our_class, their_class, params in cases:
        our_processor, their_processor = our_class(), their_class()
        request = EditRequest(params, History(*history), VOCAB_SIZE)
        our_processor.start(request)
        for step in steps:
            if step == "rewind":
                kept = request.history.prompt_length + len(request.history.output_token_ids) // 2
                request.history.rewind(kept)
                our_processor.rewind(request)
            else:
                request.history.append(step)
                our_processor.advance(request, step)
            edits = RowEdits()
            our_processor.edit_batch([request], [edits])
            got = torch.ones(1, VOCAB_SIZE)
            apply_edits(Edits.pack([(0, edits)], VOCAB_SIZE), got)
            now = request.history.prompt_token_ids.tolist(), request.history.output_token_ids.tolist()
            expected = their_processor(torch.ones(1, VOCAB_SIZE), rows_of([now], [params]))
            assert torch.equal(got, expected)
