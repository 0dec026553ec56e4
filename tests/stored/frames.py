"""Frames that the SDK does not send: typical errors of engines in other languages, and every kind of refusal."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from logitport_proto import common_pb2, processing_pb2
from tests.stored.decoding import PROMPT, VOCAB


def faulty_frames() -> list[processing_pb2.SessionRequest]:
    """Return the frames of one session. Valid frames surround the invalid ones."""
    wrong_crc = _step([1], crc=0)
    frames: list[dict[str, Any]] = [
        {"step": _step([])},
        {"open": processing_pb2.OpenSession(vocab_size=VOCAB, datatype="INT8")},
        {"open": processing_pb2.OpenSession(vocab_size=VOCAB, datatype="FP32", max_requests=2, max_draft_tokens=1)},
        {"open": processing_pb2.OpenSession(vocab_size=VOCAB, datatype="FP32")},
        {"step": _step([])},
        {"add": _add(_request(), slot=9)},
        {"add": _add(_request(VOCAB))},
        {"add": _add(_request(params=b"[]"))},
        {"add": _add(_request(params=b'{"token_ids": [99]}'))},
        {"add": _add(_request(builtin="no_such_builtin"))},
        {"add": _add(_request(name="team/unbound"))},
        {"add": _add(_request(name="No Name"))},
        {"add": _add(_request(payload="{}"))},
        {"add": _add(_request())},
        {"add": _add(_request(), generation=1)},
        {"step": _step([])},
        {"step": wrong_crc},
        {"add": _add(_request())},
        {"step": _step([1])},
        {"step": _step([-1], base=[*PROMPT, 1])},
        {"add": _add(_request())},
        {"step": _step([], drafts=[1, 2])},
        {"step": processing_pb2.Step(slots=b"\0")},
        {"step": _step([], generation=5)},
        {"logits": processing_pb2.StepLogits()},
        {"remove": processing_pb2.RemoveRequests(slots=_int32(0), generations=_int32(5))},
        {"step": _step([])},
        {"remove": processing_pb2.RemoveRequests(slots=_int32(0), generations=_int32(0))},
        {"step": _step([])},
        {"close_region": processing_pb2.CloseRegion(region_id=1)},
        {"open_region": processing_pb2.OpenRegion(size_bytes=4096)},
        {"add": _add(_request(), generation=6)},
        {"step": _step([], generation=6)},
    ]
    numbered = [processing_pb2.SessionRequest(seq=seq, **frame) for seq, frame in enumerate(frames, 1)]
    # The last frame again, a frame with a gap before it, and a frame that sets nothing.
    skipping = processing_pb2.SessionRequest(seq=len(frames) + 2, step=_step([]))
    empty = processing_pb2.SessionRequest(seq=len(frames) + 1)
    return [*numbered, numbered[-1], skipping, empty]


def faulty_regions() -> list[processing_pb2.SessionRequest]:
    """Return frames about shared memory, which follow `faulty_frames` on a local transport."""
    reading = _request(params=b'{"temperature": 0.5}', builtin="temperature")
    frames: list[dict[str, Any]] = [
        {"open_region": processing_pb2.OpenRegion(size_bytes=0)},
        {"open_region": processing_pb2.OpenRegion(size_bytes=1 << 50)},
        {"remove": processing_pb2.RemoveRequests(slots=_int32(0), generations=_int32(6))},
        {"add": _add(reading, generation=7)},
        {"step": _step([], generation=7)},
        {"logits": _logits(9, 0)},
        {"logits": _logits(1, 1 << 40)},
        {"logits": _logits(1, 4096 - 4)},
        {"logits": _logits(1, 0)},
        {"logits": _logits(1, 0)},
        {"open_region": processing_pb2.OpenRegion(size_bytes=8192, replaces=1)},
        {"step": _step([], generation=7)},
        {"logits": _logits(2, 4096)},
        {"close_region": processing_pb2.CloseRegion(region_id=2)},
        {"close_region": processing_pb2.CloseRegion(region_id=2)},
    ]
    # After the last frame of the others that was accepted.
    first = max(frame.seq for frame in faulty_frames())
    return [processing_pb2.SessionRequest(seq=seq, **frame) for seq, frame in enumerate(frames, first)]


def _logits(region_id: int, byte_offset: int) -> processing_pb2.StepLogits:
    region = common_pb2.Region(region_id=region_id, byte_offset=byte_offset)
    return processing_pb2.StepLogits(logits=common_pb2.Tensor(datatype="FP32", shape=[1, VOCAB], region=region))


def _request(*more: int, params: bytes = b'{"token_ids": [3]}', **processor: str) -> common_pb2.Request:
    named = common_pb2.Processor(**(processor or {"builtin": "disallowed_tokens"}))
    call = common_pb2.ProcessorCall(processor=named, params=params)
    return common_pb2.Request(request_id="r", prompt_token_ids=[*PROMPT, *more], processors=[call])


def _add(request: common_pb2.Request, slot: int = 0, generation: int = 0) -> processing_pb2.AddRequests:
    return processing_pb2.AddRequests(
        requests=[processing_pb2.SlottedRequest(slot=slot, generation=generation, request=request)]
    )


def _step(
    new: list[int],
    *,
    base: list[int] | None = None,
    crc: int | None = None,
    generation: int = 0,
    drafts: list[int] | None = None,
) -> processing_pb2.Step:
    history = [*PROMPT] if base is None else base
    checksum = zlib.crc32(_int32(*history)) if crc is None else crc
    return processing_pb2.Step(
        slots=_int32(0),
        generations=_int32(generation),
        base_lengths=_int32(len(history)),
        history_crcs=np.array([checksum], "<u4").tobytes(),
        new_token_counts=_int32(len(new)),
        new_token_ids=_int32(*new),
        draft_counts=_int32(len(drafts)) if drafts else b"",
        draft_token_ids=_int32(*(drafts or ())),
    )


def _int32(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()
