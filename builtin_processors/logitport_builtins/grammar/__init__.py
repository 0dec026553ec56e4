"""`grammar`: restricts output to JSON, a regular expression, choices, a grammar, structural tags or tool calls."""

from __future__ import annotations

from logitport_builtins.grammar.processor import Grammar

__all__ = ["Grammar"]
