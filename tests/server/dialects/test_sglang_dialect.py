"""SGLang's dialect: one dict for the whole life of a request, and state that cannot be rebuilt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import CustomLogitProcessor, EditProcessor, EditRequest, History, RowEdits
from logitport_builtins import BUILTINS
from logitport_session.dialects import RequestContext, make_dialect
from tests.server.dialects.lost_state import assert_lost

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_session.dialects import Dialect


class RunsAction(CustomLogitProcessor):
    """Calls a function with each dict."""

    __slots__ = ("act",)

    def __init__(self, act: Callable[[dict[str, Any]], Any] = lambda _: None) -> None:
        self.act = act

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        for params in custom_param_list:
            self.act(params)
        return logits


def started(processor: CustomLogitProcessor, params: dict[str, Any] | None = None) -> tuple[Dialect, Any, History]:
    history = History([1, 2], [3])
    dialect = make_dialect(processor, "its name", shipped=True)
    return dialect, dialect.start(RequestContext("r-1", history, {}, 8), params or {}), history


def test_req_has_the_attributes_of_sglang() -> None:
    seen = []
    dialect, state, _ = started(RunsAction(lambda params: seen.append(params["__req__"])))
    dialect.process([state], torch.zeros(1, 8))
    req = seen[0]
    assert (req.rid, list(req.origin_input_ids), list(req.output_ids)) == ("r-1", [1, 2], [3])
    assert req.output_ids[-1:] == req.output_ids[0:]  # it slices, as a list does
    assert req.output_ids.index(3) == 0


def test_one_dict_for_the_whole_life_of_a_request() -> None:
    def count(params: dict[str, Any]) -> None:
        params["calls"] = params.get("calls", 0) + 1

    dialect, state, _ = started(RunsAction(count))
    for _ in range(3):
        dialect.process([state], torch.zeros(1, 8))
    assert state.custom_params["calls"] == 3


def test_a_subclass_of_a_logits_free_processor_that_reads_logits() -> None:
    class Override(EditProcessor):
        def edit(self, request: EditRequest, edits: RowEdits) -> None:
            raise AssertionError

        def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
            return logits + 1

    dialect, state, _ = started(Override())
    assert dialect.reads_logits
    assert dialect.process([state], torch.zeros(1, 8)).tolist() == [[1.0] * 8]


class Configured(CustomLogitProcessor):
    """Has attributes that only `__init__` sets."""

    def __init__(self, keep: Callable[[Configured], object] = lambda _: None) -> None:
        self.factor, self.stops, self._keep = 2.0, [1, 2], keep

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        self._keep(self)
        return logits * self.factor


def test_attributes_that_never_changed_are_not_state() -> None:
    dialect, state, history = started(Configured(), {"given": [0]})
    dialect.process([state], torch.zeros(1, 8))
    dialect.check_rebuildable(state)
    history.rewind(2)
    dialect.rewind(state)
    assert list(state.req.output_ids) == []


class WithAttribute(CustomLogitProcessor):
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        self.calls += 1
        return logits


STATEFUL: list[CustomLogitProcessor] = [
    WithAttribute(),
    Configured(lambda processor: processor.stops.append(3)),
    Configured(lambda processor: setattr(processor, "seen", 1)),
    Configured(lambda processor: delattr(processor, "stops")),
    Configured(lambda processor: setattr(processor, "stops", torch.zeros(2))),
    RunsAction(lambda params: params.update(calls=1)),
    RunsAction(lambda params: params["given"].append(1)),
    RunsAction(lambda params: params.update(given=torch.zeros(3))),
    RunsAction(lambda params: params.update(given=np.zeros(3))),
    RunsAction(lambda params: params.pop("given")),
    RunsAction(lambda params: setattr(params["__req__"], "calls", 1)),
    RunsAction(lambda params: params.pop("__req__")),
]


@pytest.mark.parametrize("processor", STATEFUL)
def test_state_that_cannot_be_rebuilt(processor: CustomLogitProcessor) -> None:
    dialect, state, history = started(processor, {"given": [0]})
    dialect.process([state], torch.zeros(1, 8))
    assert_lost(dialect, state, history, 2)


def test_only_processors_that_declare_it_run_on_the_shared_thread() -> None:
    class Reading(CustomLogitProcessor):
        def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
            return logits

    assert make_dialect(Reading, "its name", shipped=False).takes_long
    assert not make_dialect(BUILTINS["disallowed_tokens"], "its name", shipped=False).takes_long
