"""The built-in `dry` lowers logits as llama.cpp's own DRY sampler does."""

from __future__ import annotations

from ctypes import byref, c_char_p

import llama_cpp
import numpy as np
import pytest

from logitport.core.edits import Edits, RowEdits
from logitport.core.history import History
from logitport.ops import apply_edits
from logitport.processors import EditRequest
from logitport_builtins import Dry

VOCAB_SIZE = 512  # of the checkpoint


def theirs(model, ids, params, logits):
    """The logits after llama.cpp's sampler, without sequence breakers: those are texts there."""
    sampler = llama_cpp.llama_sampler_init_dry(
        llama_cpp.llama_model_get_vocab(model.model),
        params["dry_multiplier"],
        params.get("dry_base", 1.75),
        params.get("dry_allowed_length", 2),
        params.get("dry_penalty_last_n", 1000),  # -1 keeps no ids in this version
        (c_char_p * 0)(),
        0,
    )
    try:
        for token_id in ids:
            llama_cpp.llama_sampler_accept(sampler, token_id)
        data = (llama_cpp.llama_token_data * len(logits))(
            *(llama_cpp.llama_token_data(place, float(logit), 0.0) for place, logit in enumerate(logits))
        )
        array = llama_cpp.llama_token_data_array(data, len(logits), -1, False)
        llama_cpp.llama_sampler_apply(sampler, byref(array))
        result = np.empty(len(logits), np.float32)
        for one in array.data[: array.size]:
            result[one.id] = one.logit
        return result
    finally:
        llama_cpp.llama_sampler_free(sampler)


def ours(ids, params, logits):
    """The logits after the built-in, of which the state has grown id by id from the middle."""
    processor = Dry()
    middle = len(ids) // 2
    request = EditRequest(params, History(ids[:middle]), len(logits))
    processor.start(request)
    for token_id in ids[middle:]:
        request.history.append(token_id)
        processor.advance(request, token_id)
    edits = RowEdits()
    processor.edit(request, edits)
    result = logits[None].copy()
    apply_edits(Edits.pack([(0, edits)], len(logits)), result)
    return result[0]


@pytest.mark.parametrize("seed", range(60))
def test_logits_are_those_of_llama_cpp(model, seed):
    random = np.random.default_rng(seed)
    ids = random.integers(20, 20 + int(random.integers(1, 5)), int(random.integers(1, 100))).tolist()
    params = {
        "dry_multiplier": float(random.choice([0.8, 0.0, 2.0])),
        "dry_base": float(random.choice([1.75, 1.0, 1.1])),
        "dry_allowed_length": int(random.integers(1, 5)),
    }
    if seed % 2:
        params["dry_penalty_last_n"] = int(random.integers(1, 120))
    logits = random.standard_normal(VOCAB_SIZE).astype(np.float32)
    expected = theirs(model, ids, params, logits)
    np.testing.assert_allclose(ours(ids, params, logits), expected, rtol=1e-5)


def test_a_repetition_is_penalized(model):
    logits = np.zeros(VOCAB_SIZE, np.float32)
    expected = theirs(model, [30, 31, 32, 33, 30, 31, 32], {"dry_multiplier": 1.0}, logits)
    assert {token_id: expected[token_id] for token_id in np.flatnonzero(expected)} == {33: -1.75}
