"""The bound of whitespace in the JSON of `grammar`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from logitport_builtins.grammar import grammar_spec
from logitport_builtins.grammar.structures import json_whitespace
from tests.builtin_processors.structures.outputs import Output, accepts
from tests.builtin_processors.structures.tool_params import tools

if TYPE_CHECKING:
    from tokenizers import Tokenizer

pytest.importorskip("llguidance")


@pytest.mark.parametrize(
    ("options", "newlines", "blanks"),
    [
        ({}, 2, 40),
        ({"disable_any_whitespace": True}, 0, 0),
        ({"disable_any_whitespace": False}, 99, 99),
        ({"whitespace_pattern": r"\n{0,4}"}, 4, 0),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", ["json_object", "tools"])
def test_whitespace_in_json_is_bounded_by_default(
    no_trials: None, tokenizer: Tokenizer, form: str, options: dict[str, Any], newlines: int, blanks: int
) -> None:
    """A model that writes newlines, and one that writes blanks, wherever it may."""
    params = {"json_object": True} if form == "json_object" else tools(tool_choice="required")
    opened = "{" if form == "json_object" else '<tool_call>\n{"name": "get", "arguments": {'
    for (token_id,), bound in ((tokenizer.encode("\n").ids, newlines), (tokenizer.encode(" ").ids, blanks)):
        output = Output(params | options)
        output.append(*tokenizer.encode(opened).ids)
        written = 0
        while written < 99 and token_id in output.allowed():
            output.append(token_id)
            written += 1
        assert written == bound


def test_indented_json_is_within_the_bound(no_trials: None, tokenizer: Tokenizer) -> None:
    value: Any = {"deep": {}, "list": [1, {"a": None}]}
    for _ in range(4):
        value = {"one": value}
    for indent in (None, 2, 4, "\t"):
        assert accepts({"json_object": True}, tokenizer, json.dumps(value, indent=indent))
        assert accepts({"json_object": True}, tokenizer, json.dumps(value, indent=indent).replace("\n", "\r\n"))


def test_options_of_the_schema_for_whitespace_are_kept(no_trials: None, tokenizer: Tokenizer) -> None:
    compact = {"type": "object", "x-guidance": {"whitespace_flexible": False}}
    assert accepts({"json_schema": compact}, tokenizer, '{"a":1}')
    assert not accepts({"json_schema": compact}, tokenizer, '{"a": 1}')
    assert accepts({"json_schema": compact, "disable_any_whitespace": False}, tokenizer, '{"a": 1}')


def test_whitespace_is_bounded_with_an_older_llguidance(
    no_trials: None, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_whitespace, "version", lambda name: "1.7.6")
    json_whitespace.bound.cache_clear()
    try:
        read = grammar_spec.read_grammar({"json_object": True})
        for text, right in [
            ('{"a": 1, "b":[1,\n\n 2]}', True),
            ('{"a": 1,\n\n\n "b": 2}', False),
            ('{"a":' + " " * 81 + "1}", False),
            ('{ "a": 1}', False),
            ('{"a": 1 }', False),
        ]:
            assert accepts({"json_object": True}, tokenizer, text) == right, text
    finally:
        json_whitespace.bound.cache_clear()
    assert "whitespace_pattern" not in read.text
