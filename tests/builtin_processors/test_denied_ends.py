"""`loop_guard` with the action `end`, and processors that deny the ids that end a sequence."""

from __future__ import annotations

from itertools import permutations, product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import Client, Request
from logitport.core.edits import RowEdits
from logitport.core.history import History
from logitport.errors import InvalidArgument
from logitport.processors import EditRequest
from logitport_builtins import BUILTIN_EDITS
from logitport_builtins.contradictions import check_chain

if TYPE_CHECKING:
    from collections.abc import Sequence

VOCAB_SIZE = 40
ENDS = (2, 4)
TAGS = {"thinking_start_ids": [5], "thinking_end_ids": [6]}
# Each with the number of ids of its shortest cycle. A block has 12 distinct ids, or one.
RULES = [
    ({"repeats": 2, "min_length": 0, "plain_repeats": 0}, 2),
    ({"repeats": 2, "min_length": 0, "plain_repeats": 30}, 24),
    ({"repeats": 2, "min_length": 0, "plain_repeats": 20}, 20),
    ({"repeats": 2, "min_length": 0, "plain_repeats": 30, "max_period": 11}, 30),
    ({"repeats": 3, "min_length": 38, "plain_repeats": 50}, 38),
]
# Processors, and what is stated of them if they deny all ends.
DENYING: list[tuple[list[tuple[str, dict[str, Any]]], str]] = [
    ([("disallowed_tokens", {"token_ids": [9, *ENDS]})], "token_ids of disallowed_tokens: change token_ids"),
    ([("bad_words", {"bad_words_ids": [[one] for one in ENDS]})], "bad_words_ids of bad_words: change bad_words_ids"),
    (
        [("disallowed_tokens", {"token_ids": [2]}), ("bad_words", {"bad_words_ids": [[9, 2], [4]]})],
        "(token_ids of disallowed_tokens|bad_words_ids of bad_words) and .*",
    ),
    ([("disallowed_tokens", {"token_ids": [9, 2]})], ""),
    ([("bad_words", {"bad_words_ids": [[9, 2], [4]]})], ""),
    ([("min_tokens", {"min_tokens": 0})], ""),
    ([], ""),
]


def refusal(chain: Sequence[tuple[str, dict[str, Any]]]) -> str:
    try:
        check_chain([(BUILTIN_EDITS[name](), params) for name, params in chain], History([1]), "", ENDS)
    except InvalidArgument as error:
        return error.message
    return ""


def leaves_no_id(chain: Sequence[tuple[str, dict[str, Any]]], output: Sequence[int]) -> bool:
    """Whether the edits of the row after an output deny all ids."""
    row = RowEdits()
    for name, params in chain:
        processor = BUILTIN_EDITS[name]()
        request = EditRequest(params, History([1], output), VOCAB_SIZE, eos_token_ids=ENDS)
        processor.start(request)
        processor.edit(request, edits := RowEdits())
        row.extend(edits)
    return row.denies_all(VOCAB_SIZE)


def loses_all_ids(chain: Sequence[tuple[str, dict[str, Any]]]) -> bool:
    """Whether an output of one id, or of blocks of 12, has a row without an id left."""
    outputs = ([20] * 60, [*range(20, 32)] * 5)
    return any(leaves_no_id(chain, ids[:length]) for ids in outputs for length in range(61))


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "shortest"), RULES)
def test_chains_that_can_lose_all_ids_are_refused(rule: dict[str, Any], shortest: int) -> None:
    guard = ("loop_guard", {"action": "end", **rule})
    counts = [
        ([("min_tokens", {"min_tokens": shortest})], ""),
        (
            [("min_tokens", {"min_tokens": shortest + 1})],
            f"min_tokens of min_tokens: set min_length of loop_guard to {shortest + 1} or more",
        ),
    ]
    for others, problem in DENYING + counts:
        for chain in permutations([guard, *others]):
            found = refusal(chain)
            assert bool(found) == bool(problem) == loses_all_ids(chain), chain
            if problem:
                with pytest.raises(InvalidArgument, match=f"action of loop_guard .* denied by {problem}"):
                    raise InvalidArgument(found)
    larger = {"action": "end", **rule, "min_length": shortest + 1}
    assert not refusal([("loop_guard", larger), *counts[1][0]]), "the change that the message states"


def test_other_actions_allow_other_ids() -> None:
    for action in ({"action": "report"}, {"action": "deny_next"}, {"action": "end_thinking", **TAGS}):
        assert not refusal([("loop_guard", action), *DENYING[0][0]])


def test_phases_without_a_common_row() -> None:
    for one, other in product([None, "thinking", "answer"], repeat=2):
        phases = [{"phase": phase, "phase_tags": TAGS} if phase else {} for phase in (one, other)]
        chain: list[tuple[str, dict[str, Any]]] = [
            ("loop_guard", {"action": "end", **phases[0]}),
            ("disallowed_tokens", {"token_ids": [*ENDS], **phases[1]}),
        ]
        assert bool(refusal(chain)) == (one == other or None in (one, other))


def test_ends_that_are_denied_in_different_phases() -> None:
    """Each row keeps one of the two ends, unless an answer includes the calls of tools."""
    guard: Any = ("loop_guard", {"action": "end"})
    denials: Any = [
        ("disallowed_tokens", {"token_ids": [end], "phase": phase, "phase_tags": TAGS})
        for end, phase in zip(ENDS, ("thinking", "answer"), strict=True)
    ]
    for chain in permutations([guard, *denials]):
        assert not refusal(chain)
    for phase in ("thinking", "answer"):
        assert refusal([guard, *denials, ("bad_words", {"bad_words_ids": [[one] for one in ENDS], **phase_of(phase)})])


def phase_of(phase: str) -> dict[str, Any]:
    return {"phase": phase, "phase_tags": TAGS}


def test_the_refusal_at_an_admission() -> None:
    chain: Any = [("loop_guard", {"action": "end"}), ("disallowed_tokens", {"token_ids": [2]})]
    with Client.embedded() as client, client.session(vocab_size=VOCAB_SIZE, eos_token_ids=[2]) as session:
        with pytest.raises(InvalidArgument, match=r"action of loop_guard .* token_ids of disallowed_tokens"):
            session.add(Request([1], processors=chain))
        handle = session.add(Request([1], processors=chain[:1]))
        session.step({handle: []}).apply(np.zeros((1, VOCAB_SIZE), np.float32))
