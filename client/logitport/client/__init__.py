"""The client of engines and operators: unary calls, and the opening of sessions."""

from typing import TYPE_CHECKING

from logitport.system.lazy import names_of

if TYPE_CHECKING:
    from logitport.client.client import Client
    from logitport.client.server_client import ServerClient

__all__ = ["Client", "ServerClient"]

__getattr__ = names_of(
    __name__,
    {
        "logitport.client.client": "Client",
        "logitport.client.server_client": "ServerClient",
    },
)
