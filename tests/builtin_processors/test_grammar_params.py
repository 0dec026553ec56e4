"""Parameters of `grammar`, their errors, and requirements for tokenizers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from logitport.core.history import History
from logitport.errors import InvalidArgument, PayloadError, ProcessorFailed
from logitport.processors import EditRequest
from logitport_builtins import Grammar
from logitport_builtins.grammar import grammar_spec, grammar_tokenizer, trial
from tests.tokenizer_files import EOS, write_trained, write_vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("llguidance")

PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
LEGACY_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f=a>", "schema": PERSON, "end": "</f>"}],
    "triggers": ["<f="],
}

GOOD = [
    {"json_schema": PERSON},
    {"json_schema": json.dumps(PERSON), "whitespace_pattern": "[ ]?"},
    {"json_schema": True, "disable_any_whitespace": False},
    {"json_schema": {"oneOf": [{"type": "string"}, {"enum": ["a", 1, None]}]}},
    {"json_object": True, "disable_any_whitespace": True, "regex": None},
    {"regex": r"\d{4}-\d\d-\d\d|(?i)today"},
    {"regex": "^ab$"},
    {"choice": ["yes", "no", "ä\U0001f600\n\"'\\"]},
    {"ebnf": 'root ::= ("a" | "b" root)* [^"\\\\] .'},
    {"ebnf": 'root ::= "\\u00e9\\U0001f600\\x41"'},
    {"lark": 'start: "a" <|end|> <[5-9]> %json {"type": "object"}'},
    {"structural_tag": json.dumps(LEGACY_TAG), "disable_any_whitespace": True},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": PERSON}}], "tool_format": "mistral"},
    {"regex": "a", "__req__": SimpleNamespace()},
]

BAD = [
    ({}, "exactly one of json_schema, .*, ebnf, lark, structural_tag, tools, not none"),
    ({"regex": None}, "not none"),
    ({"regex": "a", "ebnf": 'root ::= "a"'}, "not regex and ebnf"),
    ({"grammar": "a"}, "unknown parameter 'grammar'; known parameters: json_schema, json_object"),
    ({"regex": 5}, "regex must be a string, not 5"),
    ({"regex": "a\ud800"}, "regex is not valid Unicode text"),
    ({"regex": "a("}, r"regex: at 1\(8\): invalid regex"),
    ({"regex": r"(?=a)b"}, "look-around"),
    ({"regex": r"(a)\1"}, "backreferences are not supported"),
    ({"regex": "[^\\s\\S]"}, "regex: no text matches it"),
    (
        {"regex": "a", "whitespace_pattern": " "},
        "whitespace_pattern applies only to JSON, but the grammar is of kind regex",
    ),
    ({"json_object": True, "whitespace_pattern": "("}, "json_schema: whitespace_pattern: .*unclosed group"),
    ({"json_object": True, "whitespace_pattern": 1}, "whitespace_pattern must be a string, not 1"),
    ({"json_object": True, "whitespace_pattern": "", "disable_any_whitespace": True}, "exclude each other"),
    ({"json_object": True, "disable_any_whitespace": 1}, "must be true or false, not 1"),
    ({"json_object": False}, "json_object must be true"),
    ({"json_schema": "{"}, "json_schema is not JSON"),
    ({"json_schema": []}, r"must be a JSON schema, an object, or the text of one, not \[\]"),
    (
        {"json_schema": {"name": "person", "strict": True, "schema": PERSON}},
        "json_schema has the form of OpenAI's response_format: give the schema alone, the object under 'schema'",
    ),
    ({"json_schema": {"type": "json_schema", "json_schema": {"schema": PERSON}}}, "alone, the object under 'schema'"),
    ({"json_schema": {"type": {1, 2}}}, "json_schema is not JSON"),
    ({"json_schema": {"type": "strin"}}, "json_schema: Invalid type: strin"),
    ({"json_schema": {"not": {}}}, 'Unimplemented keys: ."not".'),
    ({"json_schema": False}, "json_schema is false, which nothing matches"),
    ({"json_schema": {"$ref": "#/$defs/nowhere"}}, "json_schema: .*nowhere"),
    ({"json_schema": {"$ref": "file:///etc/passwd"}}, "file:///etc/passwd"),
    ({"json_schema": {"$ref": "#"}}, "no text matches it"),
    ({"choice": []}, r"choice must be a list of one string or more, not \[\]"),
    ({"choice": "ab"}, "not 'ab'"),
    ({"choice": ["a", 1]}, r"not \['a', 1\]"),
    ({"choice": ["\udcff"]}, "choice holds a string that is not valid Unicode text"),
    ({"ebnf": ""}, "No 'root' rule found"),
    ({"ebnf": 'start: "a"'}, "ebnf: Expected ::="),
    ({"ebnf": 'root ::= "a'}, "Unexpected end of input"),
    ({"ebnf": "root ::= other"}, "Rule 'other' not found"),
    ({"ebnf": 'root ::= "\\ud800"'}, "ebnf: "),
    ({"regex": "a", "tokenizer": 1}, "tokenizer must be a string, not 1"),
    ({"regex": "a", "tokenizer": "../../etc"}, "tokenizer '../../etc' is not configured .configured: 'json'."),
    ({"regex": "a" * (grammar_spec.MAX_TEXT_LENGTH + 1)}, "regex is longer than 131072 bytes"),
]

_PRODUCT = {"allOf": [{"type": "integer", "multipleOf": number} for number in (9973, 9967, 9949, 9941)]}

# Each is small, but without limits would take gigabytes or minutes, or crash the process.
BOMBS = {
    "nested groups": {"regex": "(" * 60_000 + ")" * 60_000},
    "nested groups of ebnf": {"ebnf": "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000},
    "a product of automata": {"json_schema": _PRODUCT},
    "a long chain of rules": {
        "ebnf": "\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1}" for i in range(6000)), 'r6000 ::= "a" r0 | "b"'])
    },
    "a long chain of terminals": {
        "ebnf": "\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1}" for i in range(6000)), 'r6000 ::= "a"'])
    },
    "billion laughs": {
        "ebnf": "\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(40)), 'r40 ::= "lol"'])
    },
    "billion laughs of Lark": {
        "lark": "\n".join(["start: R0", *(f"R{i}: R{i + 1} R{i + 1}" for i in range(40)), 'R40: "lol"'])
    },
    "nested groups of Lark": {"lark": "start: " + "(" * 60_000 + '"a"' + ")" * 60_000},
    "a product of automata in a tool": {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": _PRODUCT}}],
        "tool_format": "hermes",
    },
    "deep JSON in a tag": {
        "structural_tag": {
            "type": "structural_tag",
            "structures": [{"begin": "<f>", "schema": '{"items":' * 10_000 + "{}" + "}" * 10_000, "end": "</f>"}],
            "triggers": ["<f>"],
        }
    },
    "deep JSON": {"json_schema": '{"items":' * 10_000 + "{}" + "}" * 10_000},
    "combinations": {
        "json_schema": {
            "allOf": [
                {"anyOf": [{"properties": {f"{i}{j}": {"const": i}}} for i in range(6)], "type": "object"}
                for j in range(12)
            ]
        }
    },
}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("json")
    write_trained(folder)
    grammar_tokenizer.configure({"json": folder})
    yield folder
    grammar_tokenizer.configure({})


@pytest.fixture(autouse=True)
def busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the trials use their processor time where other processes have most of the machine's."""
    monkeypatch.setattr(trial, "_WALL_SECONDS", 200.0)


