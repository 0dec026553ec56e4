"""Structural tags and tools that are malformed."""

from __future__ import annotations

from typing import Any

import pytest

from logitport.errors import InvalidArgument
from logitport_builtins.grammar import grammar_spec
from tests.builtin_processors.structures.tool_params import FUNCTIONS, tool, tools

pytest.importorskip("llguidance")


def structural(**changes: Any) -> dict[str, Any]:
    tag = {"begin": "<f=a>", "content": {"type": "json_schema", "json_schema": {}}, "end": "</f>"}
    tags_format = {"type": "triggered_tags", "triggers": ["<f="], "tags": [tag], **changes}
    return {"structural_tag": {"type": "structural_tag", "format": tags_format}}


def legacy(**changes: Any) -> dict[str, Any]:
    return {"structural_tag": {"type": "structural_tag", "structures": [changes], "triggers": ["<f"]}}


def tag_of(**changes: Any) -> dict[str, Any]:
    content = {"type": "json_schema", "json_schema": {}}
    return structural(tags=[{"begin": "<f=", "content": content, "end": "</f>", **changes}])


MALFORMED = [
    ({"lark": 5}, "lark must be a string, not 5"),
    ({"lark": '{"grammars": []}'}, "lark must be Lark, not a JSON list"),
    ({"lark": 'start: x\nx[stop="a", lazy]: /b*/'}, "rule option stop= is not supported: .*suffix"),
    ({"lark": "start: x\nx[ max_tokens = 3]: /b*/"}, "rule option max_tokens= .*bound the characters"),
    ({"lark": "start: x\nx[temperature=0.5]: /b*/"}, "rule option temperature= .*add the processor"),
    ({"lark": 'start: "a"', "whitespace_pattern": " "}, "applies only to JSON, but the grammar is of kind lark"),
    ({"lark": 'start: /"/ x\nx[stop=/a/]: "b"'}, "rule option stop= is not supported"),
    ({"regex": "a", "tool_choice": "auto"}, "tool_choice applies only to tools, but the grammar is of kind regex"),
    ({"structural_tag": 5}, "structural_tag must be an object, not 5"),
    ({"structural_tag": "{"}, "structural_tag is not JSON"),
    ({"structural_tag": "[" * 1000 + "]" * 1000}, "structural_tag must be an object, not .*nested"),
    ({"structural_tag": {"type": "json_object"}}, "structural_tag.type must be one of structural_tag"),
    ({"structural_tag": {"type": "structural_tag"}}, "must have either 'format', or 'structures' and 'triggers'"),
    ({"structural_tag": {"type": "structural_tag", "what": 1}}, "has 'what', which is not supported"),
    (
        structural(type="sequence"),
        "format.type must be 'triggered_tags', not 'sequence'; write other formats as `lark`",
    ),
    (structural(type=["sequence"]), "format.type must be 'triggered_tags'"),
    (structural(excludes=["x"]), "format has 'excludes', which is not supported"),
    (structural(triggers=None), "format.triggers must be a list of one item or more, not None"),
    (structural(triggers=["<f=", ""]), r"format.triggers\[1\] is empty"),
    (structural(triggers=["<f=", 5]), r"format.triggers\[1\] must be a string, not 5"),
    (structural(triggers=["<g="]), "format.triggers has '<g=', with which no tag begins"),
    (structural(triggers=["<f=", "f"]), "format.triggers has 'f', which is a part of '<f='"),
    (structural(tags=[]), "format.tags must be a list of one item or more"),
    (structural(tags=[5]), r"format.tags\[0\] must be an object, not 5"),
    (structural(tags=[{}] * 257), "format.tags has 257 items; the limit is 256"),
    (structural(at_least_one=1), "format.at_least_one must be true or false, not 1"),
    (tag_of(begin=None), r"tags\[0\].begin is missing"),
    (tag_of(begin={"type": "token", "token": 5}), r"tags\[0\].begin must be a string"),
    (tag_of(begin="<g"), "triggers has '<f=', with which no tag begins"),
    (tag_of(end=None), r"tags\[0\].end is missing"),
    (tag_of(end=[]), r"tags\[0\].end must be a list of one item or more"),
    (
        tag_of(content={"type": "regex", "pattern": "a"}),
        "content.type must be one of json_schema, const_string, any_text",
    ),
    (tag_of(content=None), r"tags\[0\].content is missing"),
    (tag_of(content={"type": "any_text"}, end=""), r"tags\[0\].end is empty"),
    (tag_of(content={"type": "any_text", "max_tokens": 5}), "content has 'max_tokens', which is not supported"),
    (tag_of(content={"type": "json_schema"}), "content.json_schema must be a JSON schema, .*not None"),
    (tag_of(content={"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}), "style must be one of json"),
    (tag_of(begin="<f=" + "x" * 4094), r"tags\[0\].begin has 4097 characters; the limit is 4096"),
    (tag_of(begin="<f=\ud800"), r"tags\[0\].begin is not valid Unicode text"),
    (legacy(begin="<f>", schema={}), r"structures\[0\].end is missing"),
    (legacy(begin="<f>", end="", schema=False), r"structures\[0\].schema is false, which nothing matches"),
    (legacy(begin="g", end="", schema={}), "triggers has '<f', with which no tag begins"),
    (legacy(schema={}, end="</f>"), r"structures\[0\].begin is missing"),
    (tools(tools=[]), "tools must be a list of one item or more"),
    (tools(tools="["), "tools is not JSON"),
    (tools(tools=[{"type": "web_search"}]), r"tools\[0\].type must be one of function, not 'web_search'"),
    (tools(tools=[{"type": "function", "name": "f"}]), r"tools\[0\] has 'name', which is not supported"),
    (tools(tools=FUNCTIONS * 2), r"tools\[3\].function.name is 'get', as of another tool"),
    (tools(tool_format=None), "tool_format must be one of hermes, qwen, llama3_json, mistral, or an object .*not None"),
    (tools(tool_format="qwen3_xml"), "tool_format must be one of hermes, .*not 'qwen3_xml'"),
    (tools(tool_format={"begin": "<f>", "end": ""}), "tool_format.begin must have a text and then {name} once"),
    (tools(tool_format={"begin": "{name}", "end": ""}), "tool_format.begin must have a text and then {name} once"),
    (tools(tool_format={"begin": "<{name}>"}), "tool_format.end is missing"),
    (tools(tool_format={"begin": "<{name}>", "end": "", "trigger": "x"}), "trigger must begin a call, .*'<', not 'x'"),
    (tools(tool_format={"begin": "<{name}>", "end": "", "close": 5}), "tool_format.close must be a string, not 5"),
    (tools(tool_choice="any"), "tool_choice must be one of none, auto, required, not 'any'"),
    (tools(tool_choice={"type": "allowed_tools"}), "tool_choice.type must be one of function, not 'allowed_tools'"),
    (
        tools(tool_choice={"type": "function", "function": {"name": "no"}}),
        "name names no tool: 'no'; the tools are 'get, ",
    ),
    (tools(parallel_tool_calls="no"), "parallel_tool_calls must be true or false, not 'no'"),
    (tool(name="a b"), r"tools\[0\].function.name must match .*, not 'a b'"),
    (tool(parameters={}), r"tools\[0\].function.name is missing"),
    (
        tool(name="f", parameters=[]),
        r"function.parameters must be a JSON schema, an object, or the text of one, not \[\]",
    ),
    (tool(name="f", parameters={"x-guidance": 5}), "has an 'x-guidance' that is not an object: 5"),
    (tool(name="f", parameters={"default": "x" * grammar_spec.MAX_TEXT_LENGTH}), "tools is longer than 131072 bytes"),
]


@pytest.mark.parametrize(("params", "message"), MALFORMED, ids=lambda value: str(value)[-60:])
def test_malformed_structures_are_refused_by_name(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"(?s)^grammar: .*{message}") as raised:
        grammar_spec.read_grammar(params)
    assert len(str(raised.value)) < 500
