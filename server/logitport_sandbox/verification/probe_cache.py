"""Results of earlier probes, kept in the user's cache folder.

A start with unchanged layers then needs no probe. Each layer that a kept result relies on is still applied to every
worker, and a worker does not start if a layer cannot be applied. So a kept result is wrong only where layers of the
same names stop less than before: with another kernel, other code of this package, another bubblewrap or interpreter.
These are the key. Settings of the machine, limits and capabilities are not part of it: a result that relies on them,
and not on layers, is not kept (`Assessment.relies_on_layers`).

Every file and the folder must belong to this user and be writable by no other, or they are ignored: a result that
another user wrote could claim containment that does not exist.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import secrets
import shutil
import stat
from dataclasses import asdict
from pathlib import Path
from typing import Any

from logitport_sandbox import users
from logitport_sandbox.interpreter import readable_paths
from logitport_sandbox.verification.probe import ProbeResult

logger = logging.getLogger(__name__)

_MAX_BYTES = 1 << 16
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def describe(python: str, layers: frozenset[str]) -> dict[str, Any]:
    """Return what the attempts depend on that the layers stop, as JSON values.

    The user's name is not among it: only files of the present one are read.

    Args:
        python: interpreter of the workers.
        layers: names of the layers that are put up.

    Raises:
        SandboxError: the interpreter cannot run workers.
    """
    return {
        "kernel": list(platform.uname()[2:5]),  # release, version, machine
        "code": _digest_of_sandbox(),
        "layers": sorted(layers),
        "bubblewrap": _identify(shutil.which("bwrap")),
        "python": [python, _identify(python)],
        # Users of their own, which workers of root have, must be able to read the interpreter.
        "readable": [[path, users.closed_part(path)] for path in readable_paths(python)],
    }


def load(key: dict[str, Any]) -> tuple[ProbeResult, ...] | None:
    """Return the results that were saved for this key, or None."""
    path = _path(key)
    if path is None:
        return None
    try:
        text = _read_trusted(path)
        kept = json.loads(text) if text is not None else None
        if kept is None or kept["key"] != key:
            return None
        return tuple(_result(**fields) for fields in kept["results"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        if not isinstance(error, FileNotFoundError):
            logger.warning("%s is ignored, and the sandbox probed again: %s", path, error)
        return None


def save(key: dict[str, Any], results: tuple[ProbeResult, ...]) -> None:
    """Keep the results for this key; without a folder that only this user can write to, do nothing."""
    path = _path(key)
    if path is None:
        return
    text = json.dumps({"key": key, "results": [asdict(result) for result in results]})
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_trusted(path.parent.lstat(), stat.S_ISDIR):
            return
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:  # such as a service without a home folder
        logger.debug("the probe of the sandbox is not kept: %s", error)


def _path(key: dict[str, Any]) -> Path | None:
    """The file for a key; None if the user has no cache folder."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification has relative paths ignored
        base = os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(base):
        return None
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return Path(base, "logitport", f"sandbox-{digest[:32]}.json")


def _open(path: str, _: int) -> int:
    # With the option `opener`, Python closes the descriptor of a folder, too.
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _read_trusted(path: Path) -> str | None:
    """Return the text of a file that only this user can write to. Raises OSError, ValueError."""
    folder = path.parent.lstat()
    # Not blocking: the path may be a pipe. The checks use the opened file, which cannot be exchanged in between.
    with open(path, "rb", opener=_open) as file:
        if not (_is_trusted(folder, stat.S_ISDIR) and _is_trusted(os.fstat(file.fileno()), stat.S_ISREG)):
            raise ValueError("it, or its folder, belongs to another user or can be written by others")
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"it is longer than {_MAX_BYTES} bytes")
    return data.decode()


def _is_trusted(status: os.stat_result, has_kind: Any) -> bool:
    return has_kind(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & _WRITABLE_BY_OTHERS


def _result(what: str, stopped: bool, how: str) -> ProbeResult:
    if not (isinstance(what, str) and isinstance(stopped, bool) and isinstance(how, str)):
        raise TypeError("a result has fields of other types")
    return ProbeResult(what, stopped, how)


def _identify(program: str | None) -> list[Any]:
    """Return what changes when the program is replaced; its own version number would take a process to find."""
    if program is None:
        return []
    try:
        status = os.stat(program)
    except OSError:
        return [program]
    return [os.path.realpath(program), status.st_size, status.st_mtime_ns]


def _digest_of_sandbox() -> str:
    """Return a digest of this package's code, which changes more often than the version where it is developed."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
