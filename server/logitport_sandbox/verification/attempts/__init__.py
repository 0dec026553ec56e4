"""Attacks that a malicious processor might try, as real attempts. Tests, `logitport doctor` and `serve` make them."""

from logitport_sandbox.verification.attempts import files, outside, resources  # noqa: F401 - registers
from logitport_sandbox.verification.attempts.base import ATTEMPTS, Attempt, Targets

__all__ = ["ATTEMPTS", "Attempt", "Targets"]
