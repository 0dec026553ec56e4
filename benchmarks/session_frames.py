"""The serialized frames of a session, made before they are sent."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.workloads import Workload
from logitport import Request
from logitport.session.frames import Handle, add_frames, step_frame
from logitport_proto.processing_pb2 import OpenSession, SessionRequest, SessionResponse


class SessionFrames(NamedTuple):
    """The frames of one session, in order.

    Attributes:
        admissions: the frame that opens the session, and those that add its requests.
        steps: one frame for each step.
    """

    admissions: list[bytes]
    steps: list[bytes]


def session_frames(workload: Workload, steps: int) -> SessionFrames:
    """Serialize the frames of a session with the workload's requests."""
    prompt = workload.history // 2
    handles = []
    for row, ids in enumerate(workload.histories().tolist()):
        kind = workload.kind(row)
        chain = [(kind.ours, kind.params)] if kind is not None else []
        handles.append(Handle(row, 0, Request(ids[:prompt], ids[prompt:], chain)))
    opening = OpenSession(vocab_size=workload.vocab_size, datatype="FP32", max_requests=workload.rows)
    admissions = [SessionRequest(open=opening), *(SessionRequest(add=add) for add in add_frames(handles))]
    for seq, frame in enumerate(admissions, 1):
        frame.seq = seq
    frames = []
    for seq, token_ids in enumerate(workload.sampled(steps), len(admissions) + 1):
        new = {handle: (token_id,) for handle, token_id in zip(handles, token_ids, strict=True)}
        step = step_frame(new, {}, [(handle, 0) for handle in handles], workload.vocab_size)
        frames.append(SessionRequest(seq=seq, step=step).SerializeToString())
        for handle, new_ids in new.items():
            handle.history.extend(new_ids)
    return SessionFrames([frame.SerializeToString() for frame in admissions], frames)


def check_admission(reply: bytes) -> SessionResponse:
    """Parse the reply to a frame of `admissions`. Raises AssertionError if it is an error, or refuses a request."""
    parsed = SessionResponse.FromString(reply)
    assert not parsed.HasField("error"), parsed
    assert not parsed.added.failures, parsed
    return parsed
