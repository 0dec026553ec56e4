"""Which requests could not be processed, and why: vLLM has no way to tell their callers, so this keeps a record."""

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

# The youngest failures of this process.
_kept: deque[Failure] = deque(maxlen=1024)


@dataclass(frozen=True)
class Failure:
    """A request that was ended because its chain could not be applied.

    Attributes:
        request_id: vLLM's inner name for it: what the caller sees, with a suffix, and with a prefix if n > 1; "" where
            the running vLLM does not show it.
        error: name of the error's class, such as "ProcessorFailed".
        message: what was wrong.
        processor: the processor concerned; "" where none is.
        remote_traceback: inside the processor's own code; "" where there is none.
        prompt_length: ids of its prompt.
        output_length: ids that were sampled with its chain applied; what follows is the forced id.
        forced_token_id: the id that it gets from then on.
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
    """Failures, oldest first: those in the file that LOGITPORT_FAILURES names, or without it this process's last 1024.

    vLLM's requests are processed in its worker: another process than the caller's, unless
    VLLM_ENABLE_V1_MULTIPROCESSING=0. Set LOGITPORT_FAILURES for both to reach the records.

    Args:
        request_id: of one request alone, as `RequestOutput.request_id` or a response's "id" names it; its n samples
            are all listed.
    """
    path = os.environ.get(LOG)
    known = _read(Path(path)) if path else list(_kept)
    return [failure for failure in known if not request_id or _belongs(failure.request_id, request_id)]


def record(
    error: Exception, *, request_id: str, prompt_length: int, output_length: int, forced_token_id: int
) -> Failure:
    """Keep a failure, and log it."""
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
        "request %r is ended after %d ids by forcing id %d, for its logitport chain failed: %s: %s",
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
            _logger.error("%s names %s, which cannot be written: %s", LOG, path, unwritable)
    return failure


def _read(path: Path) -> list[Failure]:
    return [Failure(**orjson.loads(line)) for line in path.read_bytes().splitlines()] if path.exists() else []


def _belongs(inner: str, request_id: str) -> bool:
    """Whether this is the caller's name, "-" and a random suffix; or "0_", "1_", … before that, for n samples."""
    sample, _, parent = inner.partition("_")
    names = [inner, parent] if sample.isdecimal() else [inner]
    return any(name == request_id or name.startswith(f"{request_id}-") for name in names)
