"""What a shipped processor might try, as real attempts: the tests make them, and so does `logitport doctor`."""

from logitport_server.sandbox.attempts import files, network, privileges, processes, resources  # noqa: F401 - registers
from logitport_server.sandbox.attempts.base import ATTEMPTS, Attempt, Targets

__all__ = ["ATTEMPTS", "Attempt", "Targets"]
