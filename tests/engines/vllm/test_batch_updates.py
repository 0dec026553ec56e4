"""The persistent batch compared with vLLM's own, and vLLM's own processors in logitport's dialect."""

from __future__ import annotations

import inspect
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import (
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
    MoveDirectionality,
    process_dict_updates,
)
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from logitport import History
from logitport_session.dialects import RequestContext, make_dialect
from logitport_session.dialects.vllm.vllm_batch import VllmBatch
from logitport_session.stubs.vllm import sampling_params as stub
from tests.server.dialects.vllm.test_objects import (  # noqa: F401 - the same, with vLLM's own objects
    test_a_temperature_is_adjusted_as_in_vllm,
    test_defaults_are_those_of_vllm,
    test_ids_that_end_a_sequence,
    test_names_of_other_engines,
    test_params_join_the_extra_args_of_the_engine,
    test_types_that_json_lacks,
    test_values_that_vllm_rejects,
)
from tests.server.dialects.vllm.test_vllm_batch import Request, histories

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport_session.dialects import Dialect

HISTORIES = 10_000
VOCAB = 16


class TheirBatch:
    """vLLM's `InputBatch`, updated from step to step as its model runner updates it."""

    def __init__(self) -> None:
        self.batch = InputBatch(64, 8, 64, torch.device("cpu"), VOCAB, [8], [1])

    def empty(self) -> None:
        self.follow([], set())

    def follow(self, requests: Sequence[Request], renewed: set[Request]) -> BatchUpdate | None:
        batch, names = self.batch, [str(request.name) for request in requests]
        again = {str(request.name) for request in renewed}
        for name in list(batch.req_id_to_index):
            if name not in names or name in again:
                batch.remove_request(name)
        for name in names:
            if name not in batch.req_id_to_index:
                params = SamplingParams(extra_args={"name": name})
                batch.add_request(CachedRequestState(name, [1], [], params, None, ([0],), 0, []))
        batch.condense()
        for index, name in enumerate(names):
            if batch.req_ids[index] != name:
                batch.swap_states(index, batch.req_id_to_index[name])
        assert batch.req_ids == names
        return batch.batch_update_builder.get_and_reset(batch.num_reqs)


def test_the_records_are_those_of_vllm() -> None:
    theirs = TheirBatch()
    for history in histories(HISTORIES):
        ours: VllmBatch[Request] = VllmBatch()
        theirs.empty()
        for requests, renewed in history:
            for request in renewed:
                ours.renew(request)
            changes, update = ours.follow(requests), theirs.follow(requests, renewed)
            if changes is None or update is None:
                assert changes is None
                assert update is None
                continue
            assert changes.removed == update.removed
            assert [(index, str(request.name)) for index, request in changes.added] == [
                (index, params.extra_args["name"]) for index, params, _, _ in update.added
            ]
            assert [(source, target, swaps) for source, target, swaps in changes.moved] == [
                (source, target, kind is MoveDirectionality.SWAP) for source, target, kind in update.moved
            ]
            assert update.batch_size == len(requests)


@dataclass
class DialectRequest:
    """A request as the dialect receives it."""

    dialect: Dialect
    sampling_params: dict[str, Any]
    history: History = field(default_factory=lambda: History([1, 2]))

    def __post_init__(self) -> None:
        context = RequestContext("r", self.history, self.sampling_params, VOCAB, eos_token_ids=(0,))
        self.state = self.dialect.start(context, {})
        self.advance: Any = self.dialect.token_callback(self.state)

    def append(self, token_id: int) -> None:
        self.history.append(token_id)
        self.advance(token_id)

    def alone(self, processor: Callable[..., Any], row: torch.Tensor) -> torch.Tensor:
        """Return the row that an instance of vLLM's processor gives if it has only this request."""
        from logitport_session.stubs.vllm.config import VllmConfig

        made = processor(VllmConfig(VOCAB, 1), torch.device("cpu"), False)
        params = SamplingParams(**{name: value for name, value in self.sampling_params.items() if value is not None})
        params.update_from_generation_config({}, 0)
        temperature = params.temperature if made.is_argmax_invariant() and params.temperature else 1.0
        output = self.history.output_token_ids.tolist()
        made.update_state(BatchUpdate(1, [], [(0, params, [1, 2], output)], []))
        result: torch.Tensor = made.apply(row[None] / temperature)
        return result[0] * temperature


