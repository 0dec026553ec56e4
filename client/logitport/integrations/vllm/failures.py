"""Records which requests failed and why, because vLLM cannot report this to its clients."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from logitport.errors import LogitportError

LOG = "LOGITPORT_FAILURES"

_logger = logging.getLogger(__name__)

# The latest failures of this process.
_kept: deque[Failure] = deque(maxlen=1024)


@dataclass(frozen=True)
class Failure:
    """A request that was ended because its chain could not be applied.

    Attributes:
        request_id: vLLM's internal name: the public one with a suffix, and with a prefix if n > 1; "" if this vLLM does
            not show it.
        error: name of the error's class, such as "ProcessorFailed".
        message: the error's message.
        processor: the processor that failed; "" for other errors.
        remote_traceback: inside the processor's own code; "" without one.
        prompt_length: number of prompt ids.
        output_length: number of ids sampled with the chain applied; the forced id follows them.
        forced_token_id: the id that the request gets from then on.
        at: seconds since the Unix epoch.
    """

    request_id: str
    error: str
    message: str
    processor: str
    remote_traceback: str
    prompt_length: int
    output_length: int
    forced_token_id: int
    at: float


def failures(request_id: str = "") -> list[Failure]:
    """Return failures, oldest first: those in the file LOGITPORT_FAILURES, by default the last 1024 of this process.

    vLLM processes requests in a worker process unless VLLM_ENABLE_V1_MULTIPROCESSING=0. To read its records in the
    calling process, set LOGITPORT_FAILURES for both.

    Args:
        request_id: selects one request, as `RequestOutput.request_id` or a response's "id" names it, with all its n
            samples.
    """
    path = os.environ.get(LOG)
    known = _read(Path(path)) if path else list(_kept)
    return [failure for failure in known if not request_id or _matches(failure.request_id, request_id)]


def record(
    error: Exception, *, request_id: str, prompt_length: int, output_length: int, forced_token_id: int
) -> Failure:
    """Store a failure and log it."""
    known = error if isinstance(error, LogitportError) else LogitportError(f"{type(error).__name__}: {error}")
    failure = Failure(
        request_id,
        type(error).__name__,
        known.message,
        known.processor,
        known.remote_traceback,
        prompt_length,
        output_length,
        forced_token_id,
        time.time(),
    )
    _kept.append(failure)
    _logger.error(
        "request %r ends after %d ids by forcing id %d, because its logitport chain failed: %s: %s",
        request_id,
        output_length,
        forced_token_id,
        failure.error,
        known,
    )
    if path := os.environ.get(LOG):
        try:
            with Path(path).open("ab") as log:
                log.write(orjson.dumps(asdict(failure)) + b"\n")
        except OSError as unwritable:
            _logger.error("%s is %s, which cannot be written: %s", LOG, path, unwritable)
    return failure


def _read(path: Path) -> list[Failure]:
    return [Failure(**orjson.loads(line)) for line in path.read_bytes().splitlines()] if path.exists() else []


def _matches(internal_id: str, request_id: str) -> bool:
    """Return whether the internal name is the public one, "-" and a random suffix; n samples prefix "0_", "1_", …."""
    sample, _, parent = internal_id.partition("_")
    names = [internal_id, parent] if sample.isdecimal() else [internal_id]
    return any(name == request_id or name.startswith(f"{request_id}-") for name in names)
