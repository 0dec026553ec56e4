"""The owners whose workers may hold the GPU, as the front door decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport_server.principal_process.workers import found_grants
from logitport_server.principal_process.workers.found_grants import FoundGrants

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.server.lent_workers import Lender


def test_a_grant_is_found_once_in_a_second(lender_of: Callable[..., Lender], monkeypatch: pytest.MonkeyPatch) -> None:
    lender = lender_of()
    principal, _ = lender.principal("alice")
    asked: list[tuple[str, str]] = []

    def grants(owner: str, scope: str) -> bool:
        asked.append((owner, scope))
        return owner == "alice"

    service: Any = lender.service
    service._grants = grants
    found = FoundGrants(principal.link)
    assert not found("alice")  # there is no GPU
    service.settings.nodes.append("/dev/nvidia0")
    assert not found("alice")
    monkeypatch.setattr(found_grants, "_KEPT_SECONDS", -1.0)
    assert (found("alice"), found("bob")) == (True, False)
    assert asked == [("alice", "cuda"), ("bob", "cuda")]
