"""The memory of histories and states, and its limit for all sessions of a principal."""

from __future__ import annotations

import gc
import tracemalloc
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pytest

from logitport import LimitExceeded
from logitport.core.compiled import core
from logitport.core.edits import RowEdits
from logitport.core.history import History, PythonHistory
from logitport.core.memory_account import MemoryAccount, PythonMemoryAccount
from logitport.errors import from_proto
from logitport.processors import EditRequest
from logitport_builtins import BadWords, BannedStrings, DisallowedTokens, LogitBias
from logitport_builtins.by_text.automaton import Automaton
from logitport_builtins.dry.processor import Dry
from logitport_builtins.loop_guard.processor import LoopGuard
from logitport_builtins.no_repeat_ngram.processor import NoRepeatNGram
from logitport_builtins.penalties import FrequencyPenalty, PresencePenalty
from logitport_builtins.thinking_budget.processor import ThinkingBudget
from logitport_programs.request_tokens import TokenCounts
from logitport_server.config import ServerConfig
from logitport_session.dialects import RequestContext, make_dialect
from logitport_session.dialects.edit_dialect import EditDialect
from logitport_session.dialects.program_dialect import _BYTES_PER_COUNTED_ID
from logitport_session.requests import principal_memory
from logitport_session.requests.principal_memory import (
    _HISTORY_BYTES_PER_ID,
    _MAX_LOANS,
    _PHASE_BYTES_PER_OUTPUT_ID,
    _VIEW_BYTES_PER_ID,
    PrincipalMemory,
    begin_charge,
    charge_by_loan,
)

if TYPE_CHECKING:
    from collections.abc import Callable

VOCAB = 1 << 20
PENALTY = [("FrequencyPenalty", {"frequency_penalty": 1.0})]
LONG_PARAMS = [
    (Dry, {"dry_multiplier": 1, "dry_sequence_breaker_ids": [*range(1000, 21_000)]}),
    (NoRepeatNGram, {"ngram_size": 3, "whitelist_token_ids": [*range(1000, 21_000)]}),
    (LogitBias, {"logit_bias": {str(token_id): 0.1 for token_id in range(20_000)}}),
    (BadWords, {"bad_words_ids": [[1]] * 20_000}),
    (BadWords, {"bad_words_ids": [[token_id % 7 for token_id in range(40_000)]]}),
    (DisallowedTokens, {"token_ids": [1] * 20_000}),
]
IMPLEMENTATIONS = [pytest.param(PythonMemoryAccount, PythonHistory, id="python")]
if core is not None:
    IMPLEMENTATIONS.append(pytest.param(MemoryAccount, History, id="compiled"))

BUILTINS = [
    (PresencePenalty, {"presence_penalty": 1.0}),
    (FrequencyPenalty, {"frequency_penalty": 1.0}),
    (NoRepeatNGram, {"ngram_size": 3}),
    (Dry, {"dry_multiplier": 1.0}),
    (LoopGuard, {"action": "deny_next"}),
    (LoopGuard, {"action": "end_thinking", "min_length": 0, "thinking_start_ids": [1], "thinking_end_ids": [2]}),
    (ThinkingBudget, {"thinking_budget": 5, "thinking_start_ids": [1], "thinking_end_ids": [2]}),
]
DISTINCT = np.random.default_rng(0).permutation(20_000).astype(np.int32)
HISTORIES = {
    "distinct ids": DISTINCT,
    "one id": np.zeros(20_000, np.int32),
    "tags": np.tile(np.array([1, 2], np.int32), 10_000),
}


def measured(make: Callable[[], object]) -> int:
    """Bytes of an object, by its own figure if it is compiled."""
    gc.collect()
    tracemalloc.start()
    try:
        made = make()
        allocated, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return allocated + int(getattr(getattr(made, "state", made), "nbytes", 0))


@pytest.mark.parametrize("ids", HISTORIES.values(), ids=HISTORIES)
@pytest.mark.parametrize(
    ("builtin", "params"), BUILTINS, ids=[f"{each.__name__} {index}" for index, (each, _) in enumerate(BUILTINS)]
)
@pytest.mark.slow
def test_the_bound_of_a_state_is_an_upper_bound(builtin: Any, params: dict[str, Any], ids: Any) -> None:
    """For a state that was built from a history, and then followed it."""
    processor, half = builtin(), len(ids) // 2

    def follow() -> EditRequest:
        request = EditRequest(params, History([], ids[:half]), VOCAB)
        processor.start(request)
        processor.edit(request, RowEdits())
        for token_id in ids[half : half + 200].tolist():
            request.history.append(token_id)
            processor.advance(request, token_id)
        processor.edit(request, RowEdits())
        return request

    bytes_per_id = getattr(builtin, "bytes_per_id", 0) + getattr(builtin, "bytes_per_output_id", 0)
    length = half + 200
    capacity = length + length // 4
    assert measured(follow) <= (bytes_per_id + _HISTORY_BYTES_PER_ID) * capacity + (64 << 10)


