"""The states of built-ins: both implementations give the same edits, bit for bit, after the same changes."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport.core import compiled
from logitport.core.edits import Edits, RowEdits
from logitport.errors import InvalidArgument, LogitportError
from tests.core import other_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.core.implementations import Implementation

    # Makes the arguments of a state, for a history.
    Arguments = Callable[[Any], tuple[Any, ...]]

VOCAB_SIZE = 40  # a bitmask has 2 words
WHOLE_HISTORY = 2**31 - 1

ID = st.integers(0, 7)
# In the histories, ids of images lie beyond the vocabulary.
HISTORY = st.lists(st.one_of(ID, ID, ID, st.sampled_from([-1, VOCAB_SIZE - 1, VOCAB_SIZE, 2**31 - 1])), max_size=60)
# Append ids; cut off so many; or append drafts with a look-up at each, and reject all but so many.
CHANGE = st.one_of(
    st.tuples(st.just("append"), HISTORY),
    st.tuples(st.just("rewind"), st.integers(0, 80)),
    st.tuples(st.just("draft"), st.lists(ID, max_size=6), st.integers(0, 6)),
)
TAG = st.lists(st.integers(0, 3), min_size=1, max_size=4)


class Followed:
    """A history with a state."""

    def __init__(
        self,
        implementation: Implementation,
        name: str,
        arguments: Arguments,
        prompt: Sequence[int],
        output: Sequence[int],
    ) -> None:
        self.compiled = implementation.name == "compiled"
        self.history = implementation.history(prompt, output)
        self.state = implementation.states[name](*arguments(self.history))

    def apply(self, change: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        """Make a change. Yields the columns of the edits after it, and after each draft."""
        kind, argument, *rest = change
        if kind == "append":
            self._append(argument)
        elif kind == "rewind":
            self._rewind(self.history.length - argument)
        else:
            length = self.history.length
            for token_id in argument:
                self._append([token_id])
                yield self.columns()
            self._rewind(min(length + rest[0], self.history.length))
        yield self.columns()

    def columns(self) -> tuple[Any, ...]:
        """The columns of the edits, then the names and values of the events."""
        if self.compiled:
            written, found = compiled.core.edit_rows([self.state], [self.history], VOCAB_SIZE, uses_bitmasks=True)
            return (*Edits(*written).to_columns(), *((name, values) for _, name, values in found))
        edits = RowEdits()
        self.state.edit(self.history, VOCAB_SIZE, edits)
        events = ((name, values) for name, values, _ in edits.events)
        return (*Edits.pack([(0, edits)], VOCAB_SIZE).to_columns(), *events)

    def _append(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            self.history.append(token_id)
            self.state.advance(self.history, token_id)

    def _rewind(self, length: int) -> None:
        self.history.rewind(max(self.history.prompt_length, length))
        self.state.rewind(self.history)


def check(
    both: tuple[Implementation, Implementation],
    name: str,
    arguments: Arguments,
    prompt: Sequence[int],
    output: Sequence[int],
    changes: Sequence[Sequence[Any]],
) -> None:
    python, core = (Followed(one, name, arguments, prompt, output) for one in both)
    assert python.state.advances == core.state.advances
    assert python.columns() == core.columns()
    for change in changes:
        assert [*python.apply(change)] == [*core.apply(change)], change
        assert getattr(python.state, "cycle", None) == getattr(core.state, "cycle", None), change


histories = given(HISTORY, HISTORY, st.lists(CHANGE, max_size=8), st.data())


@histories
def test_lists(both: Any, prompt: list[int], output: list[int], changes: list[Any], data: Any) -> None:
    ids = np.array(data.draw(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=5)), np.int32)
    below = data.draw(st.integers(-1, 100))
    check(both, "TokenList", lambda _: (ids, below), prompt, output, changes)
    values = [value / 3 for value in range(len(ids))]
    check(both, "BiasList", lambda _: (ids, values), prompt, output, changes)


@histories
def test_n_grams(both: Any, prompt: list[int], output: list[int], changes: list[Any], data: Any) -> None:
    size = data.draw(st.one_of(st.integers(1, 4), st.sampled_from([30, 1000, WHOLE_HISTORY])))
    window = data.draw(st.one_of(st.integers(0, 50), st.just(WHOLE_HISTORY)))
    whitelist = sorted(data.draw(st.sets(ID, max_size=3)))
    check(both, "NGramIndex", lambda history: (history, size, window, whitelist, VOCAB_SIZE), prompt, output, changes)


@histories
def test_thinking_blocks(both: Any, prompt: list[int], output: list[int], changes: list[Any], data: Any) -> None:
    start, end = tuple(data.draw(TAG)), tuple(data.draw(TAG))
    newline = data.draw(st.one_of(st.none(), st.integers(0, 3)))
    budget = data.draw(st.one_of(st.integers(0, 10), st.just(2**63 - 1)))
    text = data.draw(st.one_of(st.just([]), st.lists(st.integers(0, 5), max_size=4)))
    soft_from, least = data.draw(st.integers(-1, 8)), data.draw(st.integers(0, 8))
    arguments = budget, start, end, newline, text, soft_from if soft_from < budget else -1, least
    check(both, "ThinkingBlocks", lambda history: (history, *arguments), prompt, output, changes)


@given(st.lists(st.tuples(TAG, st.integers(0, 200)), max_size=5), st.integers(0, 600), TAG, TAG)
def test_thinking_blocks_of_long_histories(
    both: Any, written: list[tuple[list[int], int]], prompt_length: int, start: list[int], end: list[int]
) -> None:
    """Most ids belong to no tag, and are skipped in blocks."""
    ids = [token_id for tag, distance in written for token_id in [*tag, *[9] * distance]]
    prompt, output = ids[:prompt_length], ids[prompt_length:]
    changes = [("rewind", 70), ("append", [9] * 5), ("rewind", 300)]
    check(
        both, "ThinkingBlocks", lambda history: (history, 60, tuple(start), tuple(end), None), prompt, output, changes
    )


@histories
def test_bad_words(both: Any, prompt: list[int], output: list[int], changes: list[Any], data: Any) -> None:
    sequences = data.draw(st.lists(st.lists(ID, min_size=1, max_size=4), max_size=8))
    generated_only = data.draw(st.booleans())
    check(both, "BannedSequences", lambda _: (sequences, generated_only), prompt, output, changes)


@histories
def test_penalties(both: Any, prompt: list[int], output: list[int], changes: list[Any], data: Any) -> None:
    penalty = data.draw(st.one_of(st.floats(-2, 2), st.sampled_from([0.0, 1e-60])))
    per_occurrence = data.draw(st.booleans())
    check(both, "Penalty", lambda history: (history, penalty, per_occurrence), prompt, output, changes)


@histories
def test_loops(both: Any, prompt: list[int], output: list[int], changes: list[Any], data: Any) -> None:
    rule = (data.draw(st.integers(2, 4)), data.draw(st.sampled_from([1, 3, 9, 512])), data.draw(st.integers(0, 12)))
    plain_repeats, action = data.draw(st.sampled_from([0, 5])), data.draw(st.integers(0, 3))
    start, end = data.draw(TAG), data.draw(TAG)
    newline = data.draw(st.one_of(st.none(), st.integers(0, 3)))
    # Parts that repeat: random ids alone do not.
    again = [("append", part * data.draw(st.integers(1, 5))) for _, part, *_ in changes if isinstance(part, list)]
    changes = [one for pair in zip_longest(changes, again) for one in pair if one is not None]
    ends = [1, 5, VOCAB_SIZE - 1]
    arguments = *rule, plain_repeats, action, ends, start, end, newline
    check(both, "LoopBreaker", lambda history: (history, *arguments), prompt, output * 2, changes)


@pytest.mark.parametrize("action", [1, 3])
@pytest.mark.parametrize("min_length", [2, 9, 40])
def test_loops_of_branches(both: Any, min_length: int, action: int) -> None:
    """Short ways back and forth, as in a tree of drafts, over the lengths at which all periods are compared."""
    random = np.random.default_rng(min_length)
    block = [2, 3, 2, 2, 3]
    changes: list[tuple[Any, ...]] = []
    for _ in range(60):
        branch = [block[at % 5] if random.random() < 0.9 else 4 for at in range(int(random.integers(1, 12)))]
        changes += [("append", branch), ("rewind", int(random.integers(0, 12)))]
    arguments = 2, 16, min_length, 0, action, [1], [0], [0, 1], None
    check(both, "LoopBreaker", lambda history: (history, *arguments), [0, 2], block * 8, changes)


@pytest.mark.slow
@pytest.mark.parametrize("action", range(4))
@pytest.mark.parametrize("period", [1, 11, 12, 200, 512])
def test_loops_of_long_histories(both: Any, period: int, action: int) -> None:
    """Found and broken again and again, with rewinds over the begin of a cycle and over several blocks."""
    written = [*np.random.default_rng(0).permutation(VOCAB_SIZE - 2) + 2] * 13
    block = [int(token_id) for token_id in written[:period]]
    changes: list[tuple[Any, ...]] = []
    for times in range(4):
        changes += [("append", [0]), ("append", block * (times + 2)), ("draft", block[:4], 2), ("append", block * 2)]
        changes += [("rewind", 3 + times * period), ("append", [*block[: period // 2], 1, 0, 0])]
    changes += [("rewind", 4 * period), ("append", block), ("rewind", 9999)]
    arguments = 3, 512, 64, 5, action, [1], [0], [0, 1], None
    check(both, "LoopBreaker", lambda history: (history, *arguments), [0, 2], block * 3, changes)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 40])
@pytest.mark.parametrize("kind", ["random", "one id", "period", "one id between others", "other followers"])
def test_n_grams_of_long_histories(both: Any, kind: str, size: int) -> None:
    """Long enough to freeze, to remove equal n-grams, and to grow; with rewinds of all lengths."""
    ids = np.random.default_rng(0).integers(0, VOCAB_SIZE, 6000)
    if kind == "one id":
        ids[:] = 7
    elif kind == "period":
        ids = np.resize(ids[:23], 6000)
    elif kind == "one id between others":
        ids[::2] = 7
    elif kind == "other followers":
        ids[:] = 7
        ids[::50] = np.arange(120) % VOCAB_SIZE
    written = ids.tolist()
    changes: list[tuple[Any, ...]] = []
    for at in range(2000, 6000, 40):
        drafts = written[at + 36 : at + 40]
        changes += [
            ("append", written[at : at + 40]),
            ("draft", drafts, at % 3),
            ("rewind", at % 7),
            ("append", [3, 3, 7]),
        ]
    changes += [
        ("rewind", 100),
        ("append", written[:300]),
        ("rewind", 1500),
        ("append", written[:90]),
        ("rewind", 9999),
    ]
    arguments = size, 700 if size == 2 else WHOLE_HISTORY, [5], VOCAB_SIZE
    check(both, "NGramIndex", lambda history: (history, *arguments), written[:1500], written[1500:2000], changes)


@pytest.mark.usefixtures("both")
def test_a_history_of_one_id_is_read_in_linear_time() -> None:
    """With a chain as long as the history, this would take minutes."""
    history = _compiled_history([7] * 100_000)
    index = compiled.core.NGramIndex(history, 3, WHOLE_HISTORY, [], 150_000)
    for _ in range(50_000):
        history.append(7)
        index.advance(history, 7)
        assert index.edit(history, 150_000)[3] == [7]


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("prompt_length", [32_768, 28_000, 0])
def test_a_request_of_32k_ids_takes_less_than_600_kb(prompt_length: int) -> None:
    ids = np.random.default_rng(0).integers(0, 150_000, 32_768).astype(np.int32)
    history = _compiled_history(ids[:prompt_length])
    index = compiled.core.NGramIndex(history, 3, WHOLE_HISTORY, [], 150_000)
    largest = 0
    for token_id in [*ids[prompt_length:].tolist(), *range(1000)]:
        history.append(token_id)
        index.advance(history, token_id)
        largest = max(largest, history.nbytes + index.nbytes)
    assert 300_000 < largest < 600_000


def _of_long_history(make: Callable[[Any, Any], Any], prepare: str, call: str) -> Callable[[], object]:
    """A call of a method of a new state, which reads a history of more than 65,536 ids."""
    history = _compiled_history([0])
    history.extend(np.arange(70_000, dtype=np.int32))
    state = make(compiled.core, history)
    methods = {"edit": lambda: state.edit(history, 1 << 20), "rewind": lambda: state.rewind(history)}
    if prepare:
        methods[prepare]()
    if call == "rewind":
        history.rewind(36_000)
    return methods[call]


@pytest.mark.slow
@pytest.mark.usefixtures("both")
@pytest.mark.parametrize(
    ("make", "prepare", "call"),
    [
        (lambda core, history: core.Penalty(history, 0.5, False), "", "edit"),
        (lambda core, history: core.Penalty(history, 0.5, False), "edit", "rewind"),
        (lambda core, history: core.NGramIndex(history, 3, 1 << 30, [], 1 << 20), "", "rewind"),
    ],
    ids=["edit of a penalty", "rewind of a penalty", "rewind of n-grams"],
)
def test_other_threads_run_while_a_long_history_is_read(make: Any, prepare: str, call: str) -> None:
    assert other_threads.run_during([_of_long_history(make, prepare, call) for _ in range(30)])


@pytest.mark.usefixtures("both")
def test_other_threads_run_while_a_long_history_is_indexed() -> None:
    core: Any = compiled.core
    history = _compiled_history([0])
    history.extend(np.arange(70_000, dtype=np.int32))
    assert other_threads.run_during([lambda: core.NGramIndex(history, 3, 1 << 30, [], 1 << 20)] * 30)


def _compiled_history(prompt: Any) -> Any:
    return compiled.core.History(np.asarray(prompt, np.int32), np.empty(0, np.int32))


@pytest.mark.usefixtures("both")
def test_another_history_is_refused() -> None:
    core = compiled.core
    long, short = _compiled_history([1, 2] * 40), _compiled_history([1, 2] * 30)
    index = core.NGramIndex(long, 2, WHOLE_HISTORY, [], 100)
    breaker = core.LoopBreaker(long, 2, 9, 4, 2, 1, [], [], [], None)
    penalty = core.Penalty(long, 1.0, False)
    penalty.edit(long, 100)
    for call in (index.edit, penalty.edit, breaker.edit):
        with pytest.raises(LogitportError, match="did not follow this history"):
            call(short, 100)
    for advance in (index.advance, breaker.advance):
        with pytest.raises(LogitportError, match="did not follow this history"):
            advance(short, 1)
    with pytest.raises(LogitportError, match="did not follow this history"):
        breaker.rewind(_compiled_history([1, 2] * 50))
    for rewind in (index.rewind, penalty.rewind):
        with pytest.raises(InvalidArgument, match="no ids were cut off"):
            rewind(short)


@pytest.mark.usefixtures("both")
def test_arguments_that_would_break_memory_are_refused() -> None:
    core, history = compiled.core, _compiled_history([1])
    for make in (
        lambda: core.NGramIndex(history, 0, 5, [], 10),
        lambda: core.NGramIndex(history, 1, -1, [], 10),
        lambda: core.ThinkingBlocks(history, -1, [1], [2], None),
        lambda: core.ThinkingBlocks(history, 1, [], [2], None),
        lambda: core.ThinkingBlocks(history, 1, [1], [], None),
        lambda: core.LoopBreaker(history, 1, 9, 4, 2, 0, [], [], [], None),
        lambda: core.LoopBreaker(history, 2**31, 9, 4, 2, 0, [], [], [], None),
        lambda: core.LoopBreaker(history, 2, 0, 4, 2, 0, [], [], [], None),
        lambda: core.LoopBreaker(history, 2, 9, -1, 2, 0, [], [], [], None),
        lambda: core.LoopBreaker(history, 2, 9, 4, -1, 0, [], [], [], None),
        lambda: core.LoopBreaker(history, 2, 9, 4, 2, 4, [], [1], [2], None),
        lambda: core.LoopBreaker(history, 2, 9, 4, 2, 3, [], [1], [], None),
        lambda: core.BannedSequences([[1], []], False),
        lambda: core.PhaseTracker(history, [([], 1, -1, False)], 0),
        lambda: core.PhaseTracker(history, [([1], 4, -1, False)], 0),
        lambda: core.PhaseTracker(history, [([1], 1, -1, False)], -1),
    ):
        with pytest.raises(InvalidArgument, match="do not fit"):
            make()


@pytest.mark.usefixtures("both")
def test_arrays_of_other_types_are_refused() -> None:
    core = compiled.core
    for wrong in (np.array([2**32 + 1]), np.array([1.7]), np.array([True]), np.array([[1]], np.int32)):
        for make in (core.TokenList, lambda ids: core.BiasList(ids, [1.0]), lambda ids: core.History(ids, ids)):
            with pytest.raises(TypeError):
                make(wrong)
