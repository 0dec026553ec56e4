"""How to install a missing part of logitport, for messages."""

from __future__ import annotations


def how_to_install(*extras: str) -> str:
    """Return the command that installs logitport with these extras, and where to run it.

    The name `logitport` alone would need a package index that has it.
    """
    return f"from a clone of logitport: pip install '.[{','.join(extras)}]'"
