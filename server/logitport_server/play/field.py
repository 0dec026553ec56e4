"""One parameter in a form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Field:
    """One parameter.

    Attributes:
        name: its key.
        kind: "number", "integer", "boolean", "text", "token_ids" or "json".
        default: the value for requests that do not set it; None if there is none.
        minimum, maximum: the limits of a number, inclusive; None for none.
        required: whether a request must set it.
        help: one line about it.
    """

    name: str
    kind: str
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    required: bool = False
    help: str = ""
