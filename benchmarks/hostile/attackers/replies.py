"""Workers with replies as large as they may be."""

from __future__ import annotations

import itertools

import numpy as np

from benchmarks.hostile.attackers.base import Attacker, NewClasses
from logitport import EditProcessor, EditRequest, RowEdits

_MESSAGE_BYTES = 4 << 20
_EDITS = 400
_STEPS = 3


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
        for _ in range(_EDITS):
            edits.deny(every_id)


class LargeMessages(NewClasses):
    name = "4 MB worker messages"
    does = "a worker whose replies are messages of 4 MB with empty columns"
    base = LyingReplies
    steps = _STEPS


class EndlessEdits(NewClasses):
    name = "edits without end"
    does = f"a worker that answers with {_EDITS} edits of every id"
    base = DeniesAll
    steps = _STEPS


ATTACKERS: tuple[type[Attacker], ...] = (LargeMessages, EndlessEdits)
