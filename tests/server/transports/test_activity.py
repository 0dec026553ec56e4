"""Description of a session for operators."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from logitport_proto import processing_pb2
from logitport_server.transports.activity import SessionActivity, readable_peer
from logitport_session.trust.principals import Principal
from tests.clock import Clock


class Session(SimpleNamespace):
    def __len__(self) -> int:
        return 3


def test_a_session_is_described() -> None:
    session: Any = Session(
        principal=Principal("engine", frozenset()), max_requests=8, pending=1, compiled_activity=(0, 0.0)
    )
    opening = processing_pb2.OpenSession(
        vocab_size=64, datatype="BF16", engine="toy 1", model_name="m" * 1000, device="cuda:0", can_move=True
    )
    clock = Clock(100.0)
    activity = SessionActivity(session, "id", opening, "ipv6:%5B::1%5D:40312", clock)
    clock.now = 101.0
    before = activity.describe(transport="grpc", should_move=False)
    assert (before.steps, before.last_step_age_seconds, before.age_seconds) == (0, 0.0, 1.0)
    activity.record_step()
    clock.now = 101.5
    after = activity.describe(transport="local", should_move=True)
    assert (after.steps, after.last_step_age_seconds, after.age_seconds) == (1, 0.5, 1.5)
    assert (after.session_id, after.principal, after.engine, after.peer) == ("id", "engine", "toy 1", "[::1]:40312")
    assert (after.requests, after.pending_requests, after.max_requests) == (3, 1, 8)
    assert (after.vocab_size, after.datatype, after.device, after.can_move) == (64, "BF16", "cuda:0", True)
    assert (after.transport, after.should_move) == ("local", True)
    assert len(after.model_name) == 256
    session.compiled_activity = (4, 101.25)
    assert activity.describe(transport="local", should_move=True).steps == 5
    assert activity.describe(transport="local", should_move=True).last_step_age_seconds == 0.25
    session.compiled_activity = (4, 101.375)
    assert activity.describe(transport="local", should_move=True).last_step_age_seconds == 0.125


@pytest.mark.parametrize(
    ("peer", "readable"),
    [
        ("ipv4:127.0.0.1:40312", "127.0.0.1:40312"),
        ("ipv6:%5B::1%5D:40312", "[::1]:40312"),
        ("unix:", "unix"),
        ("unix:/run/logitport.sock", "unix"),
        ("vsock:3:40312", "vsock:3:40312"),
        ("", ""),
    ],
)
def test_names_of_peers(peer: str, readable: str) -> None:
    assert readable_peer(peer) == readable
