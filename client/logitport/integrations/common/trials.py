"""Tries a request's chain at the service before the engine gets the request, while it can still be refused."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from functools import cached_property, partial
from typing import TYPE_CHECKING

import orjson

from logitport.errors import InvalidArgument, LogitportError, ProcessorFailed
from logitport.integrations.common import environment
from logitport.integrations.common.circuit_breaker import SessionHolder, is_session_error
from logitport.system.bounded import BoundedTable
from logitport.system.fair_threads import FairThreads

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from logitport.client.client import Client
    from logitport.session import Handle, Session
    from logitport.shipping.request import Request

# Used if the front end does not show its vocabulary size: larger than any model's.
ANY_VOCAB_SIZE = 1 << 20
_OPTIONS = {"transport": "grpc", "reconnect_seconds": 0.0}

# How long an accepted chain is not tried again. If its processor is deleted meanwhile, the request fails later.
_VALID_SECONDS = 60.0
_MAX_VALID = 1024
# Trials at the same time, each with a session and a thread of its own.
_MAX_TRIALS_AT_ONCE = 16
_MAX_IDLE = 2
# The engine admits the request again, and all of its requests wait for that. A chain that takes longer is refused.
_MAX_ADMISSION_SECONDS = 1.0
_MAX_ADMISSIONS = 3


class Trials:
    """Tries chains at the service, in an engine's front end. Thread-safe, apart from `run_on_thread`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[SessionHolder] = []
        self._client: Client | None = None
        # Of an accepted chain, until when it is not tried again, and `Handle.only_denies`.
        self._valid: BoundedTable[bytes, tuple[float, bool]] = BoundedTable(_MAX_VALID)

    @cached_property
    def _threads(self) -> FairThreads:
        # Not started before the first trial: an engine may fork after the import.
        return FairThreads(_MAX_TRIALS_AT_ONCE, "logitport-trial")

    async def run_on_thread(self, request: Request, options: Mapping[str, Any]) -> bool:
        """Try the chain of a request without blocking the event loop. Otherwise as `run`.

        Slow chains of one tenant, or without tenants one slow chain, leave threads for the others.
        """
        digest = _digest(request)
        known = self._known(digest)
        if known is not None:
            return known
        # A client that disconnects ends the wait, but not a trial that has begun.
        work = partial(self._try, request, digest, options)
        return await asyncio.wrap_future(self._threads.submit(request.tenant or digest, work))

    def run(self, request: Request, options: Mapping[str, Any]) -> bool:
        """Try the chain of a request, unless it was accepted within the last minute. Returns `Handle.only_denies`.

        Args:
            request: the chain, the tenant, and what the chain reads of the sampling parameters.
            options: of `Client.session`, but for its connection.

        Raises:
            ProcessorFailed: the engine would wait too long for the chain.
            LogitportError: as `Session.add`, and for a service that is unavailable as `Client.session`.
        """
        digest = _digest(request)
        known = self._known(digest)
        return self._try(request, digest, options) if known is None else known

    def _known(self, digest: bytes) -> bool | None:
        with self._lock:
            until, only_denies = self._valid.get(digest, (0.0, False))
        return only_denies if time.monotonic() < until else None

    def _try(self, request: Request, digest: bytes, options: Mapping[str, Any]) -> bool:
        with self._lock:
            holder = self._idle.pop() if self._idle else SessionHolder(self._connect)
        try:
            only_denies = _admit(holder.ensure_open(lambda: {**options, **_OPTIONS}), request)
        except LogitportError as error:
            if is_session_error(error):
                holder.discard(error)
            else:
                holder.breaker.record_success()
            raise
        else:
            holder.breaker.record_success()
            with self._lock:
                self._valid[digest] = time.monotonic() + _VALID_SECONDS, only_denies
            return only_denies
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


def _admit(session: Session, request: Request) -> bool:
    """Admit the request and remove it. Returns `Handle.only_denies`.

    Raises ProcessorFailed if the engine would wait too long for the same.

    The first admission loads the processors and checks the parameters. The second may load the processors into another
    worker. The service does not check the parameters again.
    """
    handles: list[Handle] = []
    try:
        for _ in range(_MAX_ADMISSIONS):
            began = time.monotonic()
            handles.append(session.add(request))
            seconds = time.monotonic() - began
            if seconds <= _MAX_ADMISSION_SECONDS:
                return handles[-1].only_denies
    finally:
        for handle in handles:
            session.remove(handle)
    raise ProcessorFailed(
        f"the request's processors take {seconds:.1f} s to admit a request after they are loaded, and the engine waits "
        f"for at most {_MAX_ADMISSION_SECONDS:g} s; move slow work from validate_params and start to __init__",
        code=ProcessorFailed.TIMED_OUT,
    )


def _digest(request: Request) -> bytes:
    try:
        data = orjson.dumps(
            [request.processors, request.sampling_params, request.tenant], option=orjson.OPT_SERIALIZE_NUMPY
        )
    except TypeError as error:
        raise InvalidArgument(f"processors or sampling parameters are not JSON: {error}") from error
    return hashlib.blake2b(data).digest()
