"""Names of error codes in logs and metrics."""

from __future__ import annotations

from logitport_proto import common_pb2


def code_label(code: int) -> str:
    """The label of an error code, such as "INVALID_ARGUMENT"."""
    return common_pb2.ErrorCode.Name(common_pb2.ErrorCode.ValueType(code)).removeprefix("ERROR_CODE_")
