"""Chains with a thinking budget and processors of the answer, on a random model with drafts."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import CustomLogitProcessor, EditProcessor
from logitport.core.history import History
from logitport.errors import InvalidArgument, ProcessorFailed
from logitport.tokenizers import named_tokenizers, read_tokenizer
from logitport_builtins import BUILTIN_EDITS, Grammar, LoopGuard, ThinkingBudget
from logitport_builtins.contradictions import check_chain
from logitport_builtins.grammar import grammar_tokenizer
from logitport_testing import simulate
from tests.builtin_processors.reasoning_runs import (
    END,
    EOS,
    NEWLINE,
    PIECES,
    SPECIAL,
    START,
    TAGS,
    VOCAB_SIZE,
    NoIdLeft,
    Run,
    is_valid,
    schema,
)
from tests.tiers import examples
from tests.tokenizer_files import write_vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("llguidance")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("json")
    write_vocabulary(path, PIECES, SPECIAL)
    return path


@pytest.fixture(autouse=True)
def configured(folder: Path) -> Iterator[None]:
    grammar_tokenizer.configure({"json": folder})
    named_tokenizers.configure({"json": read_tokenizer("json", folder)})
    yield
    grammar_tokenizer.configure({})
    named_tokenizers.configure({})


def check_json_after_thinking(seed: int) -> None:
    source = random.Random(seed)
    wanted, budget = schema(source), source.randint(0, 12)
    limit: dict[str, Any] = {"thinking_budget": budget, **TAGS}
    if source.random() < 0.5:
        limit["end_text"] = [PIECES.index(one) for one in source.choice(["ok.", "so,", "a"])]
    if source.random() < 0.3:
        limit["min_thinking"] = source.randint(0, budget)
    if source.random() < 0.3 and budget:
        limit["soft_from"] = source.randint(0, budget - 1)
    grammar = {"json_schema": wanted, "disable_any_whitespace": True, "phase": "answer", "phase_tags": TAGS}
    chain = [("thinking_budget", limit), ("grammar", grammar)]
    source.shuffle(chain)
    prompt = source.choice([[1, 2], [1, START], [1, START, 3, END, NEWLINE]])
    run = Run(chain, prompt, seed)
    run.finish(max_ids=600, max_drafts=4)
    output = run.output
    assert output.count(EOS) == 1, output
    assert is_valid(run.answer, wanted), (run.answer, wanted)
    opened = prompt[-1] == START or output[0] == START
    assert output.count(END) == opened
    if opened:
        thought = output.index(END) - (output[0] == START)
        assert limit.get("min_thinking", 0) <= thought <= budget + 1 + len(limit.get("end_text", ()))


@pytest.mark.parametrize("seed", range(4))
def test_json_after_thinking(seed: int) -> None:
    check_json_after_thinking(seed)


@pytest.mark.slow
@pytest.mark.parametrize("tens", range(examples(100)))
def test_json_after_thinking_of_many_schemas(tens: int) -> None:
    for seed in range(1000 + 10 * tens, 1010 + 10 * tens):
        check_json_after_thinking(seed)


ANSWER = {"phase": "answer", "phase_tags": TAGS}
LIMIT = {"thinking_budget": 2, "end_text": [1, 2], **TAGS}
GUARD = {"action": "end_thinking", **TAGS}


@pytest.mark.parametrize(
    ("chain", "problem"),
    [
        ([("thinking_budget", LIMIT), ("disallowed_tokens", {"token_ids": [END]})], "thinking_end_ids .* token_ids"),
        ([("thinking_budget", LIMIT), ("disallowed_tokens", {"token_ids": [2]})], "end_text .* token_ids"),
        (
            [
                ("thinking_budget", {**LIMIT, "end_text": "ab"}),
                ("disallowed_tokens", {"token_ids": [PIECES.index("b")]}),
            ],
            "end_text .* token_ids",
        ),
        ([("thinking_budget", LIMIT), ("bad_words", {"bad_words_ids": [[NEWLINE]]})], "newline_id .* bad_words_ids"),
        (
            [("thinking_budget", LIMIT), ("min_tokens", {"min_tokens": 3, "stop_token_ids": [1]})],
            "end_text .* stop_token_ids",
        ),
        ([("thinking_budget", LIMIT), ("min_tokens", {"min_tokens": 0, "stop_token_ids": [1]})], ""),
        ([("disallowed_tokens", {"token_ids": [END]}), ("thinking_budget", LIMIT)], ""),
        (
            [("thinking_budget", LIMIT), ("grammar", {"json_object": True})],
            "thinking_end_ids .* set its phase to answer",
        ),
        (
            [("grammar", {"json_object": True}), ("thinking_budget", LIMIT)],
            "thinking_end_ids .* set its phase to answer",
        ),
        ([("grammar", {"json_object": True, **ANSWER}), ("thinking_budget", LIMIT)], ""),
        (
            [("loop_guard", GUARD), ("thinking_budget", {**LIMIT, "min_thinking": 1})],
            "thinking_end_ids .* min_thinking",
        ),
        ([("thinking_budget", {**LIMIT, "min_thinking": 1}), ("loop_guard", GUARD)], ""),
        ([("loop_guard", GUARD), ("thinking_budget", LIMIT)], ""),
        ([("thinking_budget", LIMIT), ("thinking_budget", {**LIMIT, "min_thinking": 2})], ""),
        (
            [("thinking_budget", LIMIT), ("thinking_budget", {**LIMIT, "thinking_budget": 3, "min_thinking": 3})],
            "thinking_end_ids .* min_thinking",
        ),
        ([("loop_guard", GUARD), ("disallowed_tokens", {"token_ids": [END]})], "thinking_end_ids of loop_guard"),
        ([("loop_guard", {"action": "end"}), ("disallowed_tokens", {"token_ids": [END]})], ""),
        ([("loop_guard", GUARD), ("grammar", {"json_object": True})], "of loop_guard .* set its phase to answer"),
        ([("thinking_budget", LIMIT), ("bad_words", {"bad_words_ids": [[5, END]]})], ""),
        (
            [
                ("thinking_budget", LIMIT),
                ("disallowed_tokens", {"token_ids": [END], "phase": "answer", "phase_tags": TAGS}),
            ],
            "",
        ),
    ],
)
def test_a_chain_that_would_leave_no_id_is_refused(chain: Any, problem: str) -> None:
    calls = [(BUILTIN_EDITS[name](), params) for name, params in chain]
    if problem:
        with pytest.raises(InvalidArgument, match=problem):
            check_chain(calls, History([1, START]), "json", [EOS])
    else:
        check_chain(calls, History([1, START]), "json", [EOS])
    check_chain(calls[:1], History([1, START]), "json", [EOS])


def test_parameters_are_read_once_for_all_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 64 processors and large lists, an admission took 15 seconds."""
    reads: list[Any] = []
    banned = BUILTIN_EDITS["disallowed_tokens"]()
    token_ids = banned.token_ids
    monkeypatch.setattr(banned, "token_ids", lambda params: reads.append(params) or token_ids(params))
    budgets = [(BUILTIN_EDITS["thinking_budget"](), LIMIT)] * 3
    check_chain([*budgets, (banned, {"token_ids": [9]})], History([1, START]), "json", [EOS])
    assert len(reads) == 1


