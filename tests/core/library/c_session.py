"""liblogitport by ctypes: the functions of core/include/logitport.h with values of Python."""

from __future__ import annotations

import ctypes
import fcntl
import json
import subprocess
import sys
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_uint64
from ctypes import c_void_p as pointer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

ROOT = Path(__file__).parents[3]
CORE = ROOT / "core"
OK, INVALID_ARGUMENT, LIMIT_EXCEEDED, NOT_PERMITTED, NOT_FOUND, STATE_LOST, UNAVAILABLE = 0, 2, 3, 5, 6, 15, 100
_BUILTIN, _NAME, _DIGEST, _PAYLOAD = 1, 2, 3, 4
_DATATYPES = {"float32": 0, "float16": 1, "bfloat16": 2}


class _Text(Structure):
    _fields_ = (("data", c_char_p), ("size", c_size_t))

    @classmethod
    def of(cls, text: str) -> _Text:
        data = text.encode()
        return cls(data, len(data))

    def __str__(self) -> str:
        return self.data[: self.size].decode() if self.size else ""


class _Options(Structure):
    _fields_ = (
        *(("size", c_size_t), ("vocab_size", c_int32), ("datatype", c_int32)),
        *(("eos_token_ids", POINTER(c_int32)), ("eos_token_id_count", c_size_t)),
        *(("max_draft_tokens", c_int32), ("max_requests", c_int32)),
        *((name, _Text) for name in ("tokenizer_id", "model_name", "engine", "token")),
        *(("timeout_seconds", c_double), ("reconnect_seconds", c_double)),
    )


class _Processor(Structure):
    _fields_ = (("naming", c_int32), ("name", _Text), ("params", _Text))


class _Request(Structure):
    _fields_ = (
        *(("size", c_size_t), ("prompt_ids", POINTER(c_int32)), ("prompt_id_count", c_size_t)),
        *(("output_ids", POINTER(c_int32)), ("output_id_count", c_size_t)),
        *(("processors", POINTER(_Processor)), ("processor_count", c_size_t)),
        *(("request_id", _Text), ("sampling_params", _Text), ("tenant", _Text), ("skips_on_error", c_int32)),
    )


class _Admission(Structure):
    _fields_ = (("handle", c_uint64), ("code", c_int32), ("reads_logits", c_int32), ("message", _Text))


class _StepRequest(Structure):
    _fields_ = (
        *(("handle", c_uint64), ("new_ids", POINTER(c_int32)), ("new_id_count", c_size_t)),
        *(("draft_ids", POINTER(c_int32)), ("draft_id_count", c_size_t), ("draft_parents", POINTER(c_int32))),
    )


class _Row(Structure):
    _fields_ = (("request", c_uint32), ("draft_offset", c_int32))


class _Failure(Structure):
    _fields_ = (("handle", c_uint64), ("code", c_int32), ("skipped", c_int32), ("message", _Text))


class _Event(Structure):
    _fields_ = (
        *(("handle", c_uint64), ("position", c_int32), ("draft_offset", c_int32), ("left_out", c_int32)),
        *(("processor", _Text), ("name", _Text), ("values", _Text)),
    )


class _Applied(Structure):
    _fields_ = (("processor", _Text), ("rows", c_int32))


class _Result(Structure):
    _fields_ = (
        *(("size", c_size_t), ("failures", POINTER(_Failure)), ("failure_count", c_size_t)),
        *(("all_denied_rows", POINTER(c_int32)), ("all_denied_row_count", c_size_t)),
        *(("applied", POINTER(_Applied)), ("applied_count", c_size_t)),
        *(("events", POINTER(_Event)), ("event_count", c_size_t)),
    )


class _Stats(Structure):
    _fields_ = (("size", c_size_t), ("reconnects", c_uint64), ("resyncs", c_uint64), ("requests", c_uint64))


