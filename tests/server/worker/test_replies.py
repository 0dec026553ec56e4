"""Limits for replies: honest replies fit, and hostile ones take little memory."""

from __future__ import annotations

import tracemalloc
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any

import pytest

from logitport.system.frame_limits import MAX_WORKER_EDITS_BYTES, MAX_WORKER_MESSAGE_BYTES
from logitport_server.worker import messages, packing

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = 200
EDIT = messages.Edit(processor=1, vocab_size=8, counts=[1] * ROWS)
EVENTS = [bytes(4 * ROWS)]
LIMITS = packing.reply_limits(EDIT, EVENTS)
PROCESS = messages.Process(
    processor=1, logits=messages.LogitsPlacement(memory=1, offset=0, rows=ROWS, vocab_size=8, dtype="float32")
)
LONGEST = messages.Error(13, "m" * messages.MAX_TEXT_LENGTH, "t" * messages.MAX_TRACE_LENGTH)


def read(data: bytes, limits: packing.ReplyLimits) -> tuple[messages.Reply, list[memoryview]]:
    reader = packing.Reader()
    reader.feed(data)
    frame = reader.next(limits.column_bytes, limits.message_bytes)
    assert frame is not None
    return packing.decode_reply(frame.message), frame.columns


def copy(error: messages.Error) -> messages.Error:
    return messages.Error(error.code, error.message, error.trace)


def test_limits_depend_on_the_call() -> None:
    host = messages.LoadProcessor(processor=1, name="", digest="", python="", dill="")
    assert packing.reply_limits(host, [bytes(1 << 20)]).column_bytes == 0
    assert packing.reply_limits(PROCESS, EVENTS) == (LIMITS.message_bytes, 0)
    assert packing.reply_limits(host, []).message_bytes < LIMITS.message_bytes < MAX_WORKER_MESSAGE_BYTES
    assert LIMITS.column_bytes == MAX_WORKER_EDITS_BYTES
    many = messages.Edit(processor=1, vocab_size=8)
    assert packing.reply_limits(many, [bytes(4 << 20)]).message_bytes == MAX_WORKER_MESSAGE_BYTES


@pytest.mark.parametrize("character", ["x", "\1", "\U0001f600"])
def test_the_longest_error_is_not_cut(character: str) -> None:
    error = messages.Error(13, character * messages.MAX_TEXT_LENGTH, character * messages.MAX_TRACE_LENGTH)
    reply = messages.ErrorReply(error)
    limits = packing.reply_limits(messages.Validate(processor=1), [])
    assert read(packing.pack_reply(1, messages.ErrorReply(copy(error)), (), limits), limits)[0] == reply


@pytest.mark.parametrize("rows", [1, ROWS, 20_000])
def test_the_errors_of_all_rows_fit(rows: int) -> None:
    limits = packing.reply_limits(PROCESS, [bytes(4 * rows)])
    failed = {row: copy(LONGEST) for row in range(rows)}
    reply = messages.ProcessReply(failed, list(range(1 << 40, (1 << 40) + rows)))
    decoded, _ = read(packing.pack_reply(1, reply, (), limits), limits)
    assert isinstance(decoded, messages.ProcessReply)
    assert list(decoded.failed) == list(range(rows))
    assert len(decoded.not_rebuildable) == rows
    lengths = {len(error.message) for error in decoded.failed.values()}
    assert lengths == {1: {len(LONGEST.message)}, ROWS: {1250}, 20_000: {19}}[rows]


def test_columns_that_do_not_fit_become_an_error() -> None:
    limits = packing.ReplyLimits(LIMITS.message_bytes, 100)
    assert read(packing.pack_reply(1, messages.EditReply(), [bytes(60), bytes(40)], limits), limits)[1] == [
        bytes(60),
        bytes(40),
    ]
    assert read(packing.pack_reply(1, messages.EditReply(), [bytes(60), bytes(41)], limits), limits) == (
        messages.TooLarge(101),
        [],
    )


def repeated(begin: bytes, items: Iterator[bytes], end: bytes, size: int) -> bytes:
    """As many of the items as fit into this size."""
    size -= len(begin) + len(end)
    sizes = [0]

    def fits(item: bytes) -> bool:
        sizes[0] += len(item) + 1
        return sizes[0] <= size

    return begin + b",".join(takewhile(fits, items)) + end


def numbers(item: bytes) -> Any:
    begin = b'{"type":"ProcessReply","not_rebuildable":['
    return lambda size: repeated(begin, (item for _ in count()), b"]}", size)


def errors(error: str) -> Any:
    items = (f'"{row}":{error}'.encode() for row in count())
    return lambda size: repeated(b'{"type":"EditReply","failed":{', items, b"}}", size)


def wide_text(size: int) -> bytes:
    """A text with four bytes in memory for each character."""
    begin, end = '{"type":"ErrorReply","error":{"code":1,"message":"\U0001f600', '","trace":""}}'
    return (begin + "a" * (size - len(begin.encode()) - len(end)) + end).encode()


HOSTILE = {
    "small numbers": numbers(b"1"),
    "numbers": numbers(b"300"),
    "large numbers": numbers(b"4999999999"),
    "errors": errors('{"code":1,"message":"","trace":""}'),
    "errors with texts": errors('{"code":300,"message":"ab","trace":"\U0001f600a"}'),
    "a wide text": wide_text,
    "nested": lambda size: b'{"type":"EditReply","x":' + b"[" * (size - 30),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.slow
def test_a_hostile_message_takes_little_memory(name: str) -> None:
    """An honest reply for these rows can have more than half of the limit."""
    honest = messages.encode(
        messages.EditReply({row: messages.Error(13, "m" * 1000, "t" * 1250) for row in range(ROWS)})
    )
    assert len(honest) > LIMITS.message_bytes / 2
    data = HOSTILE[name](LIMITS.message_bytes)
    tracemalloc.start()
    try:
        packing.decode_reply(memoryview(data))
    except packing.BadPacket:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 12 * LIMITS.message_bytes < 12 << 20


def test_a_longer_message_is_refused_before_it_is_decoded() -> None:
    data = packing.pack(1, numbers(b"300")(MAX_WORKER_MESSAGE_BYTES))
    with pytest.raises(packing.BadPacket, match="too large"):
        read(data, LIMITS)


def test_columns_are_refused_where_none_belong() -> None:
    with pytest.raises(packing.BadPacket, match="the limit is 0"):
        read(packing.pack(1, messages.encode(messages.ProcessReply()), [b"x"]), packing.reply_limits(PROCESS, EVENTS))