def test_the_bound_of_phases_is_an_upper_bound() -> None:
    """For an output that consists of tags, of a processor that holds in a phase. It has a view of the history."""
    tags = {"thinking_start_ids": [1], "thinking_end_ids": [2]}
    params = {"token_ids": [5], "phase": "answer", "phase_tags": tags}
    dialect = make_dialect(DisallowedTokens, "disallowed_tokens", shipped=False)
    whole = History([], HISTORIES["tags"])

    def start() -> EditRequest:
        state: EditRequest = dialect.start(RequestContext("request", whole, {}, VOCAB), params)
        return state

    start()  # imports
    bytes_per_id = _PHASE_BYTES_PER_OUTPUT_ID + _VIEW_BYTES_PER_ID
    assert measured(start) <= bytes_per_id * len(whole) + (16 << 10)


@pytest.mark.parametrize(("builtin", "params"), LONG_PARAMS, ids=[each.__name__ for each, _ in LONG_PARAMS])
@pytest.mark.slow
def test_the_bound_of_parameters_is_an_upper_bound(builtin: Any, params: dict[str, Any]) -> None:
    """With the state that is built from them."""
    processor, text = builtin(), orjson.dumps(params)

    def start() -> EditRequest:
        request = EditRequest(orjson.loads(text), History([], [1]), VOCAB)
        processor.start(request)
        return request

    start()  # imports
    bound = make_dialect(builtin, builtin.builtin_name, shipped=False).bytes_per_params_byte
    assert measured(start) <= bound * len(text) + (16 << 10)


@pytest.mark.slow
def test_the_bound_of_strings_is_an_upper_bound() -> None:
    """Of one long string, whose rests would take the square of its length, and of many short ones."""
    for strings in ([b"ab" * 8191], [b"%064d" % number for number in range(256)]):
        text = orjson.dumps([string.decode() for string in strings])
        assert measured(partial(Automaton, strings, 128)) <= BannedStrings.bytes_per_params_byte * len(text)


@pytest.mark.parametrize("history", [History, PythonHistory])
@pytest.mark.slow
def test_the_bound_of_a_history_is_an_upper_bound(history: Any) -> None:
    assert measured(lambda: history(DISTINCT, [1])) <= _HISTORY_BYTES_PER_ID * len(DISTINCT) * 5 // 4


def test_the_bound_of_counted_ids_is_an_upper_bound() -> None:
    """Of programs that read the history."""
    assert measured(lambda: TokenCounts(DISTINCT)) <= _BYTES_PER_COUNTED_ID * len(DISTINCT)


@pytest.mark.parametrize(("account_class", "history_class"), IMPLEMENTATIONS)
def test_a_charge_grows_with_its_history_and_ends_with_it(account_class: Any, history_class: Any) -> None:
    account = account_class(10_000)
    history = history_class(np.arange(400, dtype=np.int32), [1])
    assert history.charge(1 << 20), "nothing is charged before it begins"
    assert history.begin_charge(account, 1000, 10, 5)
    assert account.held == 1000 + 10 * 501 + 5 * 65
    assert history.charge(465)
    assert account.held == 1000 + 10 * 501 + 5 * 65
    assert history.charge(466)
    assert account.held == 1000 + 10 * 582 + 5 * 130
    assert history.charge(410), "arrays keep their capacity"
    assert not history.charge(1000)
    assert account.held == 1000 + 10 * 582 + 5 * 130
    assert (account.limit, history.memory_limit) == (10_000, 10_000)
    other = history_class()
    assert not other.begin_charge(account, 10_000, 0, 0)
    assert other.memory_limit == 0
    del history
    assert account.held == 0


@pytest.mark.skipif(core is None, reason="the states of pure Python take several times the memory")
@pytest.mark.parametrize(
    ("prompt", "chain"),
    [
        pytest.param(1 << 14, (ThinkingBudget, NoRepeatNGram), id="generated ids"),
        pytest.param(1 << 15, (NoRepeatNGram, FrequencyPenalty, PresencePenalty), id="long prompts"),
    ],
)
def test_many_long_requests_fit_the_default_limit(prompt: int, chain: Any) -> None:
    history = History(np.arange(prompt, dtype=np.int32), np.arange((1 << 15) - prompt, dtype=np.int32))
    account = PrincipalMemory(ServerConfig().max_principal_memory)
    begin_charge(
        history, account, [(EditDialect(builtin, builtin.builtin_name, shipped=False), 100) for builtin in chain]
    )
    assert 256 * account.held <= account.limit


class Lender:
    """Lends these parts, one after the other, then nothing."""

    def __init__(self, *parts: int) -> None:
        self.parts = list(parts)
        self.requests = 0

    def __call__(self) -> int:
        self.requests += 1
        return self.parts.pop(0) if self.parts else 0


def test_an_account_that_borrows_holds_what_was_lent() -> None:
    lender = Lender(100_000, 100_000)
    account, history = PrincipalMemory(1 << 20, lender), History([1])
    assert account.held == 1 << 20, "nothing was lent yet"
    begin_charge(history, account)
    assert account.held == (1 << 20) - 100_000 + 4096 + 5 * 65
    charge_by_loan(history, account, history.length + 20_000)
    assert lender.requests == 2
    with pytest.raises(LimitExceeded, match="more than 1048576 bytes"):
        charge_by_loan(history, account, history.length + (1 << 17))
    del history
    assert account.held == (1 << 20) - 200_000


