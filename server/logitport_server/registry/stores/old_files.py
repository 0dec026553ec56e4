"""Reads folders of the format before SQLite: one file for each registration and each name.

A file held the SHA-256 of the rest in its first line. A change of several files was a journal, a list of renames and
removals, which a server that was killed may have left.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from logitport_server.registry.records import Binding, Registration

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logitport_server.registry.records import Record

logger = logging.getLogger(__name__)

_FOLDERS: dict[str, type[Registration | Binding]] = {"processors": Registration, "names": Binding}
_JOURNAL = "journal"
_TEMPORARY = ".new-"
_KEPT = "before-sqlite"


class _Plan(BaseModel):
    """The journal: pairs of temporary file and file, and files to remove."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    renamed: list[list[str]]
    removed: list[str]


def records(folder: Path) -> Iterator[Record]:
    """Yield all registrations and names, after the change of the journal. Changes no file. Damaged files are logged.

    Raises:
        OSError: the journal is damaged, or a file that it names is missing.
    """
    for name, path in sorted(_files(folder).items()):
        kind = _FOLDERS[name.partition("/")[0]]
        try:
            record = kind.model_validate_json(_read(path))
            if name != _name(record):
                raise ValueError("its name does not match its content")
        except (OSError, ValueError) as error:
            logger.error("%s is damaged or was not written by this server; it was not migrated: %s", path, error)
        else:
            yield record


def set_aside(folder: Path) -> None:
    """Move the files of the old format to a subfolder. Repeats what a killed server has begun.

    Several servers may do this at the same time.

    Raises:
        OSError: a server of an earlier version has used the folder since an earlier migration.
    """
    old = [name for name in (*_FOLDERS, _JOURNAL) if (folder / name).exists()]
    if not old:
        return
    kept = folder / _KEPT
    kept.mkdir(mode=0o700, exist_ok=True)
    for name in old:
        try:
            os.rename(folder / name, kept / name)
        except FileNotFoundError:
            continue  # another server was first
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise FileExistsError(
                f"{folder / name} and {kept / name} both exist: a server of an earlier version has used the folder "
                f"after its migration, and its registrations since then are not in the database; move {folder / name} "
                "away, and register them again"
            ) from error
    for leftover in folder.glob(f"{_TEMPORARY}*"):
        leftover.unlink(missing_ok=True)
    logger.info("the files of the old format are in %s; delete the folder when this server works as before", kept)


def _files(folder: Path) -> dict[str, Path]:
    """Return the path of each file by its name, after the change of the journal."""
    found: dict[str, Path] = {}
    for name in _FOLDERS:
        with suppress(FileNotFoundError):
            paths = sorted((folder / name).iterdir())
            found.update({f"{name}/{path.name}": path for path in paths if not path.name.startswith(_TEMPORARY)})
    try:
        plan = _Plan.model_validate_json(_read(folder / _JOURNAL))
    except FileNotFoundError:
        return found
    except ValueError as error:
        raise OSError(f"{folder / _JOURNAL} is damaged: {error}; restore the folder from a backup") from error
    for temporary, name in plan.renamed:
        if (folder / temporary).exists():
            found[name] = folder / temporary
        elif name not in found:
            raise OSError(f"{folder / name} is missing; restore the folder from a backup")
    for name in plan.removed:
        found.pop(name, None)
    return found


def _name(record: Registration | Binding) -> str:
    """Return the name of a record's file."""
    if isinstance(record, Registration):
        folder, key = "processors", record.digest + record.owner
    else:
        folder, key = "names", record.name
    return f"{folder}/{hashlib.sha256(key.encode()).hexdigest()}.json"


def _open(path: str, _: int) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _read(path: Path) -> bytes:
    """Return a file's data. Raises OSError, and ValueError if it is damaged."""
    with open(path, "rb", opener=_open) as file:
        checksum, _, data = file.read().partition(b"\n")
    if checksum != hashlib.sha256(data).hexdigest().encode():
        raise ValueError("its checksum does not match")
    return data
