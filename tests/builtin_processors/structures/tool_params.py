"""Functions, and parameters with them."""

from __future__ import annotations

from typing import Any

from tests.builtin_processors.structures.tagged import (
    CONTENTS,
)

FUNCTIONS = [
    {"type": "function", "function": {"name": "get", "strict": True, "parameters": CONTENTS["object"][0]}},
    {"type": "function", "function": {"name": "get_all", "description": "of all"}},
    {"type": "function", "function": {"name": "set", "parameters": {"properties": {"x": {"enum": [1, "}"]}}}}},
]


def tools(**changes: Any) -> dict[str, Any]:
    return {"tools": FUNCTIONS, "tool_format": "hermes", **changes}


def tool(**function: Any) -> dict[str, Any]:
    return tools(tools=[{"type": "function", "function": function}])
