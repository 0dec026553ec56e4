"""Arbitrary frames of an engine: each gets a reply, and none causes an internal error."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from logitport_proto import common_pb2, processing_pb2
from logitport_server.metrics.session_counts import SessionCounts
from logitport_server.transports.session_stream import SessionStream
from tests.server.conftest import Submitted
from tests.session_streams import addition, answer

VOCAB = 10
SMALL = st.integers(-1, 4)
IDS = st.lists(st.integers(-1, VOCAB), max_size=4)
DATA = st.binary(max_size=9)


def int32(values: list[int]) -> bytes:
    return np.array(values, "<i4").tobytes()


@st.composite
def tensors(draw: st.DrawFn) -> common_pb2.Tensor:
    rows = draw(st.integers(-1, 3))
    width = draw(st.sampled_from([VOCAB, VOCAB, VOCAB, 0, 3]))
    size = draw(st.sampled_from([4 * max(rows, 0) * width, 0, 7]))
    datatype = draw(st.sampled_from(["FP32", "FP32", "FP32", "FP16", ""]))
    if draw(st.booleans()):
        return common_pb2.Tensor(datatype=datatype, shape=[rows, width], raw=bytes(size))
    shape = draw(st.lists(st.integers(-1, 12), max_size=3))
    region = common_pb2.Region(
        region_id=draw(st.integers(0, 2)), byte_offset=draw(st.sampled_from([0, 4, 5, 2**64 - 1]))
    )
    return common_pb2.Tensor(datatype=datatype, shape=shape, region=region)


@st.composite
def requests(draw: st.DrawFn) -> common_pb2.Request:
    names = st.sampled_from(["DenyHistory", "AddOutputs", "CountCalls", "Unknown"])
    calls = [
        common_pb2.ProcessorCall(
            processor=common_pb2.Processor(builtin=draw(names)),
            params=draw(st.sampled_from([b"", b"{}", b'{"bomb": 3}', b'{"refuse": 1}', b"[]", b"{"])),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    return common_pb2.Request(
        prompt_token_ids=draw(st.one_of(st.just([]), IDS)),
        prompt_ids=draw(st.one_of(st.just(b""), st.binary(max_size=9))),
        output_ids=draw(st.one_of(st.just(b""), st.binary(max_size=9))),
        processors=calls,
        on_error=draw(st.integers(0, 3)),
    )


@st.composite
def steps(draw: st.DrawFn) -> processing_pb2.Step:
    """Mostly valid steps of requests with an empty history or a random one."""
    n = draw(st.integers(0, 3))
    new = [draw(st.one_of(st.just([]), st.just([]), IDS)) for _ in range(n)]
    drafts = [draw(st.lists(st.integers(0, VOCAB - 1), max_size=2)) for _ in range(n)]
    rows = draw(st.lists(st.tuples(st.integers(0, max(n - 1, 0)), st.integers(0, 2)), max_size=4))
    columns = {
        "slots": int32(draw(st.permutations(range(3)))[:n]),
        "generations": int32([draw(st.integers(0, 1)) for _ in range(n)]),
        "base_lengths": int32([draw(st.sampled_from([0, 0, 0, 1, -1, 9])) for _ in range(n)]),
        "history_crcs": np.array(
            [draw(st.sampled_from([0, 0, zlib.crc32(int32([1]))])) for _ in range(n)], "<u4"
        ).tobytes(),
        "new_token_counts": int32([len(ids) for ids in new]),
        "new_token_ids": int32([token_id for ids in new for token_id in ids]),
        "draft_counts": int32([len(ids) for ids in drafts]),
        "draft_token_ids": int32([token_id for ids in drafts for token_id in ids]),
        "row_requests": int32([at for at, _ in rows]),
        "row_draft_offsets": int32([offset for _, offset in rows]),
    }
    if draw(st.integers(0, 3)) == 0:
        columns[draw(st.sampled_from(list(columns)))] = draw(DATA)
    return processing_pb2.Step(**columns)


FRAMES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(
        lambda slotted, in_background: {
            "add": processing_pb2.AddRequests(requests=slotted, in_background=in_background)
        },
        st.lists(
            st.builds(
                lambda slot, generation, request: processing_pb2.SlottedRequest(
                    slot=slot, generation=generation, request=request
                ),
                SMALL,
                st.integers(0, 1),
                requests(),
            ),
            max_size=3,
        ),
        st.booleans(),
    ),
    steps().map(lambda step: {"step": step}),
    steps().map(lambda step: {"step": step}),
    tensors().map(lambda tensor: {"logits": processing_pb2.StepLogits(logits=tensor)}),
    st.builds(lambda s, g: {"remove": processing_pb2.RemoveRequests(slots=s, generations=g)}, DATA, DATA),
    st.builds(
        lambda size: {"open_region": processing_pb2.OpenRegion(size_bytes=size)}, st.sampled_from([-1, 0, 40, 1 << 40])
    ),
    st.just({}),
    st.just({"logits": None}),  # with the requested number of rows
    st.just({"logits": None}),
)


@given(
    first=st.lists(st.sampled_from(["DenyHistory", "AddOutputs", "CountCalls"]), min_size=3, max_size=3),
    frames=st.lists(FRAMES, max_size=12),
    transport=st.sampled_from(["grpc", "local"]),
    skip_numbers=st.sets(st.integers(2, 12), max_size=1),
)
def test_no_frame_causes_an_internal_error(
    open_engine: Any, first: list[str], frames: list[dict[str, Any]], transport: str, skip_numbers: set[int]
) -> None:
    submitted = Submitted()
    engine = open_engine(VOCAB, max_draft_tokens=2, submit=submitted)
    stream = SessionStream(lambda _: engine.session, SessionCounts(), None)
    opening = processing_pb2.OpenSession(vocab_size=VOCAB, datatype="FP32")
    answer(stream, processing_pb2.SessionRequest(seq=1, open=opening), transport)
    seq, requested = 1, 0
    try:
        for frame in [addition(*([name] for name in first)), *frames]:
            seq += 1 + (seq in skip_numbers)
            if len(submitted) and seq % 2:
                submitted.run()
            if frame == {"logits": None}:
                fitting = common_pb2.Tensor(datatype="FP32", shape=[requested, VOCAB], raw=bytes(4 * VOCAB * requested))
                frame = {"logits": processing_pb2.StepLogits(logits=fitting)}  # noqa: PLW2901
            reply = answer(stream, processing_pb2.SessionRequest(seq=seq, **frame), transport)
            assert reply.seq == seq
            kind = reply.WhichOneof("frame")
            assert kind is not None
            requested = len(reply.edits.logits_rows) // 4 if kind == "edits" else requested
            errors = (
                [reply.error]
                if kind == "error"
                else [one.error for one in getattr(getattr(reply, kind), "failures", ())]
            )
            errors += [one.error for one in reply.added.ended if one.HasField("error")]
            for error in errors:
                assert error.code not in (common_pb2.ERROR_CODE_UNSPECIFIED, common_pb2.ERROR_CODE_INTERNAL), (
                    error.message
                )
                assert error.message
            if kind == "error" and "seq" in reply.error.message:
                seq -= 1 + (seq - 1 in skip_numbers)
    finally:
        stream.close()
