"""docs/reasoning.md: its recipes do what they promise, with a model of Qwen3's ids that samples at random."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import Client, Request
from tests.docs.pages import blocks, read, section
from tests.qwen_tokenizer import END_OF_THINKING, END_OF_TOOL_CALL, EOS, THINK, TOOL_CALL, VOCAB_SIZE, write_qwen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tokenizers import Tokenizer

    from logitport.session import Handle, Session

pytest.importorskip("llguidance", reason="llguidance is not installed: pip install 'logitport[grammar]'")

RECIPES = dict(
    zip(
        ("budget", "json", "tools", "loops", "minimum", "report"),
        blocks(section(read("docs/reasoning.md"), "Six recipes")),
        strict=True,
    )
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tokenizer]:
    folder = tmp_path_factory.mktemp("qwen")
    return folder, write_qwen(folder)


@pytest.fixture
def session(files: tuple[Path, Tokenizer]) -> Iterator[Session]:
    with (
        Client.embedded() as client,
        client.session(vocab_size=VOCAB_SIZE, tokenizer_id=str(files[0]), eos_token_ids=[EOS]) as opened,
    ):
        yield opened


def chain_of(recipe: str, *replaced: tuple[str, str]) -> list[Any]:
    """The chain of a recipe, with smaller numbers."""
    program = RECIPES[recipe]
    for old, new in replaced:
        assert old in program
        program = program.replace(old, new)
    made: dict[str, Any] = {}
    exec(program, made)
    chain: list[Any] = made["chain"]
    return chain


def generate(
    session: Session,
    chain: Sequence[Any],
    wishes: Callable[[list[int]], int | None] = lambda _: None,
    prompt: Sequence[int] = (5, THINK),
    max_ids: int = 400,
) -> tuple[list[int], Handle]:
    """The output of a model that samples at random, unless it wishes an id, and the request."""
    source = random.Random(1)
    handle, output = session.add(Request(list(prompt), processors=chain)), []
    while len(output) < max_ids and (not output or output[-1] != EOS):
        logits = np.full((1, VOCAB_SIZE), -9.0, np.float32)
        logits[0, [source.randrange(256) for _ in range(20)]] = 0.0
        if (wish := wishes(output)) is not None:
            logits[0, wish] = 30.0  # above the largest bias
        session.step({handle: output[-1:]}).apply(logits)
        best = np.flatnonzero(logits[0] == logits[0].max())
        output.append(int(source.choice(best)))
    return output, handle


def answer(output: list[int], tokenizer: Tokenizer) -> str:
    ids = output[output.index(END_OF_THINKING) + 1 :]
    assert ids[-1] == EOS
    text: str = tokenizer.decode(ids[:-1], skip_special_tokens=False)
    return text


def test_a_budget_that_ends_with_a_sentence(session: Session, files: tuple[Path, Tokenizer]) -> None:
    chain = chain_of("budget", ("1024", "40"), ("900", "30"))
    cut_short, _ = generate(session, chain, lambda output: 60 if len(output) < 99 else None, max_ids=120)
    text: str = files[1].decode(cut_short[40 : cut_short.index(END_OF_THINKING)])
    assert text.strip() == "My time is up, so I answer now."

    def end_of_sentence(output: list[int]) -> int | None:
        return END_OF_THINKING if len(output) == 33 else None

    at_sentence, _ = generate(session, chain, end_of_sentence, max_ids=60)
    assert at_sentence.index(END_OF_THINKING) == 33


def test_json_after_thinking(session: Session, files: tuple[Path, Tokenizer]) -> None:
    output, _ = generate(session, chain_of("json", ("1024", "20")), prompt=(5, THINK))
    assert output.index(END_OF_THINKING) in (20, 21)
    assert json.loads(answer(output, files[1])).keys() == {"city", "days"}


def test_tool_calls_after_thinking(session: Session, files: tuple[Path, Tokenizer]) -> None:
    def think_shortly(output: list[int]) -> int | None:
        return END_OF_THINKING if len(output) == 9 else None

    output, _ = generate(session, chain_of("tools"), think_shortly)
    called = output[output.index(TOOL_CALL) + 1 : output.index(END_OF_TOOL_CALL)]
    call = json.loads(files[1].decode(called))
    assert call["name"] == "weather"
    assert call["arguments"].keys() == {"city"}
    assert answer(output, files[1]).startswith("<tool_call>")


def test_a_model_that_repeats_itself(session: Session) -> None:
    output, handle = generate(session, chain_of("loops"), lambda output: 60 + len(output) % 15)
    assert 0 < output.index(END_OF_THINKING) < 100
    assert output[-1] == EOS
    assert len(output) < 200
    assert [event.name for event in handle.report.events] == ["loop_found", "loop_found"]


def test_a_minimum_of_thinking(session: Session) -> None:
    output, _ = generate(session, chain_of("minimum", ("200", "20")), lambda _: END_OF_THINKING, max_ids=30)
    assert output.index(END_OF_THINKING) == 20


def test_what_the_response_reports(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    """A stand-in for OpenAI's client, with the report of a real session. tests/engines has real responses."""

    def create(extra_body: dict[str, Any], **_: Any) -> SimpleNamespace:
        chain = [(name, params) for name, params in json.loads(extra_body["vllm_xargs"]["logitport"])]
        _, handle = generate(session, chain, max_ids=80)
        return SimpleNamespace(logitport=[json.loads(json.dumps(handle.report.to_json()))])

    openai = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    exec(RECIPES["report"], {"openai": openai})
    assert capsys.readouterr().out == "the thinking was cut short\n"
