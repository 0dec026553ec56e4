"""Checks a request's chain before vLLM accepts the request, while it can still be refused with an HTTP status."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from logitport.errors import LogitportError
from logitport.integrations.common import environment, tenants
from logitport.integrations.common.trials import ANY_VOCAB_SIZE, Trials
from logitport.integrations.vllm import responses
from logitport.integrations.vllm.engine import eos_token_ids
from logitport.integrations.vllm.middleware import current_headers
from logitport.integrations.vllm.request_spec import chain, sampling_params
from logitport.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterator


class Admission:
    """Tries chains at the service, in the engine's front end. Thread-safe, apart from `prepare`."""

    def __init__(self) -> None:
        self.trials = Trials()
        # The parameters that `prepare` has accepted in this context.
        self._prepared: ContextVar[Any] = ContextVar("logitport_prepared", default=None)

    async def prepare(self, params: Any, config: Any) -> None:
        """Try the chain of a `SamplingParams` on a thread; the `check` that follows in the same context is free.

        Raises:
            Exception: as `check`.
        """
        with _refusing():
            request = _request_of(params)
            if request is not None:
                await self.trials.run_on_thread(request, _options(config))
        self._prepared.set(params)

    def check(self, params: Any, config: Any = None) -> None:
        """Try the chain of a `SamplingParams`.

        Args:
            params: the parameters; the tenant is written into them.
            config: the `VllmConfig`; None if the front end does not show it.

        Raises:
            vllm.exceptions.VLLMValidationError: the chain is malformed, or the service refuses it; status 400.
            vllm.exceptions.GracefulHTTPError: the service is unavailable, status 503; or it has a defect, status 500.
        """
        if self._prepared.get() is params:
            return
        with _refusing():
            request = _request_of(params)
            if request is not None:
                self.trials.run(request, _options(config))


def _request_of(params: Any) -> Request | None:
    """Return the request to try; None without a chain. Writes the tenant into the parameters."""
    requested = chain(params, environment.default_chain())
    if not requested:
        return None
    tenant = _set_tenant(params)
    return Request(processors=requested, sampling_params=sampling_params(params), tenant=tenant)


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except LogitportError as error:
        raise responses.refusal(error) from None


_admission = Admission()


def _options(config: Any) -> dict[str, Any]:
    """Return the options of a session."""
    model = None if config is None else config.model_config
    return {
        "vocab_size": model.get_vocab_size() if model else ANY_VOCAB_SIZE,
        "model_name": str(model.model) if model else "",
        "tokenizer_id": str(model.tokenizer or "") if model else "",
        "eos_token_ids": eos_token_ids(model) if model else (),
        "engine": "vllm, admission",
        "transport": "grpc",
        "reconnect_seconds": 0.0,
    }


def check(params: Any, config: Any) -> None:
    """Call `Admission.check` of this process's instance."""
    _admission.check(params, config)


async def prepare(params: Any, config: Any) -> None:
    """Call `Admission.prepare` of this process's instance."""
    await _admission.prepare(params, config)


def _set_tenant(params: Any) -> str:
    """Write the tenant into the parameters for vLLM's workers, over any that a client has written, and return it."""
    tenant = tenants.tenant_of(tenants.EngineRequest(current_headers(), params))
    if tenant or tenants.KEY in (params.extra_args or {}):
        params.extra_args = {**(params.extra_args or {}), tenants.KEY: tenant}  # the caller's dictionary is not changed
    return tenant
