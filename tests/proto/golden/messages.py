"""The golden messages: every message of the contract, with every field set at least once."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any
from zlib import crc32

from logitport_proto.admin_pb2 import (
    DrainRequest,
    DrainResponse,
    GetStatusRequest,
    GetStatusResponse,
    ListSessionsRequest,
    ListSessionsResponse,
    UnquarantineRequest,
    UnquarantineResponse,
)
from logitport_proto.common_pb2 import (
    EDIT_KIND_ALLOW,
    EDIT_KIND_BIAS,
    EDIT_KIND_BITMASK,
    EDIT_KIND_DENY,
    EDIT_KIND_FORCE,
    ERROR_CODE_NAME_TAKEN,
    ERROR_CODE_NEED_SYNC,
    ERROR_CODE_NOT_FOUND,
    ERROR_CODE_PROCESSOR_FAILED,
    ON_ERROR_SKIP,
    Edits,
    Error,
    Event,
    Failure,
    ProcessorCall,
    ProcessorOutput,
    Request,
    RowsApplied,
    Tensor,
)
from logitport_proto.processing_pb2 import (
    ApplyRequest,
    ApplyResponse,
    GetLoadRequest,
    GetLoadResponse,
    SessionRequest,
    SessionResponse,
)
from logitport_proto.recording_pb2 import Recording
from logitport_proto.registry_pb2 import (
    DeleteRequest,
    DeleteResponse,
    GetOutputRequest,
    GetOutputResponse,
    GetRequest,
    GetResponse,
    ListRequest,
    ListResponse,
    ProcessorInfo,
    RegisterRequest,
    RegisterResponse,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message

VOCAB_SIZE = 64
DIGEST = "5d41402abc4b2a76b9719d911017c592ae1f0c2d3e4b5a69788796a5b4c3d2e1"
PAYLOAD = '{"callable":"80049500"}'
GPU = bytes(range(0x10, 0x20))


def int32(*values: int) -> bytes:
    """A column of int32."""
    return struct.pack(f"<{len(values)}i", *values)


def uint32(*values: int) -> bytes:
    """A column of uint32."""
    return struct.pack(f"<{len(values)}I", *values)


def float32(*values: float) -> bytes:
    """A column of float32, or the elements of an FP32 tensor."""
    return struct.pack(f"<{len(values)}f", *values)


BUILTIN = ProcessorCall(processor={"builtin": "disallowed_tokens"}, params=b'{"token_ids":[3,5]}')
NAMED = ProcessorCall(processor={"name": "team/ban-french:v2"})
DIGESTED = ProcessorCall(processor={"digest": DIGEST}, params=b"{}")
SHIPPED = ProcessorCall(processor={"payload": PAYLOAD}, params=b'{"strength":0.5}')

REQUEST = Request(
    request_id="cmpl-7/0",
    prompt_token_ids=[1, 2, 300],
    output_token_ids=[7],
    processors=[BUILTIN, NAMED, DIGESTED, SHIPPED],
    sampling_params=b'{"temperature":0.7}',
    tenant="acme",
    on_error=ON_ERROR_SKIP,
)
# The same history in columns, with which the SDK sends it.
COMPACT = Request(request_id="cmpl-8/0", prompt_ids=int32(1, 2, 300), output_ids=int32(7), processors=[BUILTIN])
FAILED = Failure(
    slot=2,
    error=Error(
        code=ERROR_CODE_PROCESSOR_FAILED,
        message="processor Ban (sha256:5d41402abc4b) raised ValueError: out of range",
        processor="Ban (sha256:5d41402abc4b)",
        remote_traceback='Traceback (most recent call last):\n  File "ban.py", line 3, in __call__\n',
        output="ids: [3, 5]\n",
    ),
)
SKIPPED = Failure(slot=1, error=FAILED.error, skipped=True)
OUT_OF_SYNC = Failure(slot=0, error=Error(code=ERROR_CODE_NEED_SYNC, message="the history has 3 ids, not 4"))
OUTPUT = ProcessorOutput(
    processor=DIGEST, display_name="Ban (sha256:5d41402abc4b)", text="ids: [3, 5]\n", time=1767225600.5
)
APPLIED = [
    RowsApplied(processor="disallowed_tokens", rows=2),
    RowsApplied(processor=DIGEST, display_name="Ban (sha256:5d41402abc4b)", rows=1),
]
EVENTS = [
    Event(slot=5, processor="thinking_budget", name="budget_hit", position=3, values=b'{"at":1024}'),
    Event(slot=5, position=3, left_out=2, draft_offset=4),
]
# A row of every kind of edit; row 3 has two edits.
EDITS = Edits(
    rows=int32(0, 1, 2, 3, 3),
    kinds=bytes([EDIT_KIND_DENY, EDIT_KIND_ALLOW, EDIT_KIND_FORCE, EDIT_KIND_BIAS, EDIT_KIND_BITMASK]),
    offsets=int32(0, 2, 5, 6, 8, 10),
    ids=int32(3, 5, 0, 7, 63, 9, 1, 2, -1, 0x7FFFFFFF),
    values=float32(0, 0, 0, 0, 0, 0, 1.5, -0.25, 0, 0),
)
DENIALS = Edits(rows=int32(0), kinds=bytes([EDIT_KIND_DENY]), offsets=int32(0, 1), ids=int32(4))  # without values
INLINE = Tensor(datatype="FP32", shape=[1, 4], raw=float32(0.5, -1, 2, 0))
HALVES = Tensor(datatype="BF16", shape=[2, 2], raw=bytes.fromhex("803f00c00000003f"))
IN_REGION = Tensor(datatype="FP16", shape=[4, VOCAB_SIZE], region={"region_id": 1, "byte_offset": 1 << 33})

INFO = ProcessorInfo(
    digest=DIGEST,
    names=["team/ban-french", "team/ban-french:v2"],
    python="3.11",
    dill="0.4.1",
    size_bytes=1234,
    registered_at=1767225600.5,
    owner="team.example",
    shared=True,
    quarantined="ended its worker 3 times",
    class_name="BanFrench",
    dialect="sglang",
)
INSTALLED = ProcessorInfo(names=["disallowed_tokens"], builtin=True, shared=True, class_name="DisallowedTokens")

OPEN = {
    "vocab_size": VOCAB_SIZE,
    "datatype": "FP32",
    "device": "cuda:0",
    "model_name": "example/tiny",
    "tokenizer_id": "example/tiny-tokenizer",
    "eos_token_ids": [2, 63],
    "max_requests": 8,
    "max_draft_tokens": 3,
    "engine": "toy 1.0",
    "runs_programs": True,
    "can_move": True,
    "expected_requests": 5,
}
OPENED = {
    "session_id": "0123456789abcdef0123456789abcdef",
    "max_requests": 8,
    "server_version": "0.1.0",
    "local_transport": {
        "socket_path": "/run/logitport-1/session.sock",
        "access_token": bytes(range(32)),
        "max_message_bytes": 1 << 32,
        "device_uuid": GPU,
    },
    "step_deadline_seconds": 2.5,
    "add_deadline_seconds": 10.0,
}
# Request 0 has one row. Request 1 has two draft tokens, and therefore three rows.
STEP = {
    "slots": int32(0, 5),
    "generations": int32(0, 3),
    "base_lengths": int32(4, 2),
    "history_crcs": uint32(crc32(int32(1, 2, 300, 7)), crc32(int32(8, 9))),
    "new_token_counts": int32(1, 2),
    "new_token_ids": int32(11, 12, 13),
    "row_requests": int32(0, 1, 1, 1),
    "row_draft_offsets": int32(0, 0, 1, 2),
    "draft_counts": int32(0, 2),
    "draft_token_ids": int32(40, 41),
}
# Both drafts of request 1 follow its history.
STEP_WITH_TREE = {**STEP, "draft_parents": int32(-1, -1)}
STEP_WITHOUT_DRAFTS = {name: STEP[name] for name in list(STEP)[:4]}
DEVICE_MEMORY = {
    "memory_handle": bytes(range(64)),
    "device_uuid": GPU,
    "byte_offset": 4096,
    "size_bytes": 1 << 21,
    "ready_event": bytes(range(64, 128)),
    "edited_event": bytes(range(128, 192)),
}


def _frame(seq: int, **frame: Any) -> SessionRequest:
    return SessionRequest(seq=seq, **frame)


def _reply(seq: int, **frame: Any) -> SessionResponse:
    return SessionResponse(seq=seq, **frame)


# By file, then by name.
BEST = {"ids": int32(5, 3), "logits": float32(2.0, -1.5), "log_sum": 2.5}

GOLDEN: dict[str, dict[str, Message]] = {
    "recording": {
        "a session": Recording(
            events=[
                {"session_id": 7, "session_began": {"opening": OPEN, "time": 1.5, "sdk_version": "0.1.0"}},
                {
                    "session_id": 7,
                    "request_began": {
                        "key": 1,
                        "request": COMPACT,
                        "processors": [
                            {"builtin": "disallowed_tokens", "params": b'{"token_ids":[3,5]}'},
                            {"name": "team/ban:v1", "digest": DIGEST, "class_name": "Ban", "payload": PAYLOAD},
                        ],
                    },
                },
                {
                    "session_id": 7,
                    "request_stepped": {
                        "key": 1,
                        "index": 2,
                        "base_length": 4,
                        "new_token_ids": int32(9),
                        "draft_token_ids": int32(3, 5),
                        "draft_parents": int32(-1, -1),
                        "rows": [{"draft_offset": 1, "edits": {}, "before": BEST, "after": BEST}, {}],
                        "greedy": True,
                        "unfinished": True,
                        "error": "out of range",
                        "events": EVENTS,
                    },
                },
                {"session_id": 7, "request_ended": {"key": 1}},
                {"session_id": 7, "steps_dropped": {"steps": 3}},
                {
                    "session_id": 7,
                    "recording_stopped": {"reason": "error", "message": "No space left on device", "dropped_steps": 3},
                },
            ]
        ),
    },
    "session": {
        "open": _frame(1, open=OPEN),
        "opened with a local transport": _reply(1, opened=OPENED),
        "opened without a local transport": _reply(1, opened={"session_id": "a", "max_requests": 1}),
        "add": _frame(
            2, add={"requests": [{"request": REQUEST}, {"slot": 5, "generation": 3, "request": {"tenant": "é"}}]}
        ),
        "add with a history in columns": _frame(
            15, add={"requests": [{"slot": 1, "generation": 2, "request": COMPACT}]}
        ),
        "added": _reply(
            2,
            added={
                "failures": [{"slot": 5, "error": {"code": ERROR_CODE_NOT_FOUND}}],
                "reads_logits": bytes([1, 0]),
                "chains": [
                    {
                        "processors": ["disallowed_tokens", DIGEST, DIGEST, DIGEST],
                        "programs": ["", "", DIGEST, ""],
                        "follows_from_history": True,
                        "only_denies": True,
                    },
                    {},
                ],
                "regions_retired": True,
            },
        ),
        "add in the background": _frame(
            13,
            add={
                "requests": [
                    {
                        "slot": 6,
                        "generation": 4,
                        "request": {"processors": [SHIPPED]},
                        "programs_on_server": True,
                        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                        "tracestate": "vendor=1",
                    }
                ],
                "in_background": True,
            },
        ),
        "added in the background": _reply(
            13,
            added={
                "reads_logits": bytes([0]),
                "chains": [{}],
                "pending": bytes([1]),
                "ended": [
                    {"slot": 7, "generation": 1, "reads_logits": True, "chain": {"processors": [DIGEST]}},
                    {"slot": 8, "generation": 2, "error": {"code": ERROR_CODE_NOT_FOUND}},
                ],
            },
        ),
        "step with drafts": _frame(3, step=STEP),
        "step with a tree of drafts": _frame(3, step=STEP_WITH_TREE),
        "step without drafts": _frame(4, step=STEP_WITHOUT_DRAFTS),
        "edits": _reply(
            3,
            edits={
                "edits": EDITS,
                "logits_rows": int32(1, 3),
                "failures": [FAILED, SKIPPED, OUT_OF_SYNC],
                "applied": APPLIED,
                "all_denied_rows": int32(2),
                "ended_admissions": 1,
                "later_edits": [EDITS, DENIALS],
                "should_move": True,
                "events": EVENTS,
            },
        ),
        "edits without values": _reply(4, edits={"edits": DENIALS}),
        "logits inline": _frame(5, logits={"logits": INLINE}),
        "logits inline in bfloat16": _frame(6, logits={"logits": HALVES}),
        "logits in a region": _frame(7, logits={"logits": IN_REGION}),
        "logits edited inline": _reply(
            5,
            logits={
                "logits": INLINE,
                "failures": [SKIPPED],
                "applied": APPLIED,
                "all_denied_rows": int32(1, 3),
                "events": EVENTS,
            },
        ),
        "logits edited in place": _reply(7, logits={}),
        "remove": _frame(8, remove={"slots": int32(0, 5), "generations": int32(0, 3)}),
        "removed": _reply(8, removed={}),
        "open_region": _frame(9, open_region={"size_bytes": 4 * VOCAB_SIZE, "replaces": 1}),
        "share_device_memory": _frame(10, share_device_memory=DEVICE_MEMORY),
        "region_opened": _reply(9, region_opened={"region_id": 2}),
        "close_region": _frame(11, close_region={"region_id": 2}),
        "region_closed": _reply(11, region_closed={}),
        "get_programs": _frame(14, get_programs={"digests": [DIGEST]}),
        "programs": _reply(14, programs={"programs": [b"\x08\x01\x12\x04MinP"], "signatures": [b"{}"]}),
        "error": _reply(12, error=FAILED.error),
        "a large seq": _frame((1 << 53) - 1, remove={}),
    },
    "apply": {
        "request": ApplyRequest(logits=INLINE, requests=[REQUEST], num_tokens_in_batch=1),
        "response": ApplyResponse(
            logits=INLINE, failures=[FAILED, SKIPPED], applied=APPLIED, all_denied_rows=int32(0), events=EVENTS
        ),
    },
    "load": {
        "request": GetLoadRequest(),
        "response": GetLoadResponse(sessions=2, requests=65, accepts_sessions=True),
    },
    "registry": {
        "register": RegisterRequest(payload=PAYLOAD, name="team/ban-french:v2", replace=True, shared=True),
        "registered": RegisterResponse(processor=INFO, registry_id="00" * 16),
        "get": GetRequest(processor="team/ban-french:v2"),
        "got": GetResponse(processor=INFO),
        "list": ListRequest(),
        "list two": ListRequest(digests=[DIGEST, "ab" * 32]),
        "listed": ListResponse(processors=[INSTALLED, INFO], registry_id="00" * 16),
        "delete": DeleteRequest(processor=DIGEST),
        "deleted": DeleteResponse(names=["team/ban-french", "team/ban-french:v2"]),
        "get_output": GetOutputRequest(processor="team/ban-french"),
        "got_output": GetOutputResponse(outputs=[OUTPUT], dropped_characters=1200),
    },
    "admin": {
        "get status": GetStatusRequest(),
        "status": GetStatusResponse(
            version="0.1.0",
            python_version="3.11.2",
            device="cuda:0",
            uptime_seconds=86400.25,
            draining=True,
            sessions=3,
            movable_sessions=2,
            max_sessions=256,
            requests=65,
            pending_requests=1,
            steps=1 << 40,
            accepts_code=True,
            accepts_programs=True,
            isolation="process",
            requires_authentication=True,
            requires_signatures=True,
            registered_processors=7,
            max_registered_processors=1024,
            installed_processors=19,
            loader_hits=5,
            loader_misses=2,
            worker_count=1,
            max_workers=64,
            workers_lost=3,
            workers=[
                {
                    "process_id": 4242,
                    "state": "busy",
                    "memory_bytes": 1 << 33,
                    "processors": ["BanFrench (sha256:5d41402abc4b)"],
                    "owner": "team.example",
                    "principal": "engine",
                    "tenant": "acme",
                }
            ],
            quarantine_count=1,
            quarantines=[
                {
                    "digest": DIGEST,
                    "names": ["team/ban-french"],
                    "owner": "team.example",
                    "principal": "engine",
                    "tenant": "acme",
                    "reason": "3 failures or slow calls within 600 s",
                }
            ],
            time_bounds_seconds=[0.001, 0.01],
            processor_times=[{"processor": "min_p", "counts": [90, 99, 100], "total_seconds": 0.25, "rows": 400}],
        ),
        "list sessions": ListSessionsRequest(page_size=10, page_token="41"),
        "sessions": ListSessionsResponse(
            sessions=[
                {
                    "session_id": "0123456789abcdef0123456789abcdef",
                    "principal": "engine",
                    "engine": "toy 1.0",
                    "model_name": "example/tiny",
                    "transport": "local",
                    "peer": "[::1]:40312",
                    "age_seconds": 60.5,
                    "requests": 8,
                    "pending_requests": 1,
                    "max_requests": 1024,
                    "steps": 1000,
                    "last_step_age_seconds": 0.125,
                    "vocab_size": VOCAB_SIZE,
                    "datatype": "BF16",
                    "device": "cuda:0",
                    "can_move": True,
                    "should_move": True,
                }
            ],
            next_page_token="42",
        ),
        "unquarantine": UnquarantineRequest(processor="team/ban-french"),
        "unquarantined": UnquarantineResponse(processor=INFO, was_quarantined=True),
        "drain": DrainRequest(),
        "drained": DrainResponse(sessions=3, movable_sessions=2),
    },
    "errors": {
        "in the trailing metadata": Error(code=ERROR_CODE_NAME_TAKEN, message="'team/x' is another principal's"),
        "from a newer peer": Error(code=999, message="a code that this peer does not know"),
    },
}
