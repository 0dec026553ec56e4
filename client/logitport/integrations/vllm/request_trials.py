"""Checks a request's chain before vLLM accepts the request, while it can still be refused with an HTTP status."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from logitport.errors import LogitportError
from logitport.integrations.common import environment, tenants
from logitport.integrations.common.chains import chain_of
from logitport.integrations.common.request_keys import check_keys
from logitport.integrations.common.trials import ANY_VOCAB_SIZE, Trials
from logitport.integrations.vllm import responses
from logitport.integrations.vllm.engine import model_options
from logitport.integrations.vllm.middleware import current_headers
from logitport.integrations.vllm.requested_chain import sampling_params
from logitport.shipping.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterator

trials = Trials()
# vLLM reads these from `extra_args`, and its front end writes some of them.
_ENGINE_KEYS = (
    *("kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode"),
    *("diffusion_seed_canvas", "diffusion_canvas_length", "diffusion_max_steps", "diffusion_read_only"),
)
# The parameters that `prepare` has accepted in this context.
_prepared: ContextVar[Any] = ContextVar("logitport_prepared", default=None)


async def prepare(params: Any, config: Any) -> None:
    """Try the chain of a `SamplingParams` on a thread; the `check` that follows in the same context is free.

    Raises:
        Exception: as `check`.
    """
    with _refusing():
        request = _request_of(params)
        if request is not None:
            await trials.run_on_thread(request, _options(config))
    _prepared.set(params)


def check(params: Any, config: Any = None) -> None:
    """Try the chain of a `SamplingParams`. Thread-safe.

    Args:
        params: the parameters; the tenant is written into them.
        config: the `VllmConfig`; None if the front end does not show it.

    Raises:
        vllm.exceptions.VLLMValidationError: the chain is malformed, or the service refuses it; status 400.
        vllm.exceptions.GracefulHTTPError: the service is unavailable, status 503; or it has a defect, status 500.
    """
    if _prepared.get() is params:
        return
    with _refusing():
        request = _request_of(params)
        if request is not None:
            trials.run(request, _options(config))


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except LogitportError as error:
        raise responses.refusal(error) from None


def _request_of(params: Any) -> Request | None:
    """Return the request to try; None without a chain. Writes the tenant into the parameters."""
    check_keys(params.extra_args, "extra_args", _ENGINE_KEYS)
    chain = chain_of(params.extra_args, environment.default_chain())
    if not chain:
        return None
    tenant = tenants.tenant_of(tenants.EngineRequest(current_headers(), params))
    if tenant or tenants.KEY in (params.extra_args or {}):  # a client may have written one
        params.extra_args = {**(params.extra_args or {}), tenants.KEY: tenant}  # the caller's dictionary is not changed
    return Request(processors=chain, sampling_params=sampling_params(params), tenant=tenant)


def _options(config: Any) -> dict[str, Any]:
    known = {"vocab_size": ANY_VOCAB_SIZE} if config is None else model_options(config.model_config)
    return {**known, "engine": "vllm, admission"}
