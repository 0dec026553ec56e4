"""Grammars with structure beyond JSON: structural tags and tool calls, read from parameters and written as Lark."""

from __future__ import annotations

from logitport_builtins.grammar.structures.lark_writer import SpecialToken, Split, unsplit
from logitport_builtins.grammar.structures.param_node import ParamNode, short
from logitport_builtins.grammar.structures.tagged_text import TaggedText, read_tags
from logitport_builtins.grammar.structures.tool_calls import ToolCalls, read_tool_calls

__all__ = [
    "ParamNode",
    "SpecialToken",
    "Split",
    "TaggedText",
    "ToolCalls",
    "read_tags",
    "read_tool_calls",
    "short",
    "unsplit",
]
