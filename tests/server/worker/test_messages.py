"""Messages between the server, zygotes and workers: types and bounds are checked when a message is decoded."""

from __future__ import annotations

import pytest

from logitport_server.worker import messages, packing
from logitport_server.worker.packing import BadPacket


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"{}",
        b'{"type":3}',
        b'{"type":"StepReply"}',
        b'{"type":"Edit","processor":1,"vocab_size":8}',
        b'{"type":"EmptyReply"}{}',
        b'{"type":"EmptyReply","more":1}',
        b'{"type":"LoadReply"}',
        b'{"type":"LoadReply","reads_logits":1}',
        b'{"type":"LoadReply","reads_logits":true,"gpu_error":null}',
        b'{"type":"EditReply","failed":{"-1":{"code":1,"message":"","trace":""}}}',
        b'{"type":"EditReply","failed":{"2147483648":{"code":1,"message":"","trace":""}}}',
        b'{"type":"EditReply","failed":{"x":{"code":1,"message":"","trace":""}}}',
        b'{"type":"EditReply","failed":{"0":{"code":1,"message":""}}}',
        b'{"type":"ProcessReply","not_rebuildable":[1.0]}',
        b'{"type":"ProcessReply","not_rebuildable":[-1]}',
        b'{"type":"ProcessReply","not_rebuildable":[9223372036854775808]}',
        b'{"type":"ProcessReply","not_rebuildable":[' + b"9" * 100_000 + b"]}",
        b'{"type":"ErrorReply","error":{"code":2147483648,"message":"","trace":""}}',
        b'{"type":"ErrorReply","error":{"code":-1,"message":"","trace":""}}',
        b'{"type":"ErrorReply","error":{"code":1,"message":"\xff","trace":""}}',
        b'{"type":"ErrorReply","error":{"code":1,"message":"\\ud800\\u0041","trace":""}}',
        b'{"type":"ErrorReply","error":{"code":1,"message":"' + b"x" * 2001 + b'","trace":""}}',
        b'{"type":"EditReply","failed":{"0":{"code":1,"message":"","trace":"' + b"x" * 5001 + b'"}}}',
        b'{"type":"LoadReply","reads_logits":true,"gpu_error":"' + b"x" * 2001 + b'"}',
        b'{"type":"TooLarge","size_bytes":-1}',
        b'{"type":"EmptyReply","output":"' + b"x" * (messages.MAX_OUTPUT_LENGTH + 1) + b'"}',
        b'{"type":"ErrorReply","error":' + b"[" * 1_000_000,
        b'{"type":"EmptyReply","' + b"x" * 1_000_000 + b'":1}',
        b'{"type":"' + b"x" * 1_000_000 + b'"}',
        b"[" * 1_000_000,
        b'{"a":' * 1_000_000,
    ],
)
def test_invalid_replies(data: bytes) -> None:
    """The error is short: it is logged, and reaches the author of the processor."""
    with pytest.raises(BadPacket) as raised:
        packing.decode_reply(memoryview(data))
    assert len(str(raised.value)) < 200
