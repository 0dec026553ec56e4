"""Frames and replies of a session's stream, as messages."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport_proto import common_pb2, processing_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_server.transports.session_stream import SessionStream


def answer(
    stream: SessionStream, frame: processing_pb2.SessionRequest, transport: str
) -> processing_pb2.SessionResponse:
    """Process a frame that arrived by `transport`, and return its reply."""
    return processing_pb2.SessionResponse.FromString(stream.reply(frame.SerializeToString(), transport))


def addition(
    *chains: Sequence[str],
    slot: int = 0,
    prompt: Sequence[int] = (),
    params: bytes = b"",
    in_background: bool = False,
) -> dict[str, Any]:
    """The frame that adds a request for each chain of names, in this slot and those after it."""
    requests = [
        processing_pb2.SlottedRequest(
            slot=slot + number,
            request=common_pb2.Request(
                prompt_token_ids=prompt,
                processors=[
                    common_pb2.ProcessorCall(processor=common_pb2.Processor(builtin=name), params=params)
                    for name in chain
                ],
            ),
        )
        for number, chain in enumerate(chains)
    ]
    return {"add": processing_pb2.AddRequests(requests=requests, in_background=in_background)}


def step_of(history: Sequence[int], *new_token_ids: int, slots: Sequence[int] = (0,)) -> dict[str, Any]:
    """The frame of a step of the requests in these slots, which have the same history."""
    count = len(slots)
    return {
        "step": processing_pb2.Step(
            slots=_int32(slots),
            generations=_int32([0] * count),
            base_lengths=_int32([len(history)] * count),
            history_crcs=np.full(count, zlib.crc32(_int32(history)), "<u4").tobytes(),
            new_token_counts=_int32([len(new_token_ids)] * count),
            new_token_ids=_int32([*new_token_ids] * count),
        )
    }


def _int32(values: Sequence[int]) -> bytes:
    return np.array(values, "<i4").tobytes()
