"""Options of a recording: its requests, its content and its file."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Union

import orjson

from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

logger = logging.getLogger(__name__)

VARIABLE = "LOGITPORT_RECORD"
_MIN_FILE_BYTES = 1 << 16


@dataclass(frozen=True)
class RecordOptions:
    """Options of a recording. It holds prompts and outputs.

    Attributes:
        path: the file. Sessions and processes may share one; a session appends to it.
        requests: patterns of the ids of the requests to record, such as "chat-*"; by default all.
        sample_every: the logits of each n-th step of a request are recorded, from its first one on; 0 records none.
        top_k: how many of the best logits are recorded in these steps.
        max_bytes: recording stops at this size of the file.
        payloads: whether to record shipped processors, so that they can run in a replay.
        max_queue_bytes: memory for what waits to be written. What exceeds it is dropped, and counted.

    Raises:
        InvalidArgument: a value cannot be used.
    """

    path: str | os.PathLike[str]
    requests: Sequence[str] = ("*",)
    sample_every: int = 16
    top_k: int = 20
    max_bytes: int = 256 << 20
    payloads: bool = False
    max_queue_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        if not isinstance(self.path, (str, os.PathLike)) or not os.fspath(self.path):
            raise InvalidArgument(f"record: path is {self.path!r}; write the path of a file")
        lowest = {"sample_every": 0, "top_k": 1, "max_bytes": _MIN_FILE_BYTES, "max_queue_bytes": 1}
        for name, least in lowest.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidArgument(f"record: {name} is {value!r}; write a whole number, {least} or more")
        if not isinstance(self.payloads, bool):
            raise InvalidArgument(f"record: payloads is {self.payloads!r}; write True or False")
        is_list = isinstance(self.requests, Sequence) and not isinstance(self.requests, str)
        if not is_list or not all(isinstance(pattern, str) for pattern in self.requests):
            raise InvalidArgument(
                f"record: requests is {self.requests!r}; write a list of patterns, such as ['chat-*']"
            )

    def chooses(self, request_id: str) -> bool:
        """Whether a request with this id is recorded."""
        return any(fnmatchcase(request_id, pattern) for pattern in self.requests)


# A path, options, False for no recording; None reads LOGITPORT_RECORD.
Record: TypeAlias = Union[str, "os.PathLike[str]", RecordOptions, Literal[False], None]


def options_of(record: Record) -> RecordOptions | None:
    """Convert the argument `record` of `Client.session`; None for no recording. Raises InvalidArgument."""
    if record is False or isinstance(record, RecordOptions):
        return record or None
    if record is None:
        return _options_of_environment()
    return RecordOptions(record)


def _options_of_environment(environment: Mapping[str, str] = os.environ) -> RecordOptions | None:
    """The options of LOGITPORT_RECORD; None, and a warning, if they cannot be used: the engine must not fail."""
    value = environment.get(VARIABLE)
    if not value:
        return None
    try:
        return _read_options(value) if value.lstrip().startswith("{") else RecordOptions(Path(value))
    except InvalidArgument as error:
        logger.warning("nothing is recorded, although %s is set: %s", VARIABLE, error)
        return None


def _read_options(text: str) -> RecordOptions:
    known = {field.name for field in dataclasses.fields(RecordOptions)}
    try:
        options = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidArgument(f"{VARIABLE} is not JSON: {error}") from error
    if "path" not in options or not options.keys() <= known:
        raise InvalidArgument(f'{VARIABLE} is {text}; write an object with "path" and other keys of {sorted(known)}')
    return RecordOptions(**options)
