"""Limits of the frames of a session: the size of their columns, and the work of a step."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from logitport.errors import LimitExceeded

if TYPE_CHECKING:
    from logitport_proto import processing_pb2
    from logitport_server.config import ServerConfig
    from logitport_server.session.batch import StepBatch
    from logitport_server.session.columns import StepColumns


def check_size(columns: processing_pb2.Step | processing_pb2.RemoveRequests, limits: ServerConfig) -> None:
    """Check the size of a frame: unpacked columns take many times their size. Raises LimitExceeded."""
    size_bytes, limit = columns.ByteSize(), limits.max_step_bytes
    if size_bytes > limit:
        raise LimitExceeded(
            f"columns of {size_bytes} bytes in one frame; the server accepts {limit}: split them into several "
            "frames, and send long histories with AddRequests"
        )


def check_work(work: int, rows: int, limits: ServerConfig) -> None:
    """Check the work of a step: its rows times their chains' lengths, added up. Raises LimitExceeded."""
    limit = limits.max_step_work
    if work > limit:
        raise LimitExceeded(
            f"the work of a step with {rows} rows is {work} (each request's rows or drafts times its processors); "
            f"the server accepts {limit}: chain fewer processors, send fewer rows or drafts in one step, or raise "
            "--max-step-work"
        )


def check_new_ids(columns: StepColumns, batch: StepBatch, limits: ServerConfig) -> None:
    """Check the calls of processors for new ids. Raises LimitExceeded."""
    limit, longest = limits.max_step_work, batch.longest_chain
    if longest * max(map(len, columns.new_token_ids), default=0) * len(batch.chain_lengths) <= limit:
        return  # fast path for the usual step
    counts = [len(token_ids) for token_ids in columns.new_token_ids]
    work = sum(map(operator.mul, counts, batch.chain_lengths))
    if work > limit:
        raise LimitExceeded(
            f"{sum(counts)} new ids for chains of up to {longest} processors are {work} calls in "
            f"one step; the server accepts {limit}: send long histories with AddRequests, or raise --max-step-work"
        )
