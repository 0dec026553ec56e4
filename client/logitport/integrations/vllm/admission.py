"""Checks a request's chain before vLLM accepts the request, while it can still be refused with an HTTP status."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from typing import Any

import orjson

from logitport.errors import InvalidParams, LogitportError
from logitport.integrations.common import environment, tenants
from logitport.integrations.common.circuit_breaker import SESSION_ERRORS
from logitport.integrations.common.session_holder import SessionHolder
from logitport.integrations.vllm import responses
from logitport.integrations.vllm.engine import eos_token_ids
from logitport.integrations.vllm.middleware import current_headers
from logitport.integrations.vllm.request_spec import chain, failure_id, sampling_params
from logitport.integrations.vllm.runner_context import find_config
from logitport.request import Request

# How long an accepted chain is not checked again. If its processor is deleted meanwhile, the request fails later.
_VALID_SECONDS = 60.0
_MAX_VALID = 1024


class Admission:
    """Tries each chain in a session of its own, in the engine's front end. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = SessionHolder(environment.client)
        self._valid_until: OrderedDict[bytes, float] = OrderedDict()

    def check(self, params: Any) -> None:
        """Try the chain of a `SamplingParams`.

        Raises:
            vllm.exceptions.VLLMValidationError: the chain is malformed, or the service refuses it; status 400.
            vllm.exceptions.GracefulHTTPError: the service is unavailable, status 503; or it has a defect, status 500.
        """
        try:
            self._check(params)
        except LogitportError as error:
            raise responses.refusal(error) from None

    def _check(self, params: Any) -> None:
        failure_id(params)
        requested = chain(params, environment.default_chain())
        if not requested:
            return
        tenant = _set_tenant(params)
        request = Request(processors=requested, sampling_params=sampling_params(params), tenant=tenant)
        digest = _digest(request)
        with self._lock:
            if time.monotonic() < self._valid_until.get(digest, 0.0):
                return
            try:
                session = self._holder.ensure_open(_options)
                session.remove(session.add(request))
            except SESSION_ERRORS as error:
                self._holder.discard(error)
                raise
            except LogitportError:
                self._holder.record_success()
                raise
            self._holder.record_success()
            self._valid_until[digest] = time.monotonic() + _VALID_SECONDS
            while len(self._valid_until) > _MAX_VALID:
                self._valid_until.popitem(last=False)


# Used if the front end does not show its vocabulary size: larger than any model's.
_ANY_VOCAB_SIZE = 1 << 20

_admission = Admission()


def _options() -> dict[str, Any]:
    """Return the options of the session."""
    config = find_config()
    model = None if config is None else config.model_config
    return {
        "vocab_size": model.get_vocab_size() if model else _ANY_VOCAB_SIZE,
        "model_name": str(model.model) if model else "",
        "tokenizer_id": str(model.tokenizer or "") if model else "",
        "eos_token_ids": eos_token_ids(model) if model else (),
        "engine": "vllm, admission",
        "transport": "grpc",
        "reconnect_seconds": 0.0,
    }


def check(params: Any) -> None:
    """Call `Admission.check` of this process's instance."""
    _admission.check(params)


def _set_tenant(params: Any) -> str:
    """Write the tenant into the parameters for vLLM's workers, over any that a client has written, and return it."""
    tenant = tenants.tenant_of(tenants.EngineRequest(current_headers(), params))
    if tenant or tenants.KEY in (params.extra_args or {}):
        params.extra_args = {**(params.extra_args or {}), tenants.KEY: tenant}  # the caller's dictionary is not changed
    return tenant


def _digest(request: Request) -> bytes:
    try:
        data = orjson.dumps(
            [request.processors, request.sampling_params, request.tenant], option=orjson.OPT_SERIALIZE_NUMPY
        )
    except TypeError as error:
        raise InvalidParams(f"processors or sampling parameters are not JSON: {error}") from error
    return hashlib.blake2b(data).digest()
