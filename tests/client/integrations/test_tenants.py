"""A tenant reaches the service from every hook: this server refuses requests without one."""

from __future__ import annotations

import asyncio
import threading
import weakref
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import Client, InvalidArgument, Request, RequestsFailed
from logitport.integrations import llama_cpp, mlx_lm, transformers
from logitport.integrations.common.engine_step import EngineStep
from logitport.integrations.common.ranks import Ranks
from logitport.integrations.common.trials import Trials
from logitport.integrations.sglang import front_end_patches as sglang_admission
from logitport.integrations.sglang import requests as sglang_requests
from logitport.integrations.sglang.hook import Hook
from logitport.integrations.vllm import Middleware, request_trials, requested_chain
from logitport.integrations.vllm.remote_batch import RemoteBatch, RemoteRequest
from tests.client.integrations.sglang.test_guard import REMOTE, Inputs
from tests.client.integrations.sglang.test_hook import Req, finish_abort  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import RunningServer

VOCAB_SIZE = 64
CHAIN = [["disallowed_tokens", {"token_ids": [63]}]]
PAIRS = [("disallowed_tokens", {"token_ids": [63]})]
REFUSED = "--require-tenant"


@pytest.fixture(scope="module")
def strict(serving: Callable[..., Any]) -> Iterator[RunningServer]:
    with serving("--require-tenant") as running:
        yield running