def test_a_grammar_may_hold_where_no_block_is_open() -> None:
    chain = [(BUILTIN_EDITS["grammar"](), {"json_object": True}), (BUILTIN_EDITS["thinking_budget"](), LIMIT)]
    for prompt in ([1], [1, START, END]):
        check_chain(chain, History(prompt), "json", [EOS])
        check_chain(chain, History(prompt), "unknown", [EOS])


@pytest.mark.slow
def test_the_refusal_at_an_admission(folder: Path) -> None:
    chain: Any = [("thinking_budget", LIMIT), ("grammar", {"json_object": True})]
    with pytest.raises(InvalidArgument, match="set its phase to answer"):
        simulate(chain, np.zeros((3, VOCAB_SIZE), np.float32), [1, START], tokenizer=folder, eos_token_ids=[EOS])


# Of each built-in, parameters that have an effect soon.
ALL: dict[str, dict[str, Any]] = {
    "disallowed_tokens": {"token_ids": [3, 40]},
    "thinking_budget": {"thinking_budget": 3, "end_text": [1, 2], **TAGS},
    "no_repeat_ngram": {"ngram_size": 2},
    "grammar": {"regex": "[ab]{2,9}"},
    "bad_words": {"bad_words_ids": [[5, 6], [50]]},
    "banned_strings": {"banned_strings": ["ab", "b"]},
    "force_prefix": {"force_prefix": "ab"},
    "stop_on": {"stop_on": ["a", "12"]},
    "dry": {"dry_multiplier": 0.8},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "presence_penalty": {"presence_penalty": -0.5},
    "logit_bias": {"logit_bias": {"3": -50}},
    "min_tokens": {"min_tokens": 4},
}
# A processor that allows a few ids has none left if another one denies them, which only the output decides: such a
# request fails with an error that names them. A forced id discards what was denied before.
ALLOWING = {"grammar", "force_prefix", "stop_on"}
DENYING = {"disallowed_tokens", "no_repeat_ngram", "bad_words", "banned_strings", "min_tokens", "thinking_budget"}


