"""What a step came to, as messages."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from logitport.errors import to_proto
from logitport_proto import common_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logitport_proto import processing_pb2
    from logitport_server.session.outcome import Outcome


def int32_column(values: Iterable[int]) -> bytes:
    """A column of int32."""
    listed = list(values)
    return struct.pack(f"<{len(listed)}i", *listed)


def write_outcome(
    reply: processing_pb2.StepEdits | processing_pb2.StepLogitsEdited | processing_pb2.ApplyResponse,
    outcome: Outcome,
    all_denied_rows: Sequence[int],
) -> None:
    """Who failed, what was applied, which rows have no id left."""
    if outcome.failures:
        reply.failures.extend(
            common_pb2.Failure(slot=slot, error=to_proto(failed.error), skipped=failed.skipped)
            for slot, failed in outcome.failures.items()
        )
    if applied := outcome.applied:
        names = outcome.names
        for key, rows in applied.items():
            reply.applied.add(processor=key, rows=rows, display_name=names[key] if names[key] != key else "")
    if all_denied_rows:
        reply.all_denied_rows = int32_column(all_denied_rows)
