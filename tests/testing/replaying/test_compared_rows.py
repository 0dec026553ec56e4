"""Rows that were recorded, beside the same rows with new versions."""

from __future__ import annotations

import numpy as np
import pytest

from logitport_proto.recording_pb2 import RecordedRow, RequestStepped
from logitport_testing.replaying.compared_rows import ComparedRow


@pytest.mark.parametrize(("chosen", "denied"), [(0, False), (1, True), (3, False), (-3, False), (None, False)])
def test_whether_the_chosen_id_is_denied(chosen: int | None, denied: bool) -> None:
    """The engine may have sent an id outside of the vocabulary; its request has failed then."""
    new = np.array([0, -np.inf, 0], np.float32)
    row = ComparedRow(RequestStepped(), RecordedRow(), [], 0, chosen, new=new)
    assert row.chosen_denied is denied
