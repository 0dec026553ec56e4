"""Engines with random logits and a real server produce texts of a grammar."""

from __future__ import annotations

import json
import re
import subprocess
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

from examples.engine import Engine, Generation, Model, prompt_lookup
from logitport import Client, InvalidArgument, ProcessorFailed, Request, RequestsFailed
from tests.conftest import COMMAND, RunningServer, environment
from tests.tokenizer_files import write_trained, write_vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tokenizers import Tokenizer

pytest.importorskip("llguidance")

VOCAB = 352  # wider than the tokenizer, as padded vocabularies are
EOS = 1
SLOTS = 8

KINDS = ["a", "b", "Ä\n"]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": KINDS},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}


def is_person(text: str) -> bool:
    person = json.loads(text)
    return (
        list(person) == ["name", "age", "kind", "tags"]
        and isinstance(person["name"], str)
        and len(person["name"]) <= 6
        and type(person["age"]) is int
        and 0 <= person["age"] <= 150
        and person["kind"] in KINDS
        and len(person["tags"]) <= 2
        and all(type(tag) is bool for tag in person["tags"])
    )


DIGIT = {"type": "object", "properties": {"n": {"enum": [0, 7]}}, "required": ["n"], "additionalProperties": False}
TAG = {"begin": "<f>", "content": {"type": "json_schema", "json_schema": DIGIT}, "end": "</f>"}
CALLS = {
    "tools": [{"type": "function", "function": {"name": name, "parameters": DIGIT}} for name in ("get", "set")],
    "tool_format": {"begin": "<t>{name}:", "end": "</t>", "trigger": "<t>"},
    "tool_choice": "required",
    "disable_any_whitespace": True,
}
ONE_TAG = {"type": "triggered_tags", "triggers": ["<f"], "tags": [TAG], "at_least_one": True, "stop_after_first": True}

GRAMMARS: list[tuple[dict[str, Any], Callable[[str], object]]] = [
    ({"json_schema": PERSON, "disable_any_whitespace": True}, is_person),
    ({"json_schema": json.dumps(PERSON), "whitespace_pattern": "[ ]?"}, is_person),
    (
        {"regex": r"(19|20)\d\d-(0[1-9]|1[0-2])-[0-2]\d: [a-zäöü]{1,9}!"},
        r"(19|20)\d\d-(0[1-9]|1[0-2])-[0-2]\d: [a-zäöü]{1,9}!",
    ),
    ({"choice": ["yes", "no", "Grüße, 名前"]}, {"yes", "no", "Grüße, 名前"}.__contains__),
    ({"lark": 'start: "a"{1,9} <|pad|> /[bc]/ | <[0]> "d"'}, r"a{1,9}<\|pad\|>[bc]|<\|pad\|>d"),
    (CALLS, r'<t>(get|set):{"n":[07]}</t>'),
    (
        {"structural_tag": {"type": "structural_tag", "format": ONE_TAG}, "whitespace_pattern": "[ ]?"},
        r'<f>{ ?"n" ?: ?[07] ?}</f>',
    ),
    ({"ebnf": 'root ::= "f(" arg ("," arg){0,3} ")"\narg ::= [0-9]{1,2} | [a-z]'}, r"f\(\w{1,2}(,\w{1,2}){0,3}\)"),
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tokenizer]:
    folder = tmp_path_factory.mktemp("tokenizer")
    return folder, write_trained(folder, generation_config={"eos_token_id": EOS})


@pytest.fixture(scope="module")
def running(
    serving: Callable[..., AbstractContextManager[RunningServer]],
    tokenizer: tuple[Path, Tokenizer],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RunningServer]:
    letters = tmp_path_factory.mktemp("letters")
    write_vocabulary(letters, ["a", "b", "ab"])
    named = ("--tokenizer", f"org/json={tokenizer[0]}", "--tokenizer", f"letters={letters / 'tokenizer.json'}")
    with serving(*named) as server:
        yield server


@pytest.fixture
def run() -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [COMMAND, "serve", "--listen", "127.0.0.1:0", *options]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, env=environment())

    return run


def follows(one: Generation, tokenizer: Tokenizer, check: Callable[[str], object] | str) -> bool:
    assert one.error is None, one.error
    assert one.output[-1] == EOS
    text = tokenizer.decode(one.output[:-1], skip_special_tokens=False)
    return bool(re.fullmatch(check, text) if isinstance(check, str) else check(text))


