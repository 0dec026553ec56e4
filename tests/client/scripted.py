"""Helpers for tests against a scripted server: replies to send and frames to inspect. The script is in conftest.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.errors import to_proto
from logitport_proto import common_pb2, processing_pb2

if TYPE_CHECKING:
    from logitport import LogitportError

VOCAB = 4


def failure(slot: int, error: LogitportError, *, skipped: bool = False) -> common_pb2.Failure:
    return common_pb2.Failure(slot=slot, error=to_proto(error), skipped=skipped)


def edits_reply(**fields: Any) -> dict[str, Any]:
    return {"edits": processing_pb2.StepEdits(**fields)}


def int32(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def zeros(rows: int = 1) -> np.ndarray[Any, Any]:
    return np.zeros((rows, VOCAB), np.float32)


def kinds(script: Any) -> list[str | None]:
    return [frame.WhichOneof("frame") for frame in script.frames]