def start(params: dict[str, Any], **options: Any) -> EditRequest:
    options = {"vocab_size": 500, "eos_token_ids": (1,), **options}
    request = EditRequest(params, History([1]), **options)
    Grammar().start(request)
    return request


@pytest.mark.parametrize("params", GOOD, ids=str)
@pytest.mark.slow
def test_usable_parameters_are_accepted(params: dict[str, Any]) -> None:
    Grammar.validate_params(params)
    start(params)


@pytest.mark.slow
@pytest.mark.parametrize(("params", "message"), BAD, ids=lambda value: str(value)[:60])
def test_the_error_for_unusable_parameters_names_them(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"(?s)^grammar: .*{message}") as raised:
        Grammar.validate_params(params)
    assert len(str(raised.value)) < 1000


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_rejected_quickly_at_admission(name: str) -> None:
    began = time.process_time()
    with pytest.raises(InvalidArgument, match="grammar: ") as raised:
        Grammar.validate_params(BOMBS[name])
    assert time.process_time() - began < 1.0  # processor time of this process
    with pytest.raises(InvalidArgument) as again:  # the trial runs once, not once per request
        Grammar.validate_params(BOMBS[name])
    assert str(again.value) == str(raised.value)


@pytest.mark.slow
def test_a_trial_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_CPU_SECONDS", 1)
    slow = {"title": "slow", **BOMBS["a product of automata"]["json_schema"]}
    with pytest.raises(InvalidArgument, match="json_schema: it does not compile within 1 s; write a simpler one"):
        Grammar.validate_params({"json_schema": slow})


@pytest.mark.slow
def test_a_trial_that_takes_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_MEMORY_BYTES", 64 << 20)
    many = {"enum": [f"value number {i * 7919}" for i in range(4000)]}
    with pytest.raises(InvalidArgument, match=r"takes more than 64 MiB|does not compile within"):
        Grammar.validate_params({"json_schema": many})