@pytest.mark.parametrize("transport", ["grpc", "local"])
@pytest.mark.parametrize("drafts", [0, 3])
def test_random_logits_give_texts_of_the_grammar(
    running: RunningServer,
    tokenizer: tuple[Path, Tokenizer],
    drafts: int,
    transport: Literal["grpc", "local"],
) -> None:
    """Eight requests at a time, of five grammars or none. Ended requests are replaced by new ones."""
    random = np.random.default_rng(drafts)
    chosen = list(islice(cycle([*GRAMMARS, None]), 30))
    requests = [
        Request(
            prompt_token_ids=random.integers(VOCAB, size=random.integers(1, 9)).tolist(),
            processors=[("grammar", grammar[0])] if grammar else [],
            sampling_params={"max_tokens": 64, "stop_token_ids": [EOS]},
        )
        for grammar in chosen
    ]
    with (
        Client(running.target) as client,
        client.session(
            vocab_size=VOCAB, tokenizer_id="org/json", max_draft_tokens=drafts, transport=transport
        ) as session,
    ):
        assert session.transport == transport
        engine = Engine(session, Model(VOCAB, slots=SLOTS), slots=SLOTS, draft=prompt_lookup if drafts else None)
        generations = engine.generate(requests)
    for grammar, one in zip(chosen, generations, strict=True):
        assert one.error is None
        if grammar is not None:
            assert follows(one, tokenizer[1], grammar[1])
    assert sum(one.output[-1] == EOS for one in generations) >= 25
    assert engine.drafted > engine.accepted if drafts else not engine.drafted


def test_sessions_with_and_without_drafts_sample_the_same_ids(running: RunningServer) -> None:
    outputs = []
    for draft in (None, prompt_lookup):
        requests = [
            Request([3, 4, number], processors=[("grammar", grammar)], sampling_params={"stop_token_ids": [EOS]})
            for number in range(3)
            for grammar, _ in GRAMMARS
        ]
        with (
            Client(running.target) as client,
            client.session(vocab_size=VOCAB, tokenizer_id="org/json", max_draft_tokens=3) as session,
        ):
            engine = Engine(session, Model(VOCAB, slots=SLOTS), slots=SLOTS, draft=draft)
            outputs.append([one.output for one in engine.generate(requests)])
    assert outputs[0] == outputs[1]


def test_the_request_names_the_tokenizer_and_the_session_the_end_ids(running: RunningServer) -> None:
    with Client(running.target) as client, client.session(vocab_size=VOCAB, eos_token_ids=[3, 350]) as session:
        handle = session.add(Request(processors=[("grammar", {"regex": "ab", "tokenizer": "letters"})]))
        logits = np.zeros((1, VOCAB), np.float32)
        session.step({handle: []}).apply(logits)
        assert np.flatnonzero(logits[0] == 0).tolist() in ([0], [0, 2])
        session.step({handle: [2]}).apply(logits := np.zeros((1, VOCAB), np.float32))
        assert np.flatnonzero(logits[0] == 0).tolist() == [3, 350]


def test_a_refused_or_invalid_request_fails_only_itself(running: RunningServer) -> None:
    with Client(running.target) as client, client.session(vocab_size=VOCAB, tokenizer_id="org/json") as session:
        right = session.add(Request(processors=[("grammar", {"choice": ["yes"]})]))
        for params, message in [
            ({"regex": "("}, "regex: .*invalid regex"),
            ({"regex": "a", "tokenizer": "/etc/passwd"}, "'/etc/passwd' is not configured .configured: 'org/json'"),
            ({"ebnf": "root ::= " + "(" * 9999 + '"a"' + ")" * 9999}, "nested too deeply"),
        ]:
            with pytest.raises(InvalidArgument, match=message):
                session.add(Request(processors=[("grammar", params)]))
        strays = session.add(Request(processors=[("grammar", {"choice": ["no"]})]))
        session.step({right: [], strays: []}).apply(np.zeros((2, VOCAB), np.float32))
        logits = np.zeros((2, VOCAB), np.float32)
        with pytest.raises(RequestsFailed) as failed:
            session.step({right: [], strays: [5]}).apply(logits)
        assert isinstance(failed.value.failures[strays], ProcessorFailed)
        assert "id at index 0 is 5, which the grammar does not allow there" in str(failed.value.failures[strays])
        assert set(failed.value.failures) == {strays}
        assert 0 < np.isneginf(logits[0]).sum() < VOCAB


def test_the_error_of_a_server_without_tokenizers_names_what_is_missing(server: RunningServer) -> None:
    request = Request(processors=[("grammar", {"regex": "a"})])
    with (
        Client(server.target) as client,
        client.session(vocab_size=VOCAB, eos_token_ids=[1]) as session,
        pytest.raises(InvalidArgument, match=r"no tokenizer is named .none is configured.: .*--tokenizer NAME=PATH"),
    ):
        session.add(request)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("json", "'json' is not NAME=PATH; write, for example, qwen3="),
        ("=/tmp", "'=/tmp' is not NAME=PATH"),
        ("json=/nowhere", "tokenizer 'json': /nowhere: .*No such file"),
    ],
)
def test_an_unreadable_tokenizer_is_reported_at_start_up(
    run: Callable[..., subprocess.CompletedProcess[str]], option: str, message: str
) -> None:
    ran = run("--tokenizer", option)
    assert ran.returncode != 0
    assert re.search(message, ran.stderr)
