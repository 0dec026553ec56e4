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


@pytest.mark.parametrize(
    ("params", "history", "expected"),
    [
        ({"ngram_size": 3}, [1, 2, 3, 1, 2], [3]),
        ({"ngram_size": 3}, [1, 2, 3, 1, 2, 4, 1, 2], [3, 4]),
        ({"ngram_size": 3}, [5, 5, 5], [5]),
        ({"ngram_size": 3}, [1, 2], []),
        ({"ngram_size": 2}, [1, 2, 1, VOCAB_SIZE, 1], [2]),
        ({"ngram_size": 1}, [4, 2, 4], [2, 4]),
        ({"ngram_size": 1, "window_size": 1}, [4, 2, 4], [4]),
        ({"ngram_size": 1}, [], []),
        ({"ngram_size": 2, "window_size": 3}, [1, 2, 1, 3, 1], [3]),
        ({"ngram_size": 2, "window_size": 2}, [1, 1, 1], [1]),
        ({"ngram_size": 2, "window_size": 1}, [1, 1, 1], []),
        ({"ngram_size": 2, "whitelist_token_ids": [2, 900]}, [1, 2, 1, 3, 1], [3]),
        ({"ngram_size": 10**30}, [1, 1, 1], []),
    ],
)
@pytest.mark.parametrize("in_prompt", [0, 2, 100])
def test_denies_ids_that_would_repeat_an_ngram_of_the_window(follow, params, history, expected, in_prompt):
    request = follow(NoRepeatNGram(), params, history[:in_prompt], history[in_prompt:], VOCAB_SIZE)
    assert request.edits() == ({"DENY": expected} if expected else {})
    check(request)


PARAMS = st.fixed_dictionaries(
    {"ngram_size": st.integers(1, 5)},
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


@pytest.mark.parametrize("ngram_size", [1, 2, 4])
@pytest.mark.parametrize("kind", ["random", "one id", "period", "one id between others"])
def test_long_histories(follow, kind, ngram_size):
    """Histories are frozen more than once, and drafts are rejected repeatedly."""
    ids = np.random.default_rng(0).integers(0, 50, 4000)
    if kind == "one id":
        ids[:] = 7
    elif kind == "period":
        ids = np.resize(ids[:23], 4000)
    elif kind == "one id between others":
        ids[::2] = 7
    ids = ids.tolist()
    request = follow(NoRepeatNGram(), {"ngram_size": ngram_size}, ids[:1500], ids[1500:1900], VOCAB_SIZE)
    for at in range(1900, 4000, 3):
        request.append(*ids[at : at + 3], 3, 3, 7, 7).rewind(at + 3 - 1500)
        if at % 100 < 3:
            check(request)
    check(request)
    check(request.rewind(700))
    check(request.rewind(0))


def test_rolled_hashes_equal_the_hashes_of_arrays():
    ids = np.random.default_rng(0).integers(0, 2**31 - 1, 50).astype(np.int32)
    for size in (1, 2, 3, 20, 60):
        context_hash = contexts.ContextHash(size)
        rolled = [0]
        for length, token_id in enumerate(ids.tolist(), start=1):
            leaving_id = ids.item(length - size) if length >= size else 0
            rolled.append(context_hash.roll(rolled[-1], leaving_id, token_id))
        assert context_hash.all(ids).tolist() == rolled
        assert len(set(rolled)) == (1 if size == 1 else 51)


def test_of_equal_ngrams_only_the_latest_is_frozen():
    ids = np.resize(np.array([5, 6, 5, 7], np.int32), 1000)
    positions = np.arange(2, 1000)
    context_hashes = contexts.ContextHash(3).all(ids)
    frozen = contexts.FrozenIndex(ids, positions, context_hashes[positions], 3)
    assert len(frozen) == 4
    assert [frozen.look_up(context).tolist() for context in context_hashes[-5:-1].tolist()] == [
        [996],
        [997],
        [998],
        [999],
    ]
    assert frozen.look_up(0).tolist() == []


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
