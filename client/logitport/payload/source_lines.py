"""The source lines of shipped functions: the key "source" of a payload's JSON, which SGLang ignores.

A list of [file name, number of the first line, text]. They are shown in tracebacks, and are never executed.
"""

from __future__ import annotations

import hashlib
import linecache
import os
from typing import TYPE_CHECKING, NamedTuple

import orjson

from logitport.errors import PayloadError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import CodeType

_MAX_LENGTH = 64 << 10
_MAX_PARTS = 1024
_MAX_NAME_LENGTH = 256


class SourcePart(NamedTuple):
    """Consecutive lines of a file, as in the payload: its name without folders, the first line's number, the text."""

    file: str
    first_line: int
    text: str


def parts_of(codes: Iterable[CodeType]) -> tuple[SourcePart, ...]:
    """Return the lines of these code objects where their files can be read, and nothing else of the files.

    Functions that do not fit into 64 KiB are left out, and files with equal names: a traceback has the
    name only.
    """
    lines: dict[str, set[int]] = {}
    for code in codes:
        own = [line for _, _, line in code.co_lines() if line]
        if own:
            lines.setdefault(code.co_filename, set()).update(range(code.co_firstlineno, max(own) + 1))
    names = [os.path.basename(path) for path in lines]
    parts: list[SourcePart] = []
    length = 0
    for path, numbers in sorted(lines.items()):
        name, text = os.path.basename(path), linecache.getlines(path)
        if names.count(name) > 1 or len(name) > _MAX_NAME_LENGTH:
            continue
        for first, last in _ranges(numbers):
            part = SourcePart(name, first, "".join(text[first - 1 : last]))
            if not _is_unicode(part):
                continue
            length += len(part.text)
            if part.text and length <= _MAX_LENGTH and len(parts) < _MAX_PARTS:
                parts.append(part)
    return tuple(parts)


def from_json(content: object) -> tuple[SourcePart, ...]:
    """Convert from the payload's JSON. Raises PayloadError."""
    if not isinstance(content, list) or len(content) > _MAX_PARTS:
        raise PayloadError(f'"source" must be a list of at most {_MAX_PARTS} parts; leave it out')
    parts = []
    for part in content:
        if not isinstance(part, list) or [type(value) for value in part] != [str, int, str]:
            raise PayloadError('each part of "source" must be a file name, a line number and a text; leave it out')
        if len(part[0]) > _MAX_NAME_LENGTH or not 1 <= part[1] < 1 << 31:
            raise PayloadError('"source" has a file name of over 256 characters, or no line number; leave it out')
        parts.append(SourcePart(*part))
    if sum(len(part.text) for part in parts) > _MAX_LENGTH:
        raise PayloadError(f'"source" has over {_MAX_LENGTH} characters; leave it out')
    return tuple(parts)


def digest_of(parts: Sequence[SourcePart]) -> str:
    """Return the SHA-256 that signatures cover, as hexadecimal digits."""
    return hashlib.sha256(orjson.dumps([list(part) for part in parts])).hexdigest()


def _is_unicode(part: SourcePart) -> bool:
    """Whether it can be written as JSON: the name of a file may be bytes that are not UTF-8."""
    try:
        (part.file + part.text).encode()
    except UnicodeEncodeError:
        return False
    return True


def _ranges(numbers: set[int]) -> list[tuple[int, int]]:
    """Return the first and the last number of each sequence without gaps."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return ranges
