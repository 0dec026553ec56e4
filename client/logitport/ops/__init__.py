"""Edits of logits in place: one implementation for each platform, chosen by the device of the logits."""

from logitport.ops.apply_edits import ApplyEdits
from logitport.ops.implementations import (
    Implementation,
    apply_edits,
    check_variable,
    configure,
    current,
    list_implementations,
    register_oot,
)

__all__ = [
    "apply_edits",
    "check_variable",
    "configure",
    "current",
    "list_implementations",
    "register_oot",
    "ApplyEdits",
    "Implementation",
]