class CError(Exception):
    """A call that failed: its code, and its message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class Failed(NamedTuple):
    """A request that failed in a step."""

    code: int
    skipped: bool
    message: str


class CResult(NamedTuple):
    """The result of a step, by handle."""

    failures: dict[int, Failed]
    all_denied_rows: tuple[int, ...]
    rows_applied: dict[str, int]
    events: list[tuple[int, str, int, str, dict[str, Any], int]]


def build(folder: Path, *options: str) -> Path:
    """Build the library in a folder, or what has changed of it. Returns the folder. Processes take turns."""
    folder.mkdir(parents=True, exist_ok=True)
    cmake = [sys.executable, "-m", "cmake"]
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in ([*cmake, "-S", CORE / "library", "-B", folder, *options], [*cmake, "--build", folder, "-j2"]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
    return folder


def load(folder: Path) -> ctypes.CDLL:
    """Load the library of a build."""
    library = ctypes.CDLL(str(folder / "liblogitport.so"))
    library.logitport_version.restype = c_char_p
    library.logitport_error.restype = _Text
    library.logitport_close.restype = library.logitport_cancel.restype = None
    return library


def _ids(values: Sequence[int] | NDArray[np.int32]) -> Any:
    return (c_int32 * len(values))(*[int(one) for one in values])


def _chain(processors: Sequence[tuple[str, Mapping[str, Any]]]) -> Any:
    def naming(name: str) -> int:
        if name.startswith("{"):
            return _PAYLOAD
        if "/" in name:
            return _NAME
        return _DIGEST if len(name) == 64 else _BUILTIN

    return (_Processor * len(processors))(
        *[_Processor(naming(name), _Text.of(name), _Text.of(json.dumps(params))) for name, params in processors]
    )


class CSession:
    """A session of the library. `target` is a server's, or None for a session in this process."""

    def __init__(
        self,
        library: ctypes.CDLL,
        target: str | None,
        *,
        vocab_size: int,
        dtype: str = "float32",
        eos_token_ids: Sequence[int] = (),
        max_draft_tokens: int = 0,
        max_requests: int = 0,
        token: str = "",
        timeout_seconds: float = 0.0,
        reconnect_seconds: float = 0.0,
    ) -> None:
        self._library, self.vocab_size = library, vocab_size
        eos = _ids(eos_token_ids)
        options = _Options(
            *(ctypes.sizeof(_Options), vocab_size, _DATATYPES[dtype], eos, len(eos), max_draft_tokens, max_requests),
            *(_Text.of(""), _Text.of("tests"), _Text.of("tests"), _Text.of(token), timeout_seconds, reconnect_seconds),
        )
        self._session = pointer()
        error = (c_char * 1024)()
        if target is None:
            code = library.logitport_open_embedded(byref(options), byref(self._session), error, c_size_t(1024))
        else:
            code = library.logitport_open(_Text.of(target), byref(options), byref(self._session), error, c_size_t(1024))
        if code != OK:
            assert not self._session.value
            raise CError(code, error.value.decode())

    def close(self) -> None:
        self._library.logitport_close(self._session)
        self._session = pointer()

    def __enter__(self) -> CSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cancel(self) -> None:
        self._library.logitport_cancel(self._session)

    def _check(self, code: int) -> None:
        if code != OK:
            raise CError(code, str(self._library.logitport_error(self._session)))

    def add_all(self, *requests: Mapping[str, Any]) -> list[int | CError]:
        """Admit requests with the arguments of `add`: the handle, or the error, of each."""
        made = (_Request * len(requests))()
        kept = []
        for one, request in zip(made, requests, strict=True):
            prompt, output = _ids(request.get("prompt", ())), _ids(request.get("output", ()))
            chain = _chain(request.get("processors", ()))
            kept.append((prompt, output, chain))
            one.size = ctypes.sizeof(_Request)
            one.prompt_ids, one.prompt_id_count = prompt, len(prompt)
            one.output_ids, one.output_id_count = output, len(output)
            one.processors, one.processor_count = chain, len(chain)
            one.request_id = _Text.of(request.get("request_id", ""))
            one.skips_on_error = int(request.get("skips", False))
        admissions = (_Admission * len(requests))()
        code = self._library.logitport_add(self._session, made, c_size_t(len(requests)), admissions)
        if code != OK and not any(one.code for one in admissions):
            self._check(code)
        return [one.handle or CError(one.code, str(one.message)) for one in admissions]

    def add(self, prompt: Sequence[int], processors: Sequence[tuple[str, Mapping[str, Any]]] = (), **more: Any) -> int:
        (added,) = self.add_all({"prompt": prompt, "processors": processors, **more})
        if isinstance(added, CError):
            raise added
        return added

    def remove(self, *handles: int) -> None:
        self._check(
            self._library.logitport_remove(self._session, (c_uint64 * len(handles))(*handles), c_size_t(len(handles)))
        )

    def rewind(self, handle: int, length: int) -> None:
        self._check(self._library.logitport_rewind(self._session, c_uint64(handle), c_int64(length)))

    def length(self, handle: int) -> int:
        length = c_int64()
        self._check(self._library.logitport_history_length(self._session, c_uint64(handle), byref(length)))
        return length.value

    def begin(
        self,
        new_ids: Mapping[int, Sequence[int]],
        *,
        drafts: Mapping[int, Sequence[int]] | None = None,
        parents: Mapping[int, Sequence[int]] | None = None,
        rows: Sequence[tuple[int, int]] | None = None,
    ) -> int:
        """Begin a step; returns its number of rows. `rows` are pairs of a handle and a draft offset."""
        made = (_StepRequest * len(new_ids))()
        for one, (handle, ids) in zip(made, new_ids.items(), strict=True):
            own, guesses = _ids(ids), _ids((drafts or {}).get(handle, ()))
            one.handle, one.new_ids, one.new_id_count = handle, own, len(own)
            one.draft_ids, one.draft_id_count = guesses, len(guesses)
            if parents is not None and handle in parents:
                one.draft_parents = _ids(parents[handle])
        order = list(new_ids)
        given = None if rows is None else (_Row * len(rows))(*[_Row(order.index(one), at) for one, at in rows])
        count = c_size_t(0 if rows is None else len(rows))
        self._check(self._library.logitport_begin(self._session, made, c_size_t(len(made)), given, byref(count)))
        return count.value

    def apply(self, logits: NDArray[Any]) -> CResult:
        """Apply the step to a matrix of elements of the session's datatype, or of their bits."""
        result = _Result(ctypes.sizeof(_Result))
        self._check(
            self._library.logitport_apply(
                *(self._session, pointer(logits.ctypes.data), c_size_t(len(logits))),
                *(c_size_t(logits.strides[0]), byref(result)),
            )
        )
        events = [result.events[index] for index in range(result.event_count)]
        return CResult(
            {
                one.handle: Failed(one.code, bool(one.skipped), str(one.message))
                for one in (result.failures[index] for index in range(result.failure_count))
            },
            tuple(result.all_denied_rows[index] for index in range(result.all_denied_row_count)),
            {str(one.processor): one.rows for one in (result.applied[index] for index in range(result.applied_count))},
            [
                (
                    one.handle,
                    str(one.processor),
                    one.position,
                    str(one.name),
                    json.loads(str(one.values) or "{}"),
                    one.draft_offset,
                )
                for one in events
            ],
        )

    def logits_buffer(self, rows: int) -> NDArray[np.float32]:
        """Return the shared memory as float32[rows, vocab_size]."""
        memory, size = pointer(), c_size_t()
        self._check(self._library.logitport_logits_buffer(self._session, c_size_t(rows), byref(memory), byref(size)))
        assert memory.value is not None
        block = (c_char * size.value).from_address(memory.value)
        return np.frombuffer(block, np.float32)[: rows * self.vocab_size].reshape(rows, self.vocab_size)

    @property
    def stats(self) -> tuple[int, int, int]:
        """Reconnects, resyncs and requests."""
        stats = _Stats(ctypes.sizeof(_Stats))
        assert self._library.logitport_stats_of(self._session, byref(stats)) == OK
        return stats.reconnects, stats.resyncs, stats.requests
