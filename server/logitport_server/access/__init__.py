"""Access control: authentication, scopes and quotas, checked before a call's message is read."""

from logitport_server.access.authentication import Authenticator
from logitport_server.access.byte_budgets import ByteBudgets, Room
from logitport_server.access.call_guard import Guard, current_call
from logitport_server.access.message_parsing import Unparsed
from logitport_server.access.quotas import Quotas
from logitport_server.access.spans import rpc_attributes
from logitport_server.access.stalls import StallLimit, stall_limit
from logitport_server.access.token_file import TokenFile, new_token

__all__ = [
    "Authenticator",
    "ByteBudgets",
    "Guard",
    "Quotas",
    "Room",
    "StallLimit",
    "TokenFile",
    "Unparsed",
    "current_call",
    "new_token",
    "rpc_attributes",
    "stall_limit",
]
