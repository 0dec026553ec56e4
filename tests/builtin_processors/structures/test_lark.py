"""Lark in `grammar`, with special tokens."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import pytest

from logitport.errors import InvalidArgument, ProcessorFailed
from logitport_builtins.grammar import grammar_spec
from tests.builtin_processors.structures.outputs import EOS, VOCAB, Output
from tests.docs.pages import read, section

pytest.importorskip("llguidance")


@pytest.mark.parametrize(
    ("lark", "ids", "then"),
    [
        ('start: "a" <|call|> "a"', [66], [314]),
        ('start: "a" <|call|> "a"', [66, 314], [66]),
        ("start: <[5,7-9]> <tool_call>", [], [5, 7, 8, 9]),
        ("start: <[5,7-9]> <tool_call>", [8], [315]),
        ("start: <[^0-310,312-400]>", [], [311]),
        ('start: ("a" <[314]>)* "b"', [66, 314], [66, 67]),
        ('start: "a" <|end|>', [66], [EOS]),  # an id that ends outputs, named by the grammar
        ('start: "a" <|end|>', [66, EOS], [EOS]),
        ('start: <|end|> "a"', [], [EOS]),
        ('start: <|end|> "a"', [EOS], [66]),
        ('start: "a" %json {"const": 1}', [66], [18]),
        ('// a stop="x" that is none\nstart: "max_tokens=3" # temperature=1', [], [78]),
    ],
)
def test_lark_with_special_tokens(no_trials: None, lark: str, ids: list[int], then: list[int]) -> None:
    lark = lark.replace("400", str(VOCAB - 36))
    output = Output({"lark": lark})
    output.append(*ids)
    assert output.allowed() == then
    if ids:
        output.cut(0)
        assert output.allowed() == Output({"lark": lark}).allowed()


def test_any_token_before_the_end_is_no_end(no_trials: None) -> None:
    output = Output({"lark": 'start: <[*]> "a"'})
    assert output.allowed() == list(range(317))
    output.append(EOS)
    assert output.allowed() == [66]
    by_text = Output({"lark": 'start: <[*]> "a"'}, eos_token_ids=[66, VOCAB - 1])
    assert by_text.allowed() == [one for one in range(317) if one != 66]
    by_text.append(66)
    with pytest.raises(ProcessorFailed, match="id at index 0 is 66, which the grammar does not allow"):
        by_text.allowed()


def test_a_forced_sequence_of_dynamo(no_trials: None) -> None:
    """The function of docs/dialects.md, with an entry as ai-dynamo 1.6.1 writes it."""
    (code,) = re.findall(r"  ```python\n(.*?)  ```", section(read("docs/dialects.md"), "NVIDIA Dynamo"), re.DOTALL)
    made: dict[str, Any] = {}
    exec(textwrap.dedent(code), made)
    entries = [{"kind": "forced_sequence", "token_ids": [5, 314, 7], "eos_token_id": EOS}]
    ((name, params),) = made["chain_of"](entries)
    assert name == "grammar"
    output = Output(params)
    for expected in (5, 314, 7, EOS, EOS):
        assert output.allowed() == [expected]
        output.append(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"lark": "start: <|nope|>"}, "with tokenizer 'special': .*unknown special token: \"<|nope|>\""),
        ({"lark": "start: <[317]> <[400]>"}, "with tokenizer 'special': .*end too large: 400"),
        ({"lark": f"start: <[{1 << 19}]>"}, "lark: token id 524288 is above 524287"),
        ({"lark": f"start: <[{(1 << 19) - 1}]>"}, "with tokenizer 'special': .*end too large: 524287"),
        ({"lark": "start: <[9-5]>"}, "lark: .*nvalid token range"),
        ({"lark": "start: other"}, "lark: .*other"),
        ({"lark": 'start: A\nA: "a" <|call|>'}, "lark: .*cannot be used in terminals"),
        ({"lark": 'start: "a\\ud800"'}, "lark: "),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "e", "parameters": {}}},
                    {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}},
                ],
                "tool_format": "qwen",
            },
            "tools: the parameters of 'f': Unimplemented keys: .\"not\".$",
        ),
        (
            {
                "structural_tag": {
                    "type": "structural_tag",
                    "structures": [{"begin": "<f=a>", "schema": {"type": "strin"}, "end": "</f>"}],
                    "triggers": ["<f="],
                }
            },
            "structural_tag: the schema of '<f=a>': Invalid type: strin$",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_the_library_refuses_fails_the_request(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"(?s)^grammar: .*{message}") as raised:
        Output(params)
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("text", ['\\"', "\\/", '/"', "stop ", "<", "# \\"], ids=repr)
def test_long_lark_is_read_in_linear_time(text: str) -> None:
    """Some of these would take minutes if each character could begin an unclosed string."""
    lark = text * (120_000 // len(text)) + "\\"
    assert grammar_spec.read_grammar({"lark": lark}).text == lark