class Forces(AdapterLogitsProcessor):
    """Half of the requests must sample given ids; the callables depend on all of their arguments."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        forced = params.extra_args and params.extra_args.get("force")
        if not forced:
            return None

        def force(prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            mask = torch.full_like(logits, -float("inf"))
            mask[forced[len(output_ids) % len(forced)]] = 0
            mask[prompt_ids] = 0
            return logits + mask

        return force


def draw_params(draw: random.Random) -> dict[str, Any]:
    return {
        "temperature": draw.choice((None, 0.0, 0.5, 1.0, 1.5)),
        "min_p": draw.choice((0.0, 0.0, 0.1, 0.4)),
        "min_tokens": draw.choice((0, 0, 1, 3, 6)),
        "stop_token_ids": draw.sample(range(VOCAB), draw.randrange(3)),
        "logit_bias": draw.choice((None, {draw.randrange(VOCAB): draw.uniform(-5, 5)})),
        "extra_args": draw.choice((None, {"force": [draw.randrange(VOCAB) for _ in range(3)]})),
    }


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("processor", [MinTokensLogitsProcessor, LogitBiasLogitsProcessor, MinPLogitsProcessor, Forces])
def test_processors_of_vllm_treat_each_row_as_if_it_were_alone(processor: Any, seed: int) -> None:
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    dialect, requests = make_dialect(processor, "its name", shipped=True), list[DialectRequest]()
    changed = 0
    for _ in range(64):
        requests = [request for request in requests if draw.random() < 0.9]
        requests += [DialectRequest(dialect, draw_params(draw)) for _ in range(draw.randrange(3))]
        if draw.random() < 0.3:
            draw.shuffle(requests)
        for request in requests:
            request.append(draw.randrange(VOCAB))
            if draw.random() < 0.05:
                request.history.rewind(2)
                dialect.rewind(request.state)
        rows = [request for request in requests if draw.random() < 0.9]
        if not rows:
            continue
        logits = torch.randn(len(rows), VOCAB, generator=generator) * 3
        expected = torch.stack([request.alone(processor, row) for request, row in zip(rows, logits, strict=True)])
        before = logits.clone()
        result = dialect.process([request.state for request in rows], logits)
        assert dialect.failed == {}
        torch.testing.assert_close(result, expected)
        changed += int((result != before).any())
    assert changed > 10


def test_the_stub_has_the_fields_of_vllm() -> None:
    theirs, ours = (inspect.signature(cls).parameters for cls in (SamplingParams, stub.SamplingParams))
    public = {name for name in theirs if not name.startswith("_")} - {"output_text_buffer_length"}
    assert public <= set(ours)
    for name in public - {"output_kind"}:
        assert ours[name].default == theirs[name].default, name


def test_the_stub_has_the_dict_updates_of_vllm() -> None:
    from logitport_session.stubs.vllm.v1.sample.logits_processor import builtin, interface
    from tests.server.dialects.vllm.test_vllm_batch import as_update

    for history in histories(1000):
        batch: VllmBatch[Request] = VllmBatch()
        ours, theirs = dict[int, int](), dict[int, int]()
        for requests, _ in history:
            update = as_update(batch.follow(requests), len(requests))
            builtin.process_dict_updates(ours, update, lambda request, *_: request.sparse)
            if update is not None:
                kinds = {kind: MoveDirectionality[kind.name] for kind in interface.MoveDirectionality}
                moved = [(source, target, kinds[kind]) for source, target, kind in update.moved]
                their = BatchUpdate(update.batch_size, update.removed, update.added, moved)
                process_dict_updates(theirs, their, lambda request, *_: request.sparse)
            assert ours == theirs
