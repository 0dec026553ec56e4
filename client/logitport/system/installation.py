"""The packages that run steps, by name, and how to install a missing part of logitport."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

# Those whose code may stand in a traceback or a log of a processor beside the author's.
OUR_PACKAGES = (
    "logitport",
    "logitport_builtins",
    "logitport_lint",
    "logitport_programs",
    "logitport_recording",
    "logitport_runner",
    "logitport_sandbox",
    "logitport_server",
    "logitport_session",
    "logitport_testing",
)


@cache
def has_torch() -> bool:
    """Whether torch is installed; does not import torch. Without it, sessions hold logits as numpy arrays."""
    return find_spec("torch") is not None


def how_to_install(*extras: str) -> str:
    """Return the command that installs logitport with these extras, and where to run it.

    The name `logitport` alone would need a package index that has it.
    """
    return f"from a clone of logitport: pip install '.[{','.join(extras)}]'"
