"""Tool calls in OpenAI's form: text, or calls of the request's tools in the form that the model was trained on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from logitport_builtins.grammar.structures.lark_writer import LarkWriter
from logitport_builtins.grammar.structures.param_node import ParamNode, short

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport_builtins.grammar.structures.lark_writer import Split

Choice = Literal["none", "auto", "required"]

_NAME = "{name}"
_NAMES = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")  # OpenAI's, and those of namespaces
_TYPED = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"})


@dataclass(frozen=True)
class ToolFormat:
    """How a model writes calls: `open`, calls with `separator` between them, and `close`.

    Attributes:
        begin: what is before the arguments of a call, with `{name}` for the tool's name.
        end: what is after the arguments of a call.
        trigger: a text that begins a call after other text; "" if calls are only at the start of an output.
        open: what is before the first call.
        separator: what is between calls; None if there is one call at most.
        close: what is after the last call.
    """

    begin: str
    end: str
    trigger: str
    open: str = ""
    separator: str | None = None
    close: str = ""


# Sources: the chat templates of Hermes 2 Pro, Qwen2.5 and Qwen3, Llama 3.1, and Mistral 7B v0.3.
_TAG = ToolFormat('<tool_call>\n{"name": "{name}", "arguments": ', "}\n</tool_call>", "<tool_call>", separator="\n")
FORMATS: Mapping[str, ToolFormat] = {
    "hermes": _TAG,
    "qwen": _TAG,
    "llama3_json": ToolFormat('{"name": "{name}", "parameters": ', "}", ""),
    "mistral": ToolFormat(
        '{"name": "{name}", "arguments": ', "}", "[TOOL_CALLS]", open="[TOOL_CALLS] [", separator=", ", close="]"
    ),
}


@dataclass(frozen=True)
class ToolCalls:
    """Text without a call, or text that ends with calls.

    Attributes:
        form: how the model writes calls.
        tools: names and texts of JSON schemas for the arguments.
        choice: "none" for text only, "required" for calls only, "auto" for text, calls, or text and then calls.
        parallel: whether more than one call may be written.
    """

    form: ToolFormat
    tools: tuple[tuple[str, str], ...]
    choice: Choice
    parallel: bool

    def schemas(self) -> list[tuple[str, str]]:
        """Return the schemas, each after its name for errors."""
        return [(f"the parameters of {name!r}", schema) for name, schema in self.tools]

    def to_lark(self, split: Split) -> str:
        """Write the grammar. `split` splits a text at the special tokens of the tokenizer."""
        lark, form = LarkWriter(split), self.form
        before_name, _, after_name = form.begin.partition(_NAME)
        head = form.open + before_name
        if self.choice == "none":
            return lark.grammar(lark.free_without(form.trigger) if form.trigger else lark.free_not_at_start(head))
        call = lark.any_of(
            f"{lark.literal(name + after_name)} {lark.json(schema)} {lark.literal(form.end)}"
            for name, schema in self.tools
        )
        more = ""
        if self.parallel and form.separator is not None:
            more = f"({lark.literal(form.separator + before_name)} {call})*"
        calls = f"{call} {more} {lark.literal(form.close)}"
        if self.choice == "required":
            return lark.grammar(f"{lark.literal(head)} {calls}")
        if not form.trigger:
            return lark.grammar(f"{lark.literal(head)} {calls} | {lark.free_not_at_start(head)}")
        return lark.grammar(f"{lark.free_then(form.trigger, head)} {calls} | {lark.free}")


def read_tool_calls(
    tools: ParamNode, choice: ParamNode, form: ParamNode, parallel: ParamNode, whitespace: Mapping[str, Any] | None
) -> ToolCalls:
    """Read the parameters `tools`, `tool_choice`, `tool_format` and `parallel_tool_calls`.

    Args:
        tools: OpenAI's list of tools of type "function".
        choice: OpenAI's choice; absent for "auto".
        form: name of a known format, or an object with the fields of `ToolFormat`. Its trigger is by default all that
            is before the name.
        parallel: OpenAI's flag; absent for true.
        whitespace: as for `ParamNode.schema`.

    Raises:
        InvalidArgument: a parameter is malformed, or names an unknown tool or format.
    """
    known = _read_tools(tools, whitespace)
    chosen, only = _read_choice(choice, known)
    many = parallel.flag(default=True) and not only
    return ToolCalls(_read_format(form), tuple(only or known.items()), chosen, many)


def _read_tools(node: ParamNode, whitespace: Mapping[str, Any] | None) -> dict[str, str]:
    known: dict[str, str] = {}
    for item in node.parsed().items():
        fields = item.fields("type", "function")
        fields["type"].one_of("function")
        fields = fields["function"].fields("name", "parameters", others=True)
        name = fields["name"].text()
        if not _NAMES.fullmatch(name):
            raise fields["name"].error(f"must match {_NAMES.pattern}, not {short(name)}")
        if name in known:
            raise fields["name"].error(f"is {name!r}, as of another tool; names must differ")
        known[name] = _arguments(fields["parameters"]).schema(whitespace)
    return known


def _arguments(node: ParamNode) -> ParamNode:
    """Return the schema of the arguments, which are always an object. Without a schema, there are none."""
    if node.value is None:
        return ParamNode({"type": "object", "properties": {}, "additionalProperties": False}, node.path)
    value = {} if node.value is True else node.parsed().value
    if isinstance(value, dict) and _TYPED.isdisjoint(value):
        value = {"type": "object", **value}
    return ParamNode(value, node.path)


def _read_choice(node: ParamNode, known: Mapping[str, str]) -> tuple[Choice, list[tuple[str, str]]]:
    """Return the choice, and the tool that it names, if it names one."""
    if not isinstance(node.value, dict):
        return node.one_of("none", "auto", "required", default="auto"), []  # type: ignore[return-value]
    fields = node.fields("type", "function")
    fields["type"].one_of("function")
    named = fields["function"].fields("name")["name"]
    name = named.text()
    if name not in known:
        raise named.error(f"names no tool: {short(name)}; the tools are {short(', '.join(known))}")
    return "required", [(name, known[name])]


def _read_format(node: ParamNode) -> ToolFormat:
    names = ", ".join(FORMATS)
    if isinstance(node.value, str) and node.value in FORMATS:
        return FORMATS[node.value]
    if not isinstance(node.value, dict):
        raise node.error(
            f"must be one of {names}, or an object with 'begin' and 'end', not {short(node.value)}; see the chat "
            "template of the model"
        )
    fields = node.fields("begin", "end", "trigger", "open", "separator", "close")
    begin, end, separator = fields["begin"].text(), fields["end"].text(may_be_empty=True), fields["separator"]
    opening, close = (_optional_text(fields[key]) or "" for key in ("open", "close"))
    head = opening + begin.partition(_NAME)[0]
    if begin.count(_NAME) != 1 or not head:
        raise fields["begin"].error(f"must have a text and then {_NAME} once, for the tool's name, not {short(begin)}")
    trigger = head if fields["trigger"].value is None else fields["trigger"].text(may_be_empty=True)
    if not head.startswith(trigger):
        raise fields["trigger"].error(f"must begin a call, which starts with {short(head)}, not {short(trigger)}")
    return ToolFormat(begin, end, trigger, opening, _optional_text(separator), close)


def _optional_text(node: ParamNode) -> str | None:
    return None if node.value is None else node.text(may_be_empty=True)