def can_lose_all_ids(first: str, second: str) -> bool:
    if first == "thinking_budget" or second == "thinking_budget":
        return second in DENYING | ALLOWING
    return first != second and (first in ALLOWING or second in ALLOWING) and {first, second} <= ALLOWING | DENYING


def check_pair(first: str, second: str, seed: int) -> None:
    source = random.Random(f"{first} {second} {seed}")
    chain = [
        (name, {**ALL[name], "phase": phase, "phase_tags": TAGS} if phase else ALL[name])
        for name in (first, second)
        for phase in [source.choice(["", "thinking", "answer"])]
    ]
    prompt = source.choice([[1, 2], [1, START], [1, START, 3, END, NEWLINE], [1, START, 3, END, 1, 2, 3, 4, 5]])
    run = Run(chain, prompt, seed, thinking=0.3)
    try:
        for _ in range(8):
            if run.step(max_drafts=2):
                break
    except (NoIdLeft, ProcessorFailed):
        phases = [params.get("phase", "") for _, params in chain]
        assert can_lose_all_ids(first, second), chain
        assert "" in phases or phases[0] == phases[1] or first == second, chain


@pytest.mark.parametrize("first", ALL)
def test_pairs_of_built_ins(first: str) -> None:
    for second in ALL:
        for seed in range(1):
            check_pair(first, second, seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", ALL)
@pytest.mark.parametrize("second", ALL)
def test_pairs_of_built_ins_on_many_histories(first: str, second: str) -> None:
    for seed in range(2, 2 + examples(200)):
        check_pair(first, second, seed)


@pytest.mark.parametrize("name", ["grammar", "banned_strings", "stop_on", "force_prefix"])
def test_nothing_is_compiled_when_a_block_begins(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caches may have dropped what was compiled at the admission, and steps have little time."""
    run = Run([(name, {**ALL[name], **ANSWER})], [1, START], 0)

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("logitport_builtins.grammar.processor.compiled", refuse)
    for module, function in (("banned_strings", "matcher"), ("stop_on", "matcher"), ("force_prefix", "prefix_for")):
        monkeypatch.setattr(f"logitport_builtins.by_text.{module}.{function}", refuse)
    for ids in ([2, END], [START, END]):  # two answers
        request = run.request
        request.synchronize(request.history.length, request.history.crc(), ids)
        assert run.allowed().size < VOCAB_SIZE or name == "stop_on"
    assert PIECES.index("a") in run.allowed() or name == "banned_strings"


def test_tools_need_the_phase_that_includes_calls() -> None:
    tools = {"tools": [{"type": "function", "function": {"name": "now"}}], "tool_format": "qwen"}
    with pytest.raises(InvalidArgument, match="set phase to after_thinking"):
        check_chain([(Grammar(), {**tools, "phase": "answer", "phase_tags": "qwen3"})], History([1]), "", [EOS])
    for phase in ({}, {"phase": "after_thinking", "phase_tags": "qwen3"}, {"phase": "answer", "phase_tags": TAGS}):
        check_chain([(Grammar(), {**tools, **phase})], History([1]), "", [EOS])


@pytest.mark.parametrize(
    ("processor", "params"), [(ThinkingBudget(), {"thinking_budget": 3}), (LoopGuard(), {"action": "end_thinking"})]
)
def test_a_closer_of_thinking_needs_a_phase_with_thinking(processor: EditProcessor, params: dict[str, Any]) -> None:
    for phase in ("answer", "tool_call", "after_thinking"):
        for own, phase_tags in (({"preset": "qwen3"}, "qwen3"), (TAGS, TAGS)):
            chain = [(processor, {**params, **own, "phase": phase, "phase_tags": phase_tags})]
            with pytest.raises(InvalidArgument, match=f"no thinking is in the phase {phase}: leave phase out"):
                check_chain(chain, History([1]), "json", [EOS])
    for allowed in ({"phase": "thinking"}, {"phase_tags": TAGS}, {"phase": "answer", "phase_tags": "qwen3"}):
        check_chain([(processor, {**params, **TAGS, **allowed})], History([1]), "json", [EOS])
    scratchpad = {"thinking_start_ids": [20], "thinking_end_ids": [21]}
    check_chain(
        [(processor, {**params, **scratchpad, "phase": "answer", "phase_tags": TAGS})], History([1]), "json", [EOS]
    )


def test_a_class_of_another_dialect_may_have_a_parameter_phase() -> None:
    class Own(CustomLogitProcessor):
        def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
            return logits

    check_chain([(ThinkingBudget(), {"thinking_budget": 3, **TAGS}), (Own(), {"phase": 3})], History([1]), "", [EOS])
