"""Whether a request's chain can be served, asked before vLLM takes it: the last moment to refuse it properly."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from http import HTTPStatus
from typing import Any, NoReturn

import orjson

from logitport.errors import InvalidParams, LimitExceeded, LogitportError, NotAuthenticated
from logitport.integrations.common import environment
from logitport.integrations.common.circuit_breaker import SESSION_ERRORS
from logitport.integrations.common.session_holder import SessionHolder
from logitport.integrations.vllm.engine import eos_token_ids
from logitport.integrations.vllm.request_spec import chain, failure_id, sampling_params
from logitport.integrations.vllm.runner_context import calling_config
from logitport.request import Request

# What the operator has to mend, or time.
_NOT_THE_CALLERS = (*SESSION_ERRORS, NotAuthenticated, LimitExceeded)
# What was found good is taken for good for so long: a processor may be deleted, and then its request fails later.
_GOOD_SECONDS = 60.0
_GOOD_KEPT = 1024


class Admission:
    """Tries each chain on a session of its own, of the engine's front end. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = SessionHolder(environment.client)
        self._good: OrderedDict[bytes, float] = OrderedDict()

    def check(self, params: Any) -> None:
        """Try what a `SamplingParams` asks for.

        Raises:
            ValueError: its chain is malformed, or the service refuses it; vLLM answers with status 400.
            vllm.exceptions.GracefulHTTPError: there is no service that can be asked; status 503.
        """
        failure_id(params)
        asked = chain(params, environment.default_chain())
        if not asked:
            return
        request = Request(processors=asked, sampling_params=sampling_params(params))
        digest = _digest(request)
        with self._lock:
            if time.monotonic() < self._good.get(digest, 0.0):
                return
            try:
                session = self._holder.opened(_options)
                session.remove(session.add(request))
            except _NOT_THE_CALLERS as error:
                if isinstance(error, SESSION_ERRORS):
                    self._holder.lose(error)
                _raise_unavailable(error)
            except LogitportError as error:
                self._holder.answered()
                raise ValueError(f"logitport: {type(error).__name__}: {error}") from error
            self._holder.answered()
            self._good[digest] = time.monotonic() + _GOOD_SECONDS
            while len(self._good) > _GOOD_KEPT:
                self._good.popitem(last=False)


# Where the front end does not tell: all ids of any model are within.
_ANY_VOCAB_SIZE = 1 << 20

_admission = Admission()


def _options() -> dict[str, Any]:
    """What the session is told of the engine."""
    config = calling_config()
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
    """As `Admission.check`, in this process's one."""
    _admission.check(params)


def _digest(request: Request) -> bytes:
    try:
        asked = orjson.dumps([request.processors, request.sampling_params], option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise InvalidParams(f"logitport: not what JSON can hold: {error}") from error
    return hashlib.blake2b(asked).digest()


def _raise_unavailable(error: LogitportError) -> NoReturn:
    try:
        from vllm.exceptions import GracefulHTTPError
    except ImportError:  # an older vLLM: the error as it is, which is answered with status 500
        raise error from None
    raise GracefulHTTPError(f"logitport: {error}", HTTPStatus.SERVICE_UNAVAILABLE) from error
