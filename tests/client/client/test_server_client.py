"""One server of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from logitport import EditProcessor
from logitport_proto import registry_pb2

if TYPE_CHECKING:
    from logitport import Client


class Denies(EditProcessor):
    def edit(self, request: Any, edits: Any) -> None:
        edits.deny([1])


@pytest.mark.parametrize(("deleted", "repeated"), [("name", [""]), ("digest", [])])
def test_what_was_deleted_at_one_server_is_not_registered_again(
    client: Client, deleted: str, repeated: list[str]
) -> None:
    registered = client.register(Denies, name="team/denies", replace=True)
    client.servers()[0].delete("team/denies" if deleted == "name" else registered.digest)
    names = []

    def next_server(method: str, message: Any) -> Any:
        if method == "Register":
            names.append(message.name)
        return registry_pb2.ListResponse(registry_id="next") if method == "List" else registry_pb2.RegisterResponse()

    client._registrations.restore(next_server)
    assert names == repeated
