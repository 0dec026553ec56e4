"""Logits on a GPU of the engine, of the server, or of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import Client, CustomLogitProcessor, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")]

VOCAB = 512
INF = float("inf")
SHIPPED_HERE = ("--enable-custom-logit-processor", "--isolation", "none")


class AddOneOnCuda(CustomLogitProcessor):
    """Adds 1 if the logits are on a GPU, in place or not."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits.add_(float(logits.is_cuda)) if custom_param_list[0].get("in_place") else logits + logits.is_cuda


class ToCpu(CustomLogitProcessor):
    """Returns its result on another device."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits.cpu() + 1


class RaisesHalfWay(CustomLogitProcessor):
    """Raises after it has changed the logits."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        logits[:, :7] = 5
        raise ValueError


@pytest.fixture(scope="module")
def cuda_server(serving: Callable[..., Any]) -> Iterator[Any]:
    with serving("--device", "cuda", *SHIPPED_HERE) as running:
        yield running


@pytest.mark.parametrize("transport", ["grpc", "local"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_processors_run_on_the_gpu(cuda_server: Any, device: str, transport: Any, dtype: torch.dtype) -> None:
    free = Request([3], processors=[("no_repeat_ngram", {"ngram_size": 1}), ("disallowed_tokens", {"token_ids": [4]})])
    with Client(cuda_server.target) as client:
        session = client.session(vocab_size=VOCAB, dtype=dtype, device=device, transport=transport)
        with session:
            handles = [
                session.add(Request(processors=[(AddOneOnCuda, {"in_place": True})])),
                session.add(free),
                session.add(Request([3], processors=[*free.processors, (AddOneOnCuda, {})])),
                session.add(Request(processors=[(ToCpu, {})])),
                session.add(Request(processors=[(AddOneOnCuda, {}), (RaisesHalfWay, {})], on_error="skip")),
                session.add(Request(processors=[(ToCpu, {})])),
            ]
            before = torch.randint(-9, 9, (len(handles), VOCAB)).to(device, dtype)
            logits = before.clone()
            result = session.step({handle: [] for handle in handles}).apply(logits)
            assert logits.device.type == device
            denied = torch.zeros(VOCAB, dtype=dtype, device=device)
            denied[[3, 4]] = -INF
            expected = [
                before[0] + 1,
                before[1] + denied,
                before[2] + denied + 1,
                before[3] + 1,
                before[4],
                before[5] + 1,
            ]
            assert torch.equal(logits, torch.stack(expected))
            assert list(result.skipped) == [handles[4]]


def test_the_buffer_of_a_session(cuda_server: Any) -> None:
    """The buffer is host memory. The server copies it to the GPU and back."""
    with Client(cuda_server.target) as client, client.session(vocab_size=VOCAB, dtype=torch.float32) as session:
        handles = [session.add(Request(processors=[(AddOneOnCuda, {})])), session.add(Request())]
        logits = session.logits_buffer(2)
        logits.zero_()
        session.step({handle: [] for handle in handles}).apply(logits)
        assert logits.sum(-1).tolist() == [VOCAB, 0]


def test_apply(cuda_server: Any) -> None:
    with Client(cuda_server.target) as client:
        logits = torch.zeros(2, VOCAB, device="cuda")
        out = client.apply(logits, [Request(processors=[(AddOneOnCuda, {})]), Request()]).logits
        assert out.device == logits.device
        assert out.sum(-1).tolist() == [VOCAB, 0]


def test_auto_takes_the_gpu(start_server: Callable[..., Any]) -> None:
    running = start_server("--device", "auto", *SHIPPED_HERE)
    with Client(running.target) as client:
        assert client.apply(torch.zeros(1, VOCAB), [Request(processors=[(AddOneOnCuda, {})])]).logits.sum() == VOCAB