def test_a_trial_that_cannot_run_does_not_blame_the_grammar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ImportError: no such library' >&2\nexit 1\n")
    python.chmod(0o700)
    with monkeypatch.context() as patched:
        patched.setattr(trial.sys, "executable", str(python))
        with pytest.raises(PayloadError, match="ImportError: no such library"):
            Grammar.validate_params({"regex": "good"})
    Grammar.validate_params({"regex": "good"})


def test_the_engine_must_give_the_ids_that_end_a_sequence() -> None:
    with pytest.raises(InvalidArgument, match="no end-of-sequence id is known"):
        start({"regex": "a"}, eos_token_ids=())


def test_a_tokenizer_of_another_model_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="grammar: the parameters name token id 312, but ids must lie in"):
        start({"regex": "a"}, vocab_size=300)


def test_the_tokenizer_is_named_where_there_is_not_one_alone(folder: Path, tmp_path: Path) -> None:
    write_vocabulary(tmp_path, ["a", "b"])
    with pytest.raises(InvalidArgument, match=r"tokenizer 'other' is not configured .configured: 'json'"):
        start({"regex": "a"}, tokenizer_id="other")
    try:
        grammar_tokenizer.configure({})
        with pytest.raises(InvalidArgument, match="--tokenizer NAME=PATH"):
            start({"regex": "a"})
        grammar_tokenizer.configure({"json": folder, "org/letters": tmp_path / "tokenizer.json"})
        with pytest.raises(InvalidArgument, match=r"no tokenizer is named .configured: 'json', 'org/letters'"):
            start({"regex": "a"})
        by_session = start({"regex": "a"}, tokenizer_id="org/letters")
        by_request = start({"regex": "a", "tokenizer": "json"}, tokenizer_id="org/letters")
    finally:
        grammar_tokenizer.configure({"json": folder})
    assert by_session.state.grammar.tokenizer.vocab_size == 3
    assert by_request.state.grammar.tokenizer.vocab_size == 313


@pytest.mark.parametrize(
    ("settings", "ids"),
    [
        ({}, ()),
        ({"tokenizer_config": {"eos_token": EOS}}, (1,)),
        ({"tokenizer_config": {"eos_token": {"content": EOS}}}, (1,)),
        ({"tokenizer_config": {"eos_token": "not a token"}}, ()),
        ({"config": {"eos_token_id": 7}, "tokenizer_config": {"eos_token": EOS}}, (7,)),
        ({"generation_config": {"eos_token_id": [1, 0]}, "config": {"eos_token_id": 7}}, (1, 0)),
        ({"generation_config": {"eos_token_id": None}, "config": {"eos_token_id": 7}}, (7,)),
        ({"generation_config": {"eos_token_id": [313, -1, True]}, "config": []}, ()),
    ],
)
def test_ends_of_sequences_are_read_from_files_next_to_the_tokenizer(
    tmp_path: Path, settings: dict[str, Any], ids: tuple[int, ...]
) -> None:
    write_trained(tmp_path, **settings)
    assert grammar_tokenizer.load("json", tmp_path).eos_token_ids == ids


def test_a_call_with_a_tensor_as_in_sglang(folder: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Req:
        origin_input_ids = (5,)
        output_ids = (312,)

    write_trained(tmp_path, generation_config={"eos_token_id": 1})
    grammar_tokenizer.configure({"json": tmp_path})
    try:
        begun = Grammar()(torch.zeros(2, 350), [{"regex": "[0-9]"}, {"choice": ["yes", "no"]}])
        with pytest.raises(
            ProcessorFailed, match="the output's id at index 0 is 312, which the grammar does not allow"
        ):
            Grammar()(torch.zeros(1, 350), [{"regex": "[0-9]", "__req__": Req()}])
    finally:
        grammar_tokenizer.configure({"json": folder})
    assert (begun[0] == 0).sum() == 10
    assert 2 <= (begun[1] == 0).sum() <= 4


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"model": {"vocab": {}}}', '{"model": {"vocab": {"a": "b"}}}', "\xff"]
)
def test_files_that_are_not_tokenizers_are_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content.encode("latin-1"))
    for path in (tmp_path, tmp_path / "tokenizer.json", tmp_path / "nothing"):
        with pytest.raises(PayloadError, match=r"tokenizer 'x': .*give a tokenizer.json"):
            grammar_tokenizer.load("x", path)


@pytest.mark.slow
def test_without_llguidance_the_error_says_what_to_install() -> None:
    code = """
import sys
sys.modules["llguidance"] = None
from pathlib import Path
from logitport import LogitportError
from logitport_builtins import BUILTINS
from logitport_builtins.grammar import grammar_tokenizer
grammar_tokenizer.configure({})
for use in (BUILTINS["grammar"], lambda: grammar_tokenizer.load("x", Path("x"))):
    try:
        use()
    except LogitportError as error:
        print(type(error).__name__, error)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.count("PayloadError grammars need llguidance") == 2
    assert ran.stdout.count("pip install '.[server,grammar]'") == 2
