"""Conformance tests of all dialects. To test a new dialect, add a processor of it to `PROCESSORS`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from logitport import CustomLogitProcessor, EditProcessor, EditRequest, History, InvalidArgument, RowEdits
from logitport_session.dialects import Dialect, RequestContext, make_dialect
from logitport_session.stubs.dynamo.logits_processing import BaseLogitsProcessor
from logitport_session.stubs.vllm.v1.sample.logits_processor import AdapterLogitsProcessor, LogitsProcessor
from logitport_session.stubs.vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as SlotLogitsProcessor

if TYPE_CHECKING:
    from collections.abc import Sequence

VOCAB = 16
IDS = st.lists(st.integers(0, VOCAB - 1), max_size=6)
Seen = list[tuple[list[int], dict[str, Any]]]
# The history and the parameters of each row of the last call, as the processor saw them.
SEEN: Seen = []


@classmethod  # type: ignore[misc]
def check_params(cls: type, params: Any) -> None:
    """Of a dict, or of vLLM's SamplingParams."""
    params = getattr(params, "extra_args", params) or {}
    if "bad" in params:
        raise InvalidArgument("bad")
    if "wrong" in params:
        raise ValueError("wrong is no parameter")


class RecordsLogits(CustomLogitProcessor):
    validate_params = check_params

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        for params in custom_param_list:
            req = params["__req__"]
            rest = {key: value for key, value in params.items() if key != "__req__"}
            SEEN.append(([*req.origin_input_ids, *req.output_ids], rest))
        return logits


class RecordsEdits(EditProcessor):
    """Keeps the ids that it was called with, to detect a lost or repeated one."""

    validate_params = check_params

    def start(self, request: EditRequest) -> None:
        request.state = request.history.token_ids.tolist()

    def advance(self, request: EditRequest, token_id: int) -> None:
        assert request.history.last_output == token_id
        request.state.append(token_id)

    def rewind(self, request: EditRequest) -> None:
        del request.state[len(request.history) :]

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        assert request.history.token_ids.tolist() == request.state
        SEEN.append((list(request.state), dict(request.params)))


