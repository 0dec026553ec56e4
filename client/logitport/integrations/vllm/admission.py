"""Checks a request's chain before vLLM accepts the request, while it can still be refused with an HTTP status."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import orjson

from logitport.errors import InvalidParams, LogitportError, ProcessorTimedOut
from logitport.integrations.common import environment, tenants
from logitport.integrations.common.circuit_breaker import SESSION_ERRORS
from logitport.integrations.common.session_holder import SessionHolder
from logitport.integrations.vllm import responses
from logitport.integrations.vllm.engine import eos_token_ids
from logitport.integrations.vllm.fair_slots import FairSlots
from logitport.integrations.vllm.middleware import current_headers
from logitport.integrations.vllm.request_spec import chain, failure_id, sampling_params
from logitport.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from logitport.client import Client
    from logitport.session.frames import Handle
    from logitport.session.session import Session

# How long an accepted chain is not checked again. If its processor is deleted meanwhile, the request fails later.
_VALID_SECONDS = 60.0
_MAX_VALID = 1024
# Admissions at the same time, each with a session and a thread of its own.
_MAX_CHECKS = 16
_MAX_IDLE = 2
# The engine admits the request again, and all of its requests wait for that. A chain that takes longer is refused.
_MAX_ADMISSION_SECONDS = 1.0
_MAX_TRIALS = 3


class Admission:
    """Tries chains at the service, in the engine's front end. Thread-safe, apart from `prepare`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[SessionHolder] = []
        self._client: Client | None = None
        self._valid_until: OrderedDict[bytes, float] = OrderedDict()
        self._slots = FairSlots(_MAX_CHECKS)
        self._threads = ThreadPoolExecutor(_MAX_CHECKS, "logitport admission")
        # The parameters that `prepare` has accepted in this context.
        self._prepared: ContextVar[Any] = ContextVar("logitport_prepared", default=None)

    async def prepare(self, params: Any, config: Any) -> None:
        """Try the chain of a `SamplingParams` on a thread; the `check` that follows in the same context is free.

        Slow chains of one tenant, or without tenants one slow chain, leave threads for the others.

        Raises:
            Exception: as `check`.
        """
        with _refusing():
            untried = self._untried(params)
            if untried is not None:
                request, digest = untried
                party = request.tenant or digest
                await self._slots.acquire(party)
                loop = asyncio.get_running_loop()
                trial = loop.run_in_executor(self._threads, self._try, request, digest, _options(config))
                # A client that disconnects ends the wait, but not the thread.
                trial.add_done_callback(lambda _: self._slots.release(party))
                await asyncio.shield(trial)
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
            untried = self._untried(params)
            if untried is not None:
                self._try(*untried, _options(config))

    def _untried(self, params: Any) -> tuple[Request, bytes] | None:
        """Return the request to try and its digest; None without a chain, or if it was accepted recently.

        Writes the tenant into the parameters.
        """
        failure_id(params)
        requested = chain(params, environment.default_chain())
        if not requested:
            return None
        tenant = _set_tenant(params)
        request = Request(processors=requested, sampling_params=sampling_params(params), tenant=tenant)
        digest = _digest(request)
        with self._lock:
            is_valid = time.monotonic() < self._valid_until.get(digest, 0.0)
        return None if is_valid else (request, digest)

    def _try(self, request: Request, digest: bytes, options: Mapping[str, Any]) -> None:
        with self._lock:
            holder = self._idle.pop() if self._idle else SessionHolder(self._connect)
        try:
            _admit(holder.ensure_open(lambda: options), request)
        except SESSION_ERRORS as error:
            holder.discard(error)
            raise
        except LogitportError:
            holder.record_success()
            raise
        else:
            holder.record_success()
            with self._lock:
                self._valid_until[digest] = time.monotonic() + _VALID_SECONDS
                while len(self._valid_until) > _MAX_VALID:
                    self._valid_until.popitem(last=False)
        finally:
            with self._lock:
                keep = len(self._idle) < _MAX_IDLE
                if keep:
                    self._idle.append(holder)
            if not keep:
                holder.close()

    def _connect(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = environment.client()
            return self._client


def _admit(session: Session, request: Request) -> None:
    """Admit the request and remove it. Raises ProcessorTimedOut if the engine would wait too long for the same.

    The first admission loads the processors, and the second may load them into another worker.
    """
    handles: list[Handle] = []
    try:
        for _ in range(_MAX_TRIALS):
            began = time.monotonic()
            handles.append(session.add(request))
            seconds = time.monotonic() - began
            if seconds <= _MAX_ADMISSION_SECONDS:
                return
    finally:
        for handle in handles:
            session.remove(handle)
    raise ProcessorTimedOut(
        f"the request's processors take {seconds:.1f} s to admit a request after they are loaded, and the engine waits "
        f"for at most {_MAX_ADMISSION_SECONDS:g} s; move slow work from validate_params and start to __init__"
    )


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except LogitportError as error:
        raise responses.refusal(error) from None


# Used if the front end does not show its vocabulary size: larger than any model's.
_ANY_VOCAB_SIZE = 1 << 20

_admission = Admission()


def _options(config: Any) -> dict[str, Any]:
    """Return the options of a session."""
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


def _digest(request: Request) -> bytes:
    try:
        data = orjson.dumps(
            [request.processors, request.sampling_params, request.tenant], option=orjson.OPT_SERIALIZE_NUMPY
        )
    except TypeError as error:
        raise InvalidParams(f"processors or sampling parameters are not JSON: {error}") from error
    return hashlib.blake2b(data).digest()
