"""`grammar`: restricts output to a JSON schema, a regular expression, a list of choices or an EBNF grammar."""

from __future__ import annotations

from logitport_builtins.grammar.processor import Grammar

__all__ = ["Grammar"]
