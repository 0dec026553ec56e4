from __future__ import annotations

import json
import pickle
import pickletools
from types import SimpleNamespace

import pytest
import torch

import logitport_builtins as builtins
from logitport.errors import InvalidArgument
from logitport.processors import CustomLogitProcessor

MODULE = "sglang.srt.sampling.custom_logit_processor"
NAMES = [name for name in builtins.__all__ if name.endswith("Processor")]


def row(prompt=(), output=(), **params):
    """A row's parameters as SGLang passes them."""
    return {**params, "__req__": SimpleNamespace(rid="r", origin_input_ids=list(prompt), output_ids=list(output))}


def denied(logits):
    return [torch.isneginf(row).nonzero().flatten().tolist() for row in logits]


def forced(logits):
    """The only id that is left in each row, with 0.0; None where all are left."""
    return [None if row.isfinite().all() else (row == 0.0).nonzero().item() for row in logits]


class Small(builtins.ThinkingBudgetLogitProcessor):
    """A subclass as users of SGLang write it for another model."""

    THINKING_START_TOKEN_ID = 4
    THINKING_END_TOKEN_ID = 5
    NEW_LINE_TOKEN_ID = 6


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("Qwen3ThinkingBudgetLogitProcessor", (151667, 151668, 198)),
        ("DeepSeekR1ThinkingBudgetLogitProcessor", (128798, 128799, 201)),
        ("Glm4MoeThinkingBudgetLogitProcessor", (151350, 151351, 198)),
        ("InklingThinkingBudgetLogitProcessor", (200008, 200010, 198)),
    ],
)
def test_thinking_budget_of_each_model(name, ids):
    start, end, newline = ids
    logits = getattr(builtins, name)()(
        torch.ones(4, 201_088),
        [
            row([start], [7], thinking_budget=1),
            row([start, 7], [newline], thinking_budget=1),
            row([start], [7], thinking_budget=2),
            row([start, end], [7], thinking_budget=0),
        ],
    )
    assert forced(logits) == [newline, end, None, None]


def test_a_subclass_sets_its_own_ids():
    assert forced(Small()(torch.ones(1, 9), [row([4], [1], thinking_budget=1)])) == [6]


def test_ids_may_be_set_by_an_instance():
    class Late(builtins.ThinkingBudgetLogitProcessor):
        def __init__(self):
            self.THINKING_START_TOKEN_ID, self.THINKING_END_TOKEN_ID, self.NEW_LINE_TOKEN_ID = 1, 2, 3

    assert forced(Late()(torch.ones(1, 9), [row([1], thinking_budget=0)])) == [3]


@pytest.mark.parametrize("params", [{}, {"thinking_budget": None}, {"thinking_budget": -1}, {"thinking_budget": "1"}])
def test_an_unusable_budget_is_no_limit(params):
    Small.validate_params(params)
    assert forced(Small()(torch.ones(1, 9), [row([4, 1, 1], **params)])) == [None]


@pytest.mark.parametrize("name", ["Qwen3ThinkingBudgetLogitProcessor", "DeepseekOCRNoRepeatNGramLogitProcessor"])
@pytest.mark.parametrize("param_list", [None, [], [None, None], [{}, {}]])
def test_rows_without_parameters_are_skipped(name, param_list):
    logits = torch.ones(2, 9)
    assert getattr(builtins, name)()(logits, param_list) is logits
    assert logits.eq(1).all()


def test_no_repeat_ngram_reads_numbers_leniently():
    history = [1, 2, 1, 3, 1]
    cases = [
        ({"ngram_size": 2, "window_size": 9}, [2, 3]),
        ({"ngram_size": "2", "window_size": 3.9}, [3]),
        ({"ngram_size": 2, "window_size": 9, "whitelist_token_ids": ["2", 7.5]}, [3]),
        ({"ngram_size": 2, "window_size": 9, "whitelist_token_ids": [2, "two"]}, [2, 3]),
        ({"ngram_size": 2, "window_size": 9, "whitelist_token_ids": 2}, [2, 3]),
        ({"ngram_size": 2, "window_size": 9, "another_processor": 1}, [2, 3]),
        ({"ngram_size": 2}, []),
        ({"window_size": 9}, []),
        ({"ngram_size": 0, "window_size": 9}, []),
        ({"ngram_size": 2, "window_size": -9}, []),
        ({"ngram_size": "two", "window_size": 9}, []),
        ({"ngram_size": [2], "window_size": 9}, []),
        ({"ngram_size": float("inf"), "window_size": 9}, []),
    ]
    processor = builtins.DeepseekOCRNoRepeatNGramLogitProcessor()
    for params, _ in cases:
        processor.validate_params(params)
    logits = processor(torch.ones(len(cases), 5), [row(history[:2], history[2:], **params) for params, _ in cases])
    assert denied(logits) == [expected for _, expected in cases]


def test_a_row_without_a_request_is_skipped():
    """The history is unknown. SGLang's n-gram processor skips the row, and its thinking budget fails."""
    logits = torch.ones(1, 9)
    builtins.DeepseekOCRNoRepeatNGramLogitProcessor()(logits, [{"ngram_size": 1, "window_size": 9}])
    Small()(logits, [{"thinking_budget": 0}])
    assert logits.eq(1).all()


def test_disallowed_tokens_ignore_other_keys_but_need_their_own():
    builtins.DisallowedTokensLogitsProcessor.validate_params({"token_ids": [1], "thinking_budget": 4})
    for params in ({}, {"token_ids": [-1]}):
        with pytest.raises(InvalidArgument, match="disallowed_tokens: token_ids"):
            builtins.DisallowedTokensLogitsProcessor()(torch.ones(1, 4), [row(**params)])


@pytest.mark.parametrize("name", NAMES)
def test_a_payload_of_sglang_loads_our_class(name):
    by_reference = pickle.PROTO + bytes([4]) + pickle.GLOBAL + f"{MODULE}\n{name}\n".encode() + pickle.STOP
    loaded = CustomLogitProcessor.from_str(json.dumps({"callable": by_reference.hex()}))
    assert type(loaded) is getattr(builtins, name)


@pytest.mark.parametrize("name", NAMES)
def test_our_payload_names_the_class_of_sglang(name):
    data = bytes.fromhex(json.loads(getattr(builtins, name).to_str())["callable"])
    strings = [value for opcode, value, _ in pickletools.genops(data) if isinstance(value, str)]
    assert strings == [MODULE, name]


def test_a_subclass_is_sent_by_value_with_our_base():
    class Mine(builtins.ThinkingBudgetLogitProcessor):
        THINKING_START_TOKEN_ID = 1
        THINKING_END_TOKEN_ID = 2
        NEW_LINE_TOKEN_ID = 3

        def __call__(self, logits, custom_param_list=None):
            logits = super().__call__(logits, custom_param_list)
            logits[:, 8] = 5.0
            return logits

    arrived = CustomLogitProcessor.from_str(Mine.to_str())
    assert type(arrived) is not Mine
    assert isinstance(arrived, builtins.ThinkingBudgetLogitProcessor)
    logits = arrived(torch.ones(1, 9), [row([1], thinking_budget=0)])
    assert logits.isfinite().nonzero().tolist() == [[0, 3], [0, 8]]
