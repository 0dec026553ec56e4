"""Describes failed requests, and passes that from vLLM's workers to its front end, which answers the clients."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from logitport.errors import LogitportError

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger(__name__)

# A failure that no front end has taken by then belongs to a request that was aborted.
_VALID_SECONDS = 60.0
_MAX_FILES = 1024


@dataclass(frozen=True)
class Failure:
    """A request that was ended because its chain could not be applied.

    Attributes:
        request_id: vLLM's internal name: the public one with a suffix, and with a prefix if n > 1; "" if this vLLM does
            not show it.
        error: name of the error's class, such as "ProcessorFailed".
        code: its code.
        message: the error's message.
    """

    request_id: str
    error: str
    code: int
    message: str


def record(error: Exception, *, request_id: str, output_length: int, forced_token_id: int) -> Failure:
    """Log a failure, with the traceback inside the processor. Returns its description.

    Args:
        error: the cause.
        request_id: as in `Failure`.
        output_length: number of ids sampled with the chain applied; the forced id follows them.
        forced_token_id: the id that the request gets from then on.
    """
    known = error if isinstance(error, LogitportError) else LogitportError(f"{type(error).__name__}: {error}")
    failure = Failure(request_id, type(error).__name__, known.code, known.message)
    _log.error(
        "request %r ends after %d ids by forcing id %d, because its logitport chain failed: %s: %s",
        request_id,
        output_length,
        forced_token_id,
        failure.error,
        known,
    )
    return failure


class Mailbox:
    """Files in a private folder, one for each failure, because vLLM's processes have no other channel for a hook.

    Rejected: a token id that marks failures, because no id is unused in every model; a socket, because a front end may
    be restarted.

    Args:
        instance_id: vLLM's name of the engine, identical in all of its processes.
    """

    def __init__(self, instance_id: str) -> None:
        self._folder = _private_folder(instance_id)
        self._known: dict[str, Failure] = {}

    def post(self, failure: Failure) -> None:
        """Store a failure. Logs an error if it cannot be written."""
        if self._folder is None or not failure.request_id:
            return
        path = self._folder / _file_name(failure.request_id)
        unfinished = path.with_name(f".{path.name}")
        try:
            self._remove_stale()
            unfinished.write_bytes(orjson.dumps(asdict(failure)))
            unfinished.replace(path)
        except OSError as error:
            _log.error("a failure cannot be reported to vLLM's front end, in %s: %s", self._folder, error)

    def waiting(self) -> Sequence[Failure]:
        """Return the failures that no front end has taken."""
        if self._folder is None:
            return ()
        try:
            names = [name for name in os.listdir(self._folder) if not name.startswith(".")]
        except OSError:
            return ()
        self._known = {name: known for name in names if (known := self._known.get(name) or self._read(name))}
        return list(self._known.values())

    def take(self, failure: Failure) -> None:
        """Remove a failure that a front end has reported."""
        if self._folder is not None:
            with suppress(OSError):
                (self._folder / _file_name(failure.request_id)).unlink()

    def _read(self, name: str) -> Failure | None:
        assert self._folder is not None  # noqa: S101 - it was listed
        try:
            return Failure(**orjson.loads((self._folder / name).read_bytes()))
        except (OSError, ValueError, TypeError):  # another front end has taken it
            return None

    def _remove_stale(self) -> None:
        assert self._folder is not None  # noqa: S101 - the caller has checked it
        files = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for place, path in enumerate(files):
            if len(files) - place >= _MAX_FILES or path.stat().st_mtime < time.time() - _VALID_SECONDS:
                path.unlink(missing_ok=True)


def _file_name(request_id: str) -> str:
    return hashlib.blake2b(request_id.encode(), digest_size=16).hexdigest()


def _private_folder(instance_id: str) -> Path | None:
    """Return the folder of this engine, which only this user can open; None without one."""
    if not instance_id:
        return None
    parent = Path(tempfile.gettempdir()) / f"logitport-vllm-{os.getuid()}"
    folder = parent / _file_name(instance_id)
    try:
        for path in (parent, folder):
            path.mkdir(mode=0o700, exist_ok=True)
            found = path.lstat()
            if found.st_uid != os.getuid() or found.st_mode & 0o7077 or path.is_symlink():
                raise PermissionError(f"{path} belongs to another user, or others may open it")
    except OSError as error:
        _log.warning("vLLM's clients get no error for requests that fail during generation: %s", error)
        return None
    return folder
