"""Structural tags in `grammar`: a tokenizer with special tokens, and plain checks of texts."""

from __future__ import annotations

import json
import random
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitport_builtins.grammar import grammar_spec
from tests.builtin_processors.structures.outputs import Output, accepts, sample
from tests.builtin_processors.structures.tagged import (
    CONTENTS,
    STRUCTURES,
    VALUES,
    Tagged,
)
from tests.tiers import examples

if TYPE_CHECKING:
    from tokenizers import Tokenizer

pytest.importorskip("llguidance")


@settings(max_examples=examples(120))
@given(STRUCTURES, st.integers(0, 2**32))
def test_sampled_outputs_have_whole_tags(
    no_trials: None, tokenizer: Tokenizer, structure: tuple[list[int], list[str], bool, bool], seed: int
) -> None:
    tagged = Tagged(*structure)
    wanted = [
        text for begin, content, end in tagged.tags for text in (begin, end or "}", *VALUES.get(content, ["yes"]))
    ]
    text = sample(Output({"structural_tag": tagged.param}), tokenizer, wanted, seed)
    assert text is None or tagged.is_output(text), text


@settings(max_examples=examples(120))
@given(STRUCTURES, st.lists(st.tuples(st.sampled_from(["", "so ", "<", "f=\n", "{}"]), st.integers(0, 99)), max_size=4))
def test_exactly_the_right_texts_are_accepted(
    no_trials: None,
    tokenizer: Tokenizer,
    structure: tuple[list[int], list[str], bool, bool],
    parts: list[tuple[str, int]],
) -> None:
    tagged = Tagged(*structure)
    text = ""
    for free, number in parts:
        begin, content, end = tagged.tags[number % len(tagged.tags)]
        values = VALUES.get(content, ["yes"])
        text += free + begin + values[number % len(values)] + (end if number % 7 else "")
    assert accepts({"structural_tag": tagged.param}, tokenizer, text) == tagged.is_output(text), text


@settings(max_examples=examples(60))
@given(STRUCTURES, st.integers(0, 2**32), st.integers(1, 9))
def test_rejected_drafts_leave_nothing_behind_in_tags(
    no_trials: None, tokenizer: Tokenizer, structure: tuple[list[int], list[str], bool, bool], seed: int, drafts: int
) -> None:
    tagged = Tagged(*structure)
    output = Output({"structural_tag": tagged.param})
    wanted = [begin for begin, _, _ in tagged.tags]
    sample(output, tokenizer, wanted, seed, steps=seed % 20)
    before, allowed = output.ids, output.allowed()
    for token_id in tokenizer.encode(wanted[seed % len(wanted)]).ids[:drafts]:
        output.append(token_id, draft=True)
        output.allowed()
    output.cut(len(before))
    output.request.history.draft_tokens = 0
    assert output.allowed() == allowed


@pytest.mark.slow
def test_xgrammar_accepts_the_same_texts(no_trials: None, tokenizer: Tokenizer) -> None:
    """Texts without special tokens, right and wrong ones, in both of its forms."""
    xgrammar = pytest.importorskip("xgrammar")
    spelled = [*(f"<0x{value:02X}>" for value in range(256)), "</s>"]
    info = xgrammar.TokenizerInfo(spelled, xgrammar.VocabType.BYTE_FALLBACK, stop_token_ids=[256])
    compiler, choose, accepted = xgrammar.GrammarCompiler(info), random.Random(5), 0
    for one, stop, content in product((False, True), (False, True), ("object", "list", "const", "any")):
        tagged = Tagged([0], [content] * 3, one, stop)
        peer = compiler.compile_structural_tag(json.dumps(tagged.param))
        for _ in range(40):
            bits = ["<f=a>", "</f>", "x", "<f=", *VALUES.get(content, ["yes"])[:1]]
            texts = ["".join(choose.choices(bits, k=5)), "<f=ab>" + bits[-1] + "</f>" + choose.choice(bits)]
            for text in texts:
                matcher = xgrammar.GrammarMatcher(peer)
                expected = matcher.accept_string(text) and matcher.is_completed()
                assert accepts({"structural_tag": tagged.param}, tokenizer, text) == expected, (
                    text,
                    one,
                    stop,
                    content,
                )
                accepted += expected
    assert accepted > 100


def test_the_legacy_form_is_triggered_tags() -> None:
    schema, end = CONTENTS["object"][0], "</f>"
    legacy = {
        "type": "structural_tag",
        "structures": [{"begin": "<f=a>", "schema": schema, "end": end}],
        "triggers": ["<f="],
    }
    tag = {"begin": "<f=a>", "content": {"type": "json_schema", "json_schema": json.dumps(schema)}, "end": [end]}
    new = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<f="], "tags": [tag]}}
    read = partial(grammar_spec.read_grammar, caller=None)
    assert read({"structural_tag": legacy}) == read({"structural_tag": json.dumps(new)})


def test_any_characters_may_be_in_texts_of_tags(no_trials: None, tokenizer: Tokenizer) -> None:
    text = "<\"\\/\x7f\u2028\U0001f600\x00\n'{}[]>"
    content = {"type": "const_string", "value": text}
    tag = {"begin": "<" + text, "content": content, "end": text}
    tags_format = {"type": "triggered_tags", "triggers": ["<" + text], "tags": [tag]}
    params = {"structural_tag": {"type": "structural_tag", "format": tags_format}}
    assert accepts(params, tokenizer, f"{text} <{text * 3}")
    assert not accepts(params, tokenizer, f"<{text * 2}<")
