"""Who calls, whether they may, and how much: settled before a message of theirs is read."""

from logitport_server.access.authentication import Authenticator
from logitport_server.access.guard import Guard, current_call, stalling
from logitport_server.access.quotas import Quotas
from logitport_server.access.tokens import TokenFile, new_token

__all__ = ["Authenticator", "Guard", "Quotas", "TokenFile", "current_call", "new_token", "stalling"]
