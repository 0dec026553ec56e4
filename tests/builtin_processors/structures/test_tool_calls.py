"""Tool calls in `grammar`: a tokenizer with special tokens, and plain checks of texts."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builtin_processors.structures.outputs import SPECIAL, Output, accepts, sample
from tests.builtin_processors.structures.tagged import (
    CONTENTS,
    Tagged,
)
from tests.builtin_processors.structures.tool_params import FUNCTIONS
from tests.tiers import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenizers import Tokenizer

pytest.importorskip("llguidance")


ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "get": [{"n": 7}, {"n": 0, "ok": False}],
    "get_all": [{}],
    "set": [{"x": "}"}, {"x": 1}],
}


def is_call(name: str, arguments: Any) -> bool:
    if name == "get":
        return CONTENTS["object"][1](arguments)
    if name == "set":
        return isinstance(arguments, dict) and arguments.get("x", 1) in (1, "}")
    return name == "get_all" and arguments == {}


def scan(text: str, begin: str, end: str) -> list[tuple[str, Any]]:
    """Read calls after any text: `begin`, a regular expression that may have a name in it, then JSON, and `end`."""
    found, calls = re.search(begin, text), list[tuple[str, Any]]()
    while found:
        value, at = json.JSONDecoder().raw_decode(text, found.end())
        assert text.startswith(end, at)
        calls.append((found[1], value) if found.groups() else (value["name"], value["arguments"]))
        found = re.compile(begin).search(text, at + len(end))
    return calls


def llama(text: str) -> list[tuple[str, Any]]:
    call = json.loads(text) if text.lstrip().startswith("{") else None
    return [(call["name"], call["parameters"])] if call else []


def mistral(text: str) -> list[tuple[str, Any]]:
    _, mark, calls = text.partition("[TOOL_CALLS]")
    return [(call["name"], call["arguments"]) for call in json.loads(calls)] if mark else []


NEWER_MISTRAL = {"begin": "[TOOL_CALLS]{name}[ARGS]", "end": "", "trigger": "[TOOL_CALLS]", "separator": ""}
TAGS = {"begin": "<fn={name}>", "end": "</fn>", "separator": " "}
FORMATS: list[tuple[Any, Callable[[str], list[tuple[str, Any]]], Callable[[list[tuple[str, str]]], str]]] = [
    (
        "hermes",
        partial(scan, begin="<tool_call>\n", end="\n</tool_call>"),
        lambda calls: "\n".join(
            f'<tool_call>\n{{"name": "{name}", "arguments": {given}}}\n</tool_call>' for name, given in calls
        ),
    ),
    (
        "llama3_json",
        llama,
        lambda calls: ";".join(f'{{"name": "{name}", "parameters": {given}}}' for name, given in calls),
    ),
    (
        "mistral",
        mistral,
        lambda calls: (
            "[TOOL_CALLS] [" + ", ".join(f'{{"name": "{name}", "arguments": {given}}}' for name, given in calls) + "]"
        ),
    ),
    (
        NEWER_MISTRAL,
        partial(scan, begin=r"\[TOOL_CALLS\](.*?)\[ARGS\]", end=""),
        lambda calls: "".join(f"[TOOL_CALLS]{name}[ARGS]{given}" for name, given in calls),
    ),
    (
        TAGS,
        partial(scan, begin="<fn=(.*?)>", end="</fn>"),
        lambda calls: " ".join(f"<fn={name}>{given}</fn>" for name, given in calls),
    ),
]
CHOICES: list[Any] = ["none", "auto", "required", {"type": "function", "function": {"name": "set"}}]


def is_right(choice: Any, calls: list[tuple[str, Any]], *, parallel: bool) -> bool:
    if not all(is_call(*call) for call in calls) or (len(calls) > 1 and not parallel):
        return False
    if choice == "none":
        return not calls
    if isinstance(choice, dict):
        return [name for name, _ in calls] == ["set"]
    return bool(calls) or choice == "auto"


def asked(form: Any, choice: Any, *, parallel: bool = True) -> dict[str, Any]:
    return {"tools": FUNCTIONS, "tool_format": form, "tool_choice": choice, "parallel_tool_calls": parallel}


@settings(max_examples=examples(120))
@given(st.sampled_from(FORMATS), st.sampled_from(CHOICES), st.booleans(), st.integers(0, 2**32))
def test_sampled_outputs_are_texts_or_calls_of_the_tools(
    no_trials: None, tokenizer: Tokenizer, form: Any, choice: Any, parallel: bool, seed: int
) -> None:
    name, parse, write = form
    wanted = [write([("set", '{"x": 1}')]), write([("get", '{"n": 2}')])[:14], "}", "\n"]
    text = sample(Output(asked(name, choice, parallel=parallel)), tokenizer, wanted, seed)
    assert text is None or is_right(choice, parse(text), parallel=parallel), text


CALLS = st.sampled_from([(name, json.dumps(one)) for name, given in ARGUMENTS.items() for one in given])


@settings(max_examples=examples(120))
@given(st.sampled_from(FORMATS), st.sampled_from(CHOICES), st.lists(CALLS, max_size=3), st.sampled_from(["", "so "]))
def test_calls_as_templates_write_them_are_accepted(
    no_trials: None, tokenizer: Tokenizer, form: Any, choice: Any, calls: list[tuple[str, str]], before: str
) -> None:
    name, _, write = form
    at_start = name == "llama3_json"
    text = (before if not at_start or not calls else "") + (write(calls) if calls else "")
    parsed = [(tool, json.loads(given)) for tool, given in calls]
    expected = is_right(choice, parsed, parallel=not at_start)
    if before and text.startswith(before):
        expected = expected and choice in ("auto", "none")
    assert accepts(asked(name, choice), tokenizer, text) == expected, text


def test_special_tokens_of_calls_are_allowed_as_ids_only(no_trials: None, tokenizer: Tokenizer) -> None:
    output = Output(asked("mistral", "auto"))
    assert SPECIAL["[TOOL_CALLS]"] in output.allowed()
    assert not {SPECIAL["<|call|>"], SPECIAL["<tool_call>"]} & set(output.allowed())
    output.append(SPECIAL["[TOOL_CALLS]"])
    assert output.allowed() == tokenizer.encode(" [{").ids[:1]
    assert SPECIAL["[TOOL_CALLS]"] not in Output(asked("mistral", "none")).allowed()


@pytest.mark.parametrize(
    ("params", "trigger"),
    [
        (asked("hermes", "auto"), "<tool_call>"),
        (asked("hermes", "none"), "<tool_call>"),
        (asked("mistral", "auto"), "[TOOL_CALLS]"),
        ({"structural_tag": Tagged([4], ["const"] * 3, False, False).param}, "!<|call|>"),
    ],
    ids=["hermes", "none", "mistral", "after text"],
)
def test_special_tokens_of_triggers_cannot_be_spelled(
    no_trials: None, tokenizer: Tokenizer, params: dict[str, Any], trigger: str
) -> None:
    """A parser of tool calls that reads text would take the spelled text for a call."""
    output = Output(params)
    *letters, last = (tokenizer.encode(char).ids[0] for char in trigger)
    for letter in letters:
        assert letter in output.allowed()
        output.append(letter)
    assert last not in output.allowed()
    assert letters[0] in output.allowed()