class RecordsBatches(LogitsProcessor):
    """Follows the batch updates itself."""

    validate_params = check_params

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        assert vllm_config.model_config.get_vocab_size() == VOCAB
        self.rows: dict[int, tuple[list[int], list[int], dict[str, Any]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        if batch_update is None:
            return
        for index in batch_update.removed:
            del self.rows[index]
        for index, params, prompt, output in batch_update.added:
            self.rows[index] = prompt, output, params.extra_args or {}
        for source, target, direction in batch_update.moved:
            moved = self.rows.pop(source)
            if direction.name == "SWAP":
                self.rows[source] = self.rows[target]
            self.rows[target] = moved
        assert len(self.rows) == batch_update.batch_size

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        assert sorted(self.rows) == list(range(len(logits)))
        SEEN.extend(([*prompt, *output], params) for _, (prompt, output, params) in sorted(self.rows.items()))
        return logits


class RecordsRequests(AdapterLogitsProcessor):
    validate_params = check_params

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        def tell(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
            assert logits.shape == (VOCAB,)
            SEEN.append(([*prompt, *output], params.extra_args or {}))
            return logits

        return tell


class RecordsSlots(SlotLogitsProcessor):
    """Reads the buffers of each row's slot."""

    validate_params = check_params

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        assert req_states.vocab_size == VOCAB
        self.slots, self.params = req_states, dict[int, dict[str, Any]]()

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        self.params[req_idx] = sampling_params.extra_args or {}
        return True

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        for slot, pos in zip(ctx.expanded_idx_mapping.tolist(), ctx.pos.tolist(), strict=True):
            assert self.slots.total_len.gpu[slot] == pos + 1
            SEEN.append((self.slots.all_token_ids.gpu[slot, : pos + 1].tolist(), self.params[slot]))
        return logits


class RecordsScores:
    """A processor with transformers' interface."""

    validate_params = check_params

    def __init__(self, **params: Any) -> None:
        self.params = params

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert (input_ids.dtype, input_ids.shape[0], scores.shape) == (torch.int64, 1, (1, VOCAB))
        SEEN.append((input_ids[0].tolist(), self.params))
        return scores.clone()


class RecordsRows(BaseLogitsProcessor):
    """A processor for NVIDIA Dynamo."""

    validate_params = check_params

    def __init__(self, **params: Any) -> None:
        self.params = params

    def __call__(self, input_ids: Sequence[int], logits: torch.Tensor) -> None:
        assert logits.shape == (VOCAB,)
        SEEN.append((list(input_ids), self.params))


PROCESSORS: list[type[Any]] = [
    RecordsLogits,
    RecordsEdits,
    RecordsBatches,
    RecordsRequests,
    RecordsScores,
    RecordsSlots,
    RecordsRows,
]
every_dialect = pytest.mark.parametrize("processor", PROCESSORS)


def dialect_of(processor: type[Any]) -> Dialect:
    return make_dialect(processor, "its name", shipped=True)


class DialectRequest:
    """A request and its state in a dialect."""

    def __init__(self, dialect: Dialect, prompt: list[int], output: list[int], params: dict[str, Any]) -> None:
        self.dialect = dialect
        self.params = params
        self.history = History(prompt, output)
        self.state = dialect.start(RequestContext("r", self.history, {}, VOCAB), params)
        self.advance = dialect.token_callback(self.state)

    def append(self, token_id: int) -> None:
        self.history.append(token_id)
        if self.advance is not None:
            self.advance(token_id)

    def rewind(self, length: int) -> None:
        self.history.rewind(length)
        self.dialect.rewind(self.state)


def call(dialect: Dialect, requests: list[DialectRequest]) -> Seen:
    """Call the processor for one row of each request. Returns what it saw."""
    SEEN.clear()
    states = [request.state for request in requests]
    if dialect.reads_logits:
        result = dialect.process(states, torch.zeros(len(states), VOCAB))
        assert result.shape == (len(states), VOCAB)
    else:
        dialect.edit(states)
    return list(SEEN)


@every_dialect
@given(prompt=IDS, output=IDS, grown=IDS, kept=st.integers(0, 12), missed=IDS, then=IDS)
def test_a_processor_sees_the_history_wherever_it_starts_grows_is_cut_back_or_missed_ids(
    processor: type[Any],
    prompt: list[int],
    output: list[int],
    grown: list[int],
    kept: int,
    missed: list[int],
    then: list[int],
) -> None:
    dialect = dialect_of(processor)
    request = DialectRequest(dialect, prompt, output, {"a": 1})
    assert call(dialect, [request]) == [(prompt + output, {"a": 1})]
    for token_id in grown:
        request.append(token_id)
    assert call(dialect, [request]) == [(prompt + output + grown, {"a": 1})]
    dialect.check_rebuildable(request.state)
    output = (output + grown)[:kept]
    request.rewind(len(prompt) + len(output))
    for token_id in then:
        request.append(token_id)
    assert call(dialect, [request]) == [(prompt + output + then, {"a": 1})]
    request.history.extend(missed)
    dialect.rebuild(request.state)
    for token_id in then:
        request.append(token_id)
    assert call(dialect, [request]) == [(prompt + output + then + missed + then, {"a": 1})]


@every_dialect
def test_each_row_gets_its_own_request(processor: type[Any]) -> None:
    dialect = dialect_of(processor)
    first, second = DialectRequest(dialect, [1], [2], {"n": [1]}), DialectRequest(dialect, [], [3], {})
    assert call(dialect, [second, first, first]) == [([3], {}), ([1, 2], {"n": [1]}), ([1, 2], {"n": [1]})]


@every_dialect
def test_parameters_are_not_modified(processor: type[Any]) -> None:
    dialect = dialect_of(processor)
    params: dict[str, Any] = {"n": [1, {"m": 2}]}
    request = DialectRequest(dialect, [1], [], params)
    call(dialect, [request])
    assert params == {"n": [1, {"m": 2}]}


@every_dialect
def test_parameters_are_checked_by_the_processor(processor: type[Any]) -> None:
    dialect = dialect_of(processor)
    dialect.validate({"good": 1}, {})
    with pytest.raises(InvalidArgument):
        dialect.validate({"bad": 1}, {})
    with pytest.raises(InvalidArgument, match=f"{dialect.name}: wrong is no parameter"):
        dialect.validate({"wrong": 1}, {})
