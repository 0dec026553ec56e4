"""Random steps give the results of a naive model that processes one row at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from logitport import CustomLogitProcessor, EditProcessor, EditRequest, RowEdits
from logitport.core.drafts import Drafts
from logitport.ops import apply_edits
from logitport_session.steps.grouping import Row, Rows
from logitport_session.steps.outcome import StepOutcome
from logitport_session.steps.step import run
from logitport_session.steps.step_time import StepTime

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_session.requests.active_request import ActiveRequest

VOCAB = 6
INF = float("inf")


class AddInPlace(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        for row, params in enumerate(custom_param_list):
            logits[row] += params["n"]
            if params.get("boom"):
                raise ValueError("half-way through")
        return logits


class ScaleToNew(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        if any(params.get("boom") for params in custom_param_list):
            raise KeyboardInterrupt
        return (logits * torch.tensor([[params["n"]] for params in custom_param_list])).double()


class AddHistory(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> Any:
        if any(params.get("boom") for params in custom_param_list):
            return None
        return logits + torch.tensor([[float(sum(params["__req__"].output_ids))] for params in custom_param_list])


class Edit(EditProcessor):
    def start(self, request: EditRequest) -> None:
        request.state = int(request.history.token_ids.sum()) % VOCAB

    def advance(self, request: EditRequest, token_id: int) -> None:
        request.state = (request.state + token_id) % VOCAB

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        if request.params.get("boom"):
            raise ValueError
        self.add_edits(request.state, request.params["n"], edits)

    def add_edits(self, state: int, n: int, edits: RowEdits) -> None:
        raise NotImplementedError


class Deny(Edit):
    def add_edits(self, state: int, n: int, edits: RowEdits) -> None:
        edits.deny([state, n])


class Allow(Edit):
    def add_edits(self, state: int, n: int, edits: RowEdits) -> None:
        edits.allow([state, n])


class Force(Edit):
    def add_edits(self, state: int, n: int, edits: RowEdits) -> None:
        edits.force(state)


class Bias(Edit):
    def add_edits(self, state: int, n: int, edits: RowEdits) -> None:
        edits.bias([state, n], [n, 1])


Values = list[float]
# The effect of each on one row: (values, sum of output ids, sum of all ids modulo the vocabulary, n).
MODEL: dict[type, Callable[[Values, int, int, int], Values]] = {
    AddInPlace: lambda row, out, state, n: [v + n for v in row],
    ScaleToNew: lambda row, out, state, n: [v * n for v in row],
    AddHistory: lambda row, out, state, n: [v + out for v in row],
    Deny: lambda row, out, state, n: [-INF if i in (state, n) else v for i, v in enumerate(row)],
    Allow: lambda row, out, state, n: [v if i in (state, n) else -INF for i, v in enumerate(row)],
    Force: lambda row, out, state, n: [0.0 if i == state else -INF for i, _ in enumerate(row)],
    Bias: lambda row, out, state, n: [v + n * (i == state) + (i == n) for i, v in enumerate(row)],
}
LOGITS_FREE = (Deny, Allow, Force, Bias)
IDS = st.lists(st.integers(0, VOCAB - 1), max_size=3)


@dataclass
class RequestSpec:
    """One request of a random step."""

    chain: list[tuple[type, dict[str, Any]]]
    prompt: list[int]
    output: list[int]
    drafts: list[int]
    skip: bool


@st.composite
def steps(draw: st.DrawFn, kinds: tuple[type, ...]) -> tuple[list[RequestSpec], list[tuple[int, int]], list[Values]]:
    """Requests, the request and draft offset of each row, and logits."""
    params = st.fixed_dictionaries({"n": st.integers(1, 4)}, optional={"boom": st.sampled_from([False, False, True])})
    specs = draw(
        st.lists(
            st.builds(
                RequestSpec,
                chain=st.lists(st.tuples(st.sampled_from(kinds), params), max_size=3),
                prompt=IDS,
                output=IDS,
                drafts=st.one_of(st.just([]), IDS),
                skip=st.booleans(),
            ),
            min_size=1,
            max_size=4,
        )
    )
    every = [(at, offset) for at, request in enumerate(specs) for offset in range(1 + len(request.drafts))]
    rows = draw(st.lists(st.sampled_from(every), min_size=1, max_size=8))
    logits = draw(
        st.lists(st.lists(st.integers(-8, 8), min_size=VOCAB, max_size=VOCAB), min_size=len(rows), max_size=len(rows))
    )
    return specs, rows, [[float(value) for value in row] for row in logits]


def naive(specs: list[RequestSpec], rows: list[tuple[int, int]], logits: list[Values]) -> tuple[list[Values], set[int]]:
    """Return the rows after their chains, and the failed requests.

    An exception of a logits-free processor fails one request; any other fails all requests of the call.
    """
    result, failed = [list(row) for row in logits], set[int]()
    for offset in range(1 + max(len(request.drafts) for request in specs)):
        here = [(index, at) for index, (at, seen) in enumerate(rows) if seen == offset]
        for place in range(3):
            for kind, act in MODEL.items():
                group = [
                    (index, at)
                    for index, at in here
                    if at not in failed and place < len(specs[at].chain) and specs[at].chain[place][0] is kind
                ]
                booms = {at for _, at in group if specs[at].chain[place][1].get("boom")}
                failed |= booms if kind in LOGITS_FREE or not booms else {at for _, at in group}
                for index, at in group:
                    seen = specs[at].output + specs[at].drafts[:offset]
                    state = (sum(specs[at].prompt) + sum(seen)) % VOCAB
                    result[index] = act(result[index], sum(seen), state, specs[at].chain[place][1]["n"])
    return result, failed


def check(
    admission: Any, step: tuple[list[RequestSpec], list[tuple[int, int]], list[Values]], *, logits_are_here: bool
) -> None:
    specs, placed, before = step
    admit, processors = admission(VOCAB), {kind: kind() for kind in MODEL}
    requests: list[ActiveRequest] = [
        admit(
            *((processors[kind], params) for kind, params in request.chain),
            prompt=request.prompt,
            output=request.output,
            skip=request.skip,
        )
        for request in specs
    ]
    rows = [Row(index, requests[at], offset) for index, (at, offset) in enumerate(placed)]
    drafts = {request: Drafts(spec.drafts) for request, spec in zip(requests, specs, strict=True) if spec.drafts}
    logits, outcome = torch.tensor(before), StepOutcome()
    run(Rows(rows), drafts, VOCAB, logits if logits_are_here else None, outcome, StepTime(60.0))
    if not logits_are_here:
        apply_edits(outcome.pack(VOCAB), logits)

    expected, failed = naive(specs, placed, before)
    assert set(outcome.failures) == {requests[at].slot for at in failed}
    for index, (at, _) in enumerate(placed):
        if at not in failed:
            assert logits[index].tolist() == expected[index]
        elif specs[at].skip:
            assert logits[index].tolist() == before[index]
    alive = [(at, kind) for at, _ in placed if at not in failed for kind, _ in specs[at].chain]
    assert sum(outcome.applied.values()) == len(alive)
    for request, spec in zip(requests, specs, strict=True):
        assert request.history.token_ids.tolist() == spec.prompt + spec.output


@given(step=steps(tuple(MODEL)))
def test_chains_of_any_kind(admission: Any, step: Any) -> None:
    check(admission, step, logits_are_here=True)


@given(step=steps(LOGITS_FREE))
def test_logits_free_chains_sent_as_edits(admission: Any, step: Any) -> None:
    check(admission, step, logits_are_here=False)
