from __future__ import annotations

import tracemalloc
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport.core.history import PythonHistory
from logitport_builtins import NoRepeatNGram
from logitport_builtins.no_repeat_ngram import contexts, index

VOCAB_SIZE = 1000


def denied(history, params):
    """Reference from the whole history."""
    size, window = params["ngram_size"], params.get("window_size") or len(history)
    recent = history[max(0, len(history) - window) :]
    ngrams = [recent[i : i + size] for i in range(len(recent) - size + 1)]
    context = history[len(history) - size + 1 :]
    followers = {ngram[-1] for ngram in ngrams if ngram[:-1] == context}
    followers -= set(params.get("whitelist_token_ids") or ())
    return sorted(token_id for token_id in followers if token_id < VOCAB_SIZE)


def check(request):
    history = [*request.prompt, *request.output]
    expected = denied(history, request.request.params)
    assert request.edits() == ({"DENY": expected} if expected else {})


PARAMS = st.fixed_dictionaries(
    {"ngram_size": st.integers(1, 5) | st.just(10**30)},
    optional={
        "window_size": st.none() | st.integers(1, 30),
        "whitelist_token_ids": st.none() | st.lists(st.integers(0, 3)),
    },
)
IDS = st.lists(st.integers(0, 3) | st.just(VOCAB_SIZE), max_size=40)
MOVES = st.lists(IDS | st.integers(0, 40), max_size=15)


@pytest.fixture(params=["as shipped", "often rebuilt", "every hash collides"])
def tuning(request, monkeypatch):
    """Settings with which short random histories reach rare paths of the index."""
    if request.param != "as shipped":
        monkeypatch.setattr(index, "_UNFROZEN", 3)
        monkeypatch.setattr(index, "_MIN_RECENT", 4)
    if request.param == "every hash collides":
        monkeypatch.setattr(contexts, "_SCALE", 0)


@given(PARAMS, IDS, IDS, MOVES)
def test_any_appends_and_rewinds_follow_the_rule(follow, tuning, params, prompt, output, moves):
    params = MappingProxyType(params)  # may be shared with other requests, so it is never written
    request = follow(NoRepeatNGram(), params, prompt, output, VOCAB_SIZE)
    check(request)
    for move in moves:
        if isinstance(move, int):
            request.rewind(max(0, len(request.output) - move))
            check(request)
        else:
            for token_id in move:
                check(request.append(token_id))


@pytest.fixture
def allocated():
    """Bytes allocated since the start of the test."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    yield lambda: tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()


@pytest.mark.parametrize("prompt_length", [28_000, 0])
def test_a_request_of_32k_ids_takes_less_than_1_mb_in_python(allocated, prompt_length):
    ids = np.random.default_rng(0).integers(0, 150_000, 32_768).astype(np.int32)
    before = allocated()
    history = PythonHistory(ids[:prompt_length], ids[prompt_length:28_000])
    state = index.PythonNGramIndex(history, 3, 32_768, (), 150_000)
    largest = 0
    for token_id in ids[28_000:].tolist():
        history.append(token_id)
        state.advance(history, token_id)
        largest = max(largest, allocated() - before)
    assert 300_000 < largest < 1_000_000


def test_rejected_drafts_leave_nothing_behind(follow, allocated):
    request = follow(NoRepeatNGram(), {"ngram_size": 3}, [1, 2, 3], vocab_size=150_000)
    before = allocated()
    for token_id in range(5_000):
        request.append(token_id, 7).rewind(0)
    assert allocated() - before < 20_000
