"""Messages between the server, zygotes and workers: types and bounds are checked when a message is decoded."""

from __future__ import annotations

import pytest

from logitport_sandbox import WorkerLimits
from logitport_server.worker import messages
from logitport_server.worker.frames import BadFrame

ERROR = messages.Error(13, "it failed", "line 1")

CALLS = [
    messages.Host(
        processor=1, name="x", digest="d", python="3.11", dill="0.4", gpu=("cuda:0", "ab"), released=[(3, None)]
    ),
    messages.Validate(processor=1, released=[(1, 2), (1, None)]),
    messages.Start(
        processor=1,
        state=2,
        request_id="r",
        prompt_length=3,
        vocab_size=8,
        tokenizer_id="t",
        eos_token_ids=(1, 2),
        max_requests=4,
    ),
    messages.OpenGpuMemory(processor=1, memory=messages.WorkerMemory(1, 1 << 40)),
    messages.Edit(processor=1, vocab_size=8, states=[1, 0], counts=[2, 0], drafts=[1, 0]),
    messages.Process(
        processor=1,
        logits=messages.LogitsPlacement(
            memory=1,
            offset=1 << 40,
            rows=2,
            vocab_size=8,
            dtype="float32",
            mapped=messages.WorkerMemory(1, 64),
            unmapped=[2],
        ),
        drafts_before=[[], [5]],
    ),
]
REPLIES = [
    messages.ErrorReply(ERROR),
    messages.TooLarge(1 << 40),
    messages.EmptyReply(),
    messages.HostReply(reads_logits=True, argmax_invariant=True, gpu_error="no driver"),
    messages.StartReply(argmax_invariant=True),
    messages.EditReply(failed={3: ERROR}),
    messages.ProcessReply(failed={0: ERROR}, not_rebuildable=[1, 1 << 40]),
]
EVENTS = [messages.Ready(), messages.Forked(1), messages.ForkFailed(1, "why"), messages.Ended(1, -9)]


@pytest.mark.parametrize("call", CALLS)
def test_calls(call: messages.WorkerCall) -> None:
    assert messages.decode_call(memoryview(messages.encode(call))) == call


@pytest.mark.parametrize("reply", REPLIES)
def test_replies(reply: messages.Reply) -> None:
    assert messages.decode_reply(memoryview(messages.encode(reply))) == reply


def test_zygote() -> None:
    for event in EVENTS:
        assert messages.decode_event(messages.encode(event)) == event
    fork = messages.Fork(1, WorkerLimits(threads=3))
    assert messages.decode_fork(messages.encode(fork)) == fork


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
        b'{"type":"HostReply"}',
        b'{"type":"HostReply","reads_logits":1}',
        b'{"type":"HostReply","reads_logits":true,"gpu_error":null}',
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
        b'{"type":"HostReply","reads_logits":true,"gpu_error":"' + b"x" * 2001 + b'"}',
        b'{"type":"TooLarge","size_bytes":-1}',
        b'{"type":"ErrorReply","error":' + b"[" * 1_000_000,
        b'{"type":"EmptyReply","' + b"x" * 1_000_000 + b'":1}',
        b'{"type":"' + b"x" * 1_000_000 + b'"}',
        b"[" * 1_000_000,
        b'{"a":' * 1_000_000,
    ],
)
def test_invalid_replies(data: bytes) -> None:
    """The error is short: it is logged, and reaches the author of the processor."""
    with pytest.raises(BadFrame) as raised:
        messages.decode_reply(memoryview(data))
    assert len(str(raised.value)) < 200
