"""Stubs of engines that are not installed: workers have them, and other processes do not."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import History, PayloadError
from logitport_server.executors.inline import InlineExecutor
from logitport_server.registry.loader import PayloadLoader
from logitport_session import stubs
from logitport_session.dialects import RequestContext
from tests.engine_stubs import importable_stubs

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_server.executors.base import Executor
    from logitport_session.processor_sources.source import Source

    Ship = Callable[..., Source]

pytestmark = pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")


@pytest.fixture
def batch_processor(ship: Ship) -> Source:
    """A shipped class from a process in which vLLM can be imported."""
    with importable_stubs():
        from vllm.logger import init_logger
        from vllm.sampling_params import SamplingParams
        from vllm.utils.torch_utils import async_tensor_h2d
        from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality
        from vllm.v1.sample.logits_processor.builtin import process_dict_updates

        logger = init_logger("an.author")

        class Forces(LogitsProcessor):  # type: ignore[misc] # vLLM is not installed
            def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
                self.forced: dict[int, int] = {}
                self.bias = async_tensor_h2d([1.0], device=device, dtype=torch.float32)
                logger.info_once("made for %s", device)
                logger.info("made")

            def is_argmax_invariant(self) -> bool:
                return False

            def update_state(self, batch_update: BatchUpdate | None) -> None:
                assert batch_update is None or isinstance(batch_update, BatchUpdate)
                for *_, kind in batch_update.moved if batch_update else ():
                    assert isinstance(kind, MoveDirectionality)
                process_dict_updates(self.forced, batch_update, self.new_state)

            @staticmethod
            def new_state(params: Any, prompt: Any, output: Any) -> Any:
                assert type(params) is SamplingParams
                return params.extra_args and params.extra_args.get("force")

            def apply(self, logits: torch.Tensor) -> torch.Tensor:
                for index, token_id in self.forced.items():
                    logits[index, token_id] += self.bias[0]
                return logits

        return ship(Forces)


def start(executor: Executor, source: Source, *forced: int) -> tuple[Any, list[Any]]:
    dialect = executor.load(source)
    context = RequestContext("r", History([1]), {}, 4)
    return dialect, [dialect.start(context, {"force": token_id}) for token_id in forced]


def test_a_worker_has_the_stubs_and_this_process_does_not(workers: Executor, batch_processor: Source) -> None:
    dialect, (one, other) = start(workers, batch_processor, 2, 3)
    assert dialect.process([one, other], torch.zeros(2, 4)).tolist() == [[0, 0, 1, 0], [0, 0, 0, 1]]
    assert dialect.process([other, one], torch.zeros(2, 4)).tolist() == [[0, 0, 0, 1], [0, 0, 1, 0]]
    assert not [name for name in sys.modules if name.partition(".")[0] == "vllm"]
    assert not [path for path in sys.path if "stubs" in path]


def test_the_error_names_a_package_that_this_process_lacks(batch_processor: Source) -> None:
    with pytest.raises(PayloadError, match=r"vllm is not .*install vllm there, or serve with --isolation process"):
        start(InlineExecutor(PayloadLoader(8)), batch_processor, 1)
    assert not [name for name in sys.modules if name.partition(".")[0] == "vllm"]


def test_a_class_that_only_the_real_engine_has(workers: Executor, ship: Ship) -> None:
    with importable_stubs():
        from vllm.v1.sample.logits_processor import builtin

        builtin.MinPLogitsProcessor = type(
            "MinPLogitsProcessor", (), {"__module__": builtin.__name__, "update_state": id, "apply": id}
        )

        class MinP(builtin.MinPLogitsProcessor):  # type: ignore[misc]
            pass

        source = ship(MinP)
    with pytest.raises(PayloadError, match=r"vllm\.v1\.sample\.logits_processor\.builtin\.MinPLogitsProcessor"):
        start(workers, source, 1)


def test_every_stub_is_listed() -> None:
    assert {"sglang", "vllm"} <= stubs.ENGINES


@pytest.mark.skipif(find_spec("dynamo") is not None, reason="a package of this name is installed here")
def test_a_class_for_dynamo(ship: Ship, workers: Executor) -> None:
    with importable_stubs():
        from dynamo.logits_processing import BaseLogitsProcessor

        class Bans(BaseLogitsProcessor):  # type: ignore[misc] # Dynamo is not installed
            def __init__(self, token_id: int) -> None:
                self.token_id = token_id

            def __call__(self, input_ids: Any, logits: torch.Tensor) -> None:
                assert isinstance(self, BaseLogitsProcessor)
                logits[[self.token_id, input_ids[-1]]] = -1

        source = ship(Bans)
    dialect = workers.load(source)
    state = dialect.start(RequestContext("r", History([1]), {}, 4), {"token_id": 2})
    assert dialect.process([state], torch.zeros(1, 4)).tolist() == [[0, -1, -1, 0]]
