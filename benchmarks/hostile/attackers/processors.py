"""The shipped processors of attackers."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from logitport import EditProcessor, EditRequest, RowEdits

FAILING_SECONDS = 0.8  # less than the deadline of a call
CALL_SECONDS = 1.5  # less than it, too
LOAD_SECONDS = 4.0  # less than the deadline of a load
EDITS = 400
_HANG_SECONDS = 3600.0
_THREADS = 64  # more than a worker may start
_ALLOCATION_BYTES = 64 << 20
_MESSAGE_BYTES = 4 << 20


class Denies(EditProcessor):
    """Harmless: needs a worker, and little of its time."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([1])


class Raises(EditProcessor):
    """Fails, so that its name is a label of two metrics."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        raise ValueError("fails on purpose")


class SleepsThenRaises(EditProcessor):
    """Fails late, for each row."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        time.sleep(FAILING_SECONDS)
        raise ValueError("fails on purpose")


class Sleeps(EditProcessor):
    """Takes less than the deadline of a call."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        time.sleep(CALL_SECONDS)


class Hangs(EditProcessor):
    """Does not return."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        time.sleep(_HANG_SECONDS)


class HangsAtTimes(Denies):
    """Does not return at every second length of the history, so that its failures are never consecutive."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        if len(request.history) % 2:
            time.sleep(_HANG_SECONDS)
        edits.deny([1])


class Exits(EditProcessor):
    """Ends its worker."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        os._exit(1)


class SlowToValidate(Denies):
    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        time.sleep(LOAD_SECONDS)


class SlowToInitialize(Denies):
    def __init__(self) -> None:
        time.sleep(LOAD_SECONDS)


class SlowToStart(Denies):
    def start(self, request: EditRequest) -> None:
        time.sleep(LOAD_SECONDS)


class Spins(Denies):
    """Starts threads that go on after the call. Hashing releases Python's lock."""

    def start(self, request: EditRequest) -> None:
        def spin() -> None:
            while True:
                hashlib.sha256(bytes(1 << 20))

        with suppress(RuntimeError):
            for _ in range(_THREADS):
                threading.Thread(target=spin, daemon=True).start()


class Allocates(EditProcessor):
    """Allocates until it may not, and keeps all of it."""

    def start(self, request: EditRequest) -> None:
        self.kept: list[Any] = []

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        with suppress(MemoryError):
            for _ in range(4):
                self.kept.append(bytearray(_ALLOCATION_BYTES))
        edits.deny([1])


class Forks(EditProcessor):
    """Starts processes and threads until it may not, at every call."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        with suppress(OSError):
            for _ in range(_THREADS):
                os.fork()
        with suppress(RuntimeError):
            for _ in range(_THREADS):
                threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
        edits.deny([1])


class LyingReplies(EditProcessor):
    """Replaces the encoder of its worker: a valid message of 4 MB about rows that the call does not have."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        from logitport_server.worker import messages

        entries, length = [], 0
        for row in itertools.count():
            entry = b'"%d":{"code":13,"message":"","trace":""}' % row
            length += len(entry) + 1
            if length > _MESSAGE_BYTES - 64:
                break
            entries.append(entry)
        data = b'{"type":"EditReply","failed":{' + b",".join(entries) + b"}}"
        honest = messages.encode
        messages.encode = lambda reply: data if isinstance(reply, messages.EditReply) else honest(reply)


class DeniesAll(EditProcessor):
    """Denies every id, many times."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        every_id = np.arange(request.vocab_size, dtype=np.int32)
        for _ in range(EDITS):
            edits.deny(every_id)