def test_a_refused_account_requests_no_more_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    lender, clock = Lender(), [1000.0]
    monkeypatch.setattr(principal_memory.time, "monotonic", lambda: clock[0])
    account = PrincipalMemory(1 << 20, lender)
    assert not any(account.grow() for _ in range(10))
    assert lender.requests == 1
    clock[0] += 1.0
    lender.parts.append(1)
    assert account.grow()


def test_an_account_gives_back_half_of_what_is_free() -> None:
    account = PrincipalMemory(1 << 20, Lender(1 << 20))
    assert account.give_back() == 0
    assert account.grow()
    assert account.give_back() == 1 << 19
    assert account.add(1 << 18)
    assert account.give_back() == 1 << 17
    assert account.held == (1 << 20) - (1 << 17)
    assert account.add((1 << 17) - 4096)
    assert account.give_back() == 0, "too little to be worth a message"


def test_two_accounts_that_need_more_than_is_left_do_not_borrow_without_end() -> None:
    lender = Lender(*[1] * 100)
    account = PrincipalMemory(1 << 20, lender)
    with pytest.raises(LimitExceeded):
        begin_charge(History([1]), account)
    assert lender.requests == _MAX_LOANS


def refusal(engine: Any, slot: int, processors: Any, prompt: Any = (1,)) -> str:
    _, reply = engine.begin_add(slot, processors, prompt)
    (failure,) = reply.failures
    error = from_proto(failure.error)
    assert type(error) is LimitExceeded
    return str(error)


def test_an_admission_over_the_limit_is_refused(open_engine: Any) -> None:
    engine = open_engine(VOCAB, FrequencyPenalty, max_principal_memory=1 << 20)
    first = engine.add(0, PENALTY, [1] * 10_000)
    text = refusal(engine, 1, PENALTY, [1] * 200_000)
    assert "more than 1048576 bytes, the limit of a principal" in text
    assert "raise --max-principal-memory" in text
    assert not engine.failures(engine.step({first: [5]}))
    engine.remove(first)
    engine.add(1, PENALTY, [1] * 10_000)


def test_a_long_prompt_of_phased_processors_is_refused(open_engine: Any) -> None:
    """Each keeps a view of the history, which takes a fifth of the limit."""
    tags = {"thinking_start_ids": [1], "thinking_end_ids": [2]}
    phased = ("DisallowedTokens", {"token_ids": [5], "phase": "answer", "phase_tags": tags})
    engine = open_engine(VOCAB, DisallowedTokens, max_principal_memory=32 << 20)
    engine.remove(engine.add(0, [phased] * 4, range(1 << 20)))
    refusal(engine, 0, [phased] * 8, range(1 << 20))


def test_parameters_over_the_limit_are_refused(open_engine: Any) -> None:
    """A megabyte of ids that end repetitions takes 31 MB."""
    engine = open_engine(VOCAB, Dry, max_principal_memory=4 << 20)
    refusal(engine, 0, [("Dry", {"dry_multiplier": 1, "dry_sequence_breaker_ids": [*range(30_000)]})])
    assert engine.session.account.held == 0


def test_states_are_charged_before_they_are_built(open_engine: Any) -> None:
    """Sixty-four of one long history would take far more than the limit."""
    engine = open_engine(VOCAB, NoRepeatNGram, max_principal_memory=8 << 20)
    ngram = [("NoRepeatNGram", {"ngram_size": 2})]
    engine.add(0, ngram, range(50_000))
    tracemalloc.start()
    try:
        refusal(engine, 1, ngram * 64, range(50_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_a_step_over_the_limit_fails_one_request(open_engine: Any) -> None:
    engine = open_engine(VOCAB, FrequencyPenalty, max_principal_memory=1 << 20, max_requests_per_session=2)
    first, second = engine.add(0, PENALTY), engine.add(1, PENALTY)
    length, failures = 1, {}
    while not failures:
        assert length < 1 << 20
        new_ids = list(range(length, length + 1000))
        failures = engine.failures(engine.step({first: new_ids, second: [7]}))
        length += 1000
    assert failures == {0: (LimitExceeded, False)}
    engine.remove(first)
    third = engine.add(0, PENALTY)
    assert not engine.failures(engine.step({second: [8], third: [9]}))


def test_the_memory_of_a_session_is_given_back(open_engine: Any) -> None:
    engine = open_engine(VOCAB, FrequencyPenalty)
    account = engine.session.account
    known = engine.add(0, PENALTY, range(1000))
    engine.step({known: [5]})
    held = account.held
    assert held > 5000
    engine.add(1, PENALTY, range(1000))
    assert account.held > held
    engine.remove(known)
    assert 0 < account.held <= held
    del engine, known
    gc.collect()
    assert account.held == 0