@pytest.fixture
def strict_client(strict: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("LOGITPORT_TARGET", strict.target)
    monkeypatch.delenv("LOGITPORT_TENANT", raising=False)
    with Client(strict.target) as client:
        yield client


def test_the_server_refuses_requests_without_a_tenant(strict_client: Client) -> None:
    logits = np.zeros((1, VOCAB_SIZE), np.float32)
    with pytest.raises(RequestsFailed, match=r"names no tenant.*--require-tenant.*X-Logitport-Tenant"):
        strict_client.apply(logits, [Request([1], processors=PAIRS)])
    strict_client.apply(logits, [Request([1], processors=PAIRS, tenant="acme")])
    with strict_client.session(vocab_size=VOCAB_SIZE) as session:
        with pytest.raises(InvalidArgument, match=REFUSED):
            session.add(Request([1]))
        session.add(Request([1], tenant="acme"))


@pytest.mark.parametrize("tenant", ["acme", ["acme", "other"]])
def test_transformers(strict_client: Client, tenant: Any) -> None:
    ids, scores = torch.tensor([[5, 6], [5, 6]]), torch.zeros(2, VOCAB_SIZE)
    with transformers.RemoteLogitsProcessor(PAIRS, client=strict_client, tenant=tenant) as processor:
        assert torch.isinf(processor(ids, scores)[:, 63]).all()
    with pytest.raises(InvalidArgument, match=REFUSED):
        transformers.RemoteLogitsProcessor(PAIRS, client=strict_client)(ids, scores)
    with pytest.raises(InvalidArgument, match="3 tenants for a batch of 2 rows"):
        transformers.RemoteLogitsProcessor(PAIRS, client=strict_client, tenant=["a", "b", "c"])(ids, scores)


def test_llama_cpp(strict_client: Client) -> None:
    ids, scores = np.array([5, 6], np.intc), np.zeros(VOCAB_SIZE, np.single)
    with llama_cpp.RemoteLogitsProcessor(PAIRS, client=strict_client, tenant="acme") as processor:
        assert np.isinf(processor(ids, scores)[63])
    with pytest.raises(InvalidArgument, match=REFUSED):
        llama_cpp.RemoteLogitsProcessor(PAIRS, client=strict_client)(ids, scores)


@pytest.mark.usefixtures("mlx")
def test_mlx_lm(strict_client: Client) -> None:
    ids, logits = np.array([5, 6]), np.zeros((1, VOCAB_SIZE), np.float32)
    with mlx_lm.RemoteLogitsProcessor(PAIRS, client=strict_client, tenant="acme") as processor:
        assert np.isinf(processor(ids, logits)[0, 63])
    with pytest.raises(InvalidArgument, match=REFUSED):
        mlx_lm.RemoteLogitsProcessor(PAIRS, client=strict_client)(ids, logits)


def custom_params(headers: list[tuple[bytes, bytes]] | None, sent: Any, processor: str | None = REMOTE) -> Any:
    """Return the `custom_params` that SGLang's scheduler gets for a request with these headers."""
    inputs = Inputs(processor, {"custom_params": sent})
    request = None if headers is None else SimpleNamespace(headers=SimpleNamespace(raw=headers))
    sglang_admission._wrap_generate(lambda manager, inputs, request: None)(None, inputs, request)
    sglang_admission._wrap_normalize(Inputs.normalize)(inputs)
    return inputs.sampling_params["custom_params"]


HEADERS = [(b"x-logitport-tenant", b"acme")]


def test_sglang(strict_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_requests, "plugin_installed", installed := threading.Event())
    installed.set()  # SGLang has loaded the plugin in this process
    for headers, forged, accepted in ((HEADERS, {}, True), (None, {}, False), ([], {"logitport_tenant": "x"}, False)):
        hook, req = Hook(lambda: strict_client, tuple, Ranks(), ""), Req([5])
        params = custom_params(headers, {"logitport": CHAIN} | forged) | {"__req__": weakref.proxy(req)}
        hook.process(torch.zeros(1, VOCAB_SIZE), [params])
        assert (req.to_finish is None) == accepted
        assert accepted or REFUSED in req.to_finish.message
        hook._holder.close()


def test_sglangs_clients_cannot_choose_a_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    forged = {"logitport": [], "logitport_tenant": "other"}
    assert custom_params(HEADERS, forged)["logitport_tenant"] == "acme"
    assert custom_params([], forged)["logitport_tenant"] == ""
    monkeypatch.setenv("LOGITPORT_DEFAULT_PROCESSORS", '[["disallowed_tokens", {"token_ids": [1]}]]')
    assert custom_params(HEADERS, {"logitport_tenant": "other"}, processor=None) == {"logitport_tenant": "acme"}
    assert custom_params(HEADERS, None, processor=None) == {"logitport_tenant": "acme"}
    # A scheduler whose front end has no plugin: what a client wrote is ignored.
    monkeypatch.setattr(sglang_requests, "plugin_installed", threading.Event())
    assert sglang_requests.tenant_in({"logitport_tenant": "other"}) == ""


def params(**extra: Any) -> Any:
    return SimpleNamespace(extra_args={"logitport": CHAIN, **extra}, stop_token_ids=[], eos_token_id=1)


def admitted(headers: list[tuple[bytes, bytes]], sampling_params: Any) -> Any:
    """Check the parameters of a request that arrives by HTTP through the middleware."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.create_task(check())

    async def check() -> None:
        request_trials.check(sampling_params)

    asyncio.run(Middleware(app)({"type": "http", "headers": headers}, None, None))  # type: ignore[arg-type]
    return sampling_params


@pytest.fixture
def without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the function that needs msgspec, which only vLLM installs."""
    monkeypatch.setattr(request_trials, "sampling_params", lambda params: {})
    monkeypatch.setattr(request_trials, "trials", Trials())
    monkeypatch.setattr(requested_chain, "sampling_params", lambda params: {})


@pytest.mark.usefixtures("without_vllm", "strict_client")
def test_vllm() -> None:
    for headers in ([], [(b"x-other", b"acme")]):
        with pytest.raises(ValueError, match=REFUSED):
            admitted(headers, params(logitport_tenant="forged"))
    accepted = admitted(HEADERS, params(logitport_tenant="forged"))
    batch, request = (
        RemoteBatch({"vocab_size": VOCAB_SIZE}, Ranks()),
        RemoteRequest("r", 1, ending_id=1),
    )
    batch.admit(request, partial(requested_chain.make_request, accepted, (), [5], [], "r"))
    step, logits = EngineStep(), torch.zeros(1, VOCAB_SIZE)
    step.add(request, [], 0)
    batch.finish(step, logits)
    batch.release(request)
    assert request.error is None
    assert torch.isinf(logits).nonzero().tolist() == [[0, 63]]
    assert accepted.extra_args["logitport_tenant"] == "acme"


@pytest.mark.usefixtures("without_vllm", "strict_client")
def test_the_callers_own_parameters_are_not_changed() -> None:
    """In vLLM's Python interface they belong to the caller."""
    mine = params()
    extra_args = mine.extra_args
    admitted(HEADERS, mine)
    assert extra_args == {"logitport": CHAIN}
