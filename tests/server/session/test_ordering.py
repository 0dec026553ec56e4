"""The order of a step's calls if some processors take all draft offsets at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import History
from logitport.core.drafts import Drafts
from logitport_session.dialects import Dialect
from logitport_session.requests.active_request import ActiveRequest, ChainEntry
from logitport_session.steps.grouping import Row, Rows
from logitport_session.steps.outcome import StepOutcome
from logitport_session.steps.step import run
from logitport_session.steps.step_time import StepTime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logitport_session.dialects import RequestContext

VOCAB = 4
Calls = list[tuple[str, list[list[int]], list[tuple[int, ...]]]]


class RecordsCalls(Dialect):
    """Records its calls: histories, and drafts before each row. Doubles the logits and adds the number in its name."""

    reads_logits = True

    def __init__(self, name: str, calls: Calls, *, takes_drafts: bool) -> None:
        super().__init__(None, name, shipped=True)
        self.takes_drafts = takes_drafts
        self._calls = calls

    def start(self, context: RequestContext, params: dict[str, Any]) -> History:
        return context.history

    def token_callback(self, state: History) -> Callable[[int], object] | None:
        return None

    def rewind(self, state: History) -> None:
        pass

    rebuild = rewind

    def process(self, states: Sequence[History], logits: torch.Tensor) -> torch.Tensor:
        self._calls.append((self.name, [state.token_ids.tolist() for state in states], list(map(tuple, self.drafts))))
        if self.name == "fails":
            raise ValueError
        return logits * 2 + int(self.name[1:])


def requests(chains: Sequence[str], calls: Calls) -> list[ActiveRequest]:
    """Requests with these chains of processor names. A processor takes drafts if its name begins with "t"."""
    dialects: dict[str, Dialect] = {}
    made = []
    for slot, chain in enumerate(chains):
        entries = []
        history = History([slot])
        for name in chain.split():
            if name not in dialects:
                dialects[name] = RecordsCalls(name, calls, takes_drafts=name[0] == "t")
            entries.append(ChainEntry(dialects[name], history))
        made.append(ActiveRequest(slot, 0, history, entries, skip=False))
    return made


def step(chains: Sequence[str], drafts: Mapping[int, Sequence[int]]) -> tuple[Calls, torch.Tensor, StepOutcome]:
    calls: Calls = []
    made = requests(chains, calls)
    rows = [(request, offset) for request in made for offset in range(1 + len(drafts.get(request.slot, [])))]
    logits, outcome = torch.zeros(len(rows), VOCAB), StepOutcome()
    placed = Rows(Row(at, *row) for at, row in enumerate(rows))
    trees = {made[slot]: ids if isinstance(ids, Drafts) else Drafts(ids) for slot, ids in drafts.items()}
    run(placed, trees, VOCAB, logits, outcome, StepTime(60.0))
    assert all(len(request.history) == 1 for request in made)
    assert all(entry.dialect.drafts == () for request in made for entry in request.chain)
    return calls, logits[:, 0], outcome


def test_a_processor_that_takes_drafts_is_called_once_with_histories_without_drafts() -> None:
    calls, _, outcome = step(["t1", "t1"], {0: [5, 6]})
    assert calls == [("t1", [[0], [0], [0], [1]], [(), (5,), (5, 6), ()])]
    assert outcome.applied == {"t1": 4}


def test_without_drafts_none_are_passed() -> None:
    calls, _, _ = step(["t1 p2", "p2 t1"], {})
    assert calls == [("t1", [[0]], []), ("p2", [[1]], []), ("p2", [[0]], []), ("t1", [[1]], [])]


def test_other_processors_are_called_once_per_draft_offset() -> None:
    calls, logits, _ = step(["p1 t2 p3"], {0: [5]})
    assert calls == [
        ("p1", [[0]], []),
        ("p1", [[0, 5]], []),
        ("t2", [[0], [0]], [(), (5,)]),
        ("p3", [[0]], []),
        ("p3", [[0, 5]], []),
    ]
    assert logits.tolist() == [((0 * 2 + 1) * 2 + 2) * 2 + 3] * 2


def test_a_tree_is_walked_depth_first_and_each_draft_is_appended_once() -> None:
    calls, _, _ = step(["p1 t2"], {0: Drafts([5, 6, 7, 8], [-1, -1, 0, 0])})
    assert calls == [
        *[("p1", [[0, *path]], []) for path in ((), (5,), (5, 7), (5, 8), (6,))],
        ("t2", [[0]] * 5, [(), (5,), (6,), (5, 7), (5, 8)]),
    ]


@pytest.mark.parametrize(
    "chains",
    [
        ["t1", "p1"],
        ["p1 p2 t3 t4 p5", "t1 p2", "p3 p4 t5", "p1"],
        ["t1 t1 t1", "p1 t1 p1"],
        ["p1 t2", "t2 p1", "p1 p1 p1 t2"],
    ],
)
@pytest.mark.parametrize("drafts", [{}, {0: [7]}, {1: [7]}, {0: [5, 6], 1: [7]}])
def test_each_row_passes_through_its_chain_in_order(chains: list[str], drafts: dict[int, list[int]]) -> None:
    _, logits, outcome = step(chains, drafts)
    expected = []
    for slot, chain in enumerate(chains):
        value = 0
        for name in chain.split():
            value = value * 2 + int(name[1:])
        expected += [value] * (1 + len(drafts.get(slot, [])))
    assert logits.tolist() == expected
    assert not outcome.failures


def test_a_failed_request_is_not_passed_to_later_processors() -> None:
    calls, _, outcome = step(["fails t1", "p1 t1"], {0: [5], 1: [6]})
    assert set(outcome.failures) == {0}
    assert [call for call in calls if call[0] == "t1"] == [("t1", [[1], [1]], [(), (6,)])]
