"""Processors that hold in one phase: as if they were started at the beginning of the phase's present block."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from logitport import EditProcessor, EditRequest, History, Int, RowEdits
from logitport.core import compiled
from logitport.core.edits import Edits
from logitport.edits import EditKind
from logitport.errors import InvalidArgument
from logitport.ops import apply_edits
from logitport.phases import PHASES, PhaseTags, tracker_fields
from logitport.phases.phase_tags import thinking_tags
from logitport_builtins import BUILTIN_EDITS
from logitport_session.dialects.base import RequestContext, by_row
from logitport_session.dialects.edit_dialect import EditDialect
from logitport_session.dialects.phased_request import PhasedRequest
from tests.client.phases.phase_rules import block_of

if TYPE_CHECKING:
    from collections.abc import Sequence

VOCAB_SIZE = 40
START, END, NEWLINE, TOOL, TOOL_END = 5, 6, 4, 7, 8
EOS = (3,)
TAGS = {
    "thinking_start_ids": [START],
    "thinking_end_ids": [END],
    "newline_id": NEWLINE,
    "tool_call_start_ids": [TOOL],
    "tool_call_end_ids": [TOOL_END],
}
SPLIT_TAGS = {"thinking_start_ids": [1, 5], "thinking_end_ids": [1, 6], "starts_in": "thinking"}


class Outputs(EditProcessor):
    """Forbids the ids of the output, and 39 if a draft token is in it. Counts what the history has as its prompt."""

    def start(self, request: EditRequest) -> None:
        request.state = list(request.history.output_token_ids.tolist())

    def advance(self, request: EditRequest, token_id: int) -> None:
        request.state.append(token_id)

    def rewind(self, request: EditRequest) -> None:
        del request.state[len(request.history) - request.history.prompt_length :]

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        assert request.state == request.history.output_token_ids.tolist()
        edits.deny(request.state)
        edits.bias([0], float(request.history.prompt_length))
        if request.history.draft_tokens:
            edits.deny([39])


CASES: dict[str, tuple[EditProcessor, dict[str, Any]]] = {
    "own": (Outputs(), {}),
    "disallowed_tokens": (BUILTIN_EDITS["disallowed_tokens"](), {"token_ids": [2, START]}),
    "logit_bias": (BUILTIN_EDITS["logit_bias"](), {"logit_bias": {"2": 1.5, str(START): 2}}),
    "min_tokens": (BUILTIN_EDITS["min_tokens"](), {"min_tokens": 3}),
    "no_repeat_ngram": (BUILTIN_EDITS["no_repeat_ngram"](), {"ngram_size": 2, "window_size": 6}),
    "bad_words": (BUILTIN_EDITS["bad_words"](), {"bad_words_ids": [[1, 2], [3]], "generated_only": True}),
    "frequency_penalty": (BUILTIN_EDITS["frequency_penalty"](), {"frequency_penalty": 0.5}),
    "dry": (BUILTIN_EDITS["dry"](), {"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_sequence_breaker_ids": [9]}),
    "thinking_budget": (
        BUILTIN_EDITS["thinking_budget"](),
        {"thinking_budget": 4, "thinking_start_ids": [START], "thinking_end_ids": [END], "soft_from": 1},
    ),
    "loop_guard": (BUILTIN_EDITS["loop_guard"](), {"action": "end", "repeats": 2, "min_length": 0, "plain_repeats": 0}),
}

ID = st.integers(0, 9)
IDS = st.lists(ID, max_size=12)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("append"), IDS),
        st.tuples(st.just("cut"), st.integers(0, 20)),
        st.tuples(st.just("draft"), st.lists(ID, max_size=6)),
    ),
    max_size=7,
)


class Followed:
    """A processor's state, in the way that a session follows a history."""

    def __init__(
        self, dialect: EditDialect, params: dict[str, Any], prompt: Sequence[int], output: Sequence[int]
    ) -> None:
        self.dialect = dialect
        self.history = History(prompt, output)
        context = RequestContext("request", self.history, {}, VOCAB_SIZE, "", EOS)
        self.state = dialect.start(context, params)
        self.callback = dialect.token_callback(self.state)

    def append(self, token_id: int) -> None:
        self.history.append(token_id)
        if self.callback is not None:
            self.callback(token_id)

    def rewind(self, length: int) -> None:
        self.history.rewind(max(self.history.prompt_length, length))
        self.dialect.rewind(self.state)

    def logits(self) -> list[float]:
        return applied(by_row(self.dialect.edit([self.state]), 1)[0])


def applied(edits: RowEdits) -> list[float]:
    logits = np.zeros((1, VOCAB_SIZE), np.float32)
    apply_edits(Edits.pack([(0, edits)], VOCAB_SIZE), logits)
    return logits[0].tolist()  # type: ignore[no-any-return]


def expected(processor: EditProcessor, params: dict[str, Any], phase: str, tags: PhaseTags, whole: Any) -> list[float]:
    """The edits of the processor if it is started for the present block alone."""
    prompt, output = whole.prompt_token_ids.tolist(), whole.output_token_ids.tolist()
    number, begin, exempt_id = block_of(*tracker_fields(tags), prompt, output)
    edits = RowEdits()
    if PHASES[number] == phase:
        begin = max(begin, len(prompt))
        history = History([*prompt, *output][:begin], [*prompt, *output][begin:])
        history.draft_tokens = whole.draft_tokens
        request = EditRequest(params, history, VOCAB_SIZE, eos_token_ids=EOS)
        processor.start(request)
        processor.edit(request, edits)
        if exempt_id >= 0:
            edits.exempt(exempt_id)
    return applied(edits)


@pytest.mark.parametrize("name", CASES)
@given(st.sampled_from([TAGS, SPLIT_TAGS]), st.sampled_from(PHASES[:3]), IDS, IDS, CHANGES)
def test_random_histories(name: str, given_tags: Any, phase: str, prompt: Any, output: Any, changes: Any) -> None:
    assume(given_tags is TAGS or phase != "tool_call")  # is refused
    processor, params = CASES[name]
    tags = thinking_tags([1, 5], [1, 6], starts_in="thinking")
    if given_tags is TAGS:
        tags = thinking_tags([START], [END], NEWLINE).with_tool_call([TOOL], [TOOL_END])
    dialect = EditDialect(processor, name, shipped=False)
    followed = Followed(dialect, {**params, "phase": phase, "phase_tags": given_tags}, prompt, output)

    def check() -> None:
        assert followed.logits() == expected(processor, params, phase, tags, followed.history)

    check()
    for kind, argument in changes:
        length = len(followed.history)
        if kind == "cut":
            followed.rewind(length - argument)
        for token_id in argument if kind != "cut" else ():
            followed.history.draft_tokens += kind == "draft"
            followed.append(token_id)
            if kind == "draft":
                check()
        if kind == "draft":
            followed.rewind(length + len(argument) // 2)
            followed.history.draft_tokens = 0
        check()


@pytest.mark.skipif(compiled.core is None, reason="compares with the compiled core")
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("own", "dry")])
def test_compiled_states_run_in_the_core(name: str) -> None:
    processor, params = CASES[name]
    dialect = EditDialect(processor, name, shipped=False)
    followed = Followed(dialect, {**params, "phase": "answer", "phase_tags": TAGS}, [1], [])
    assert dialect.compiled_state(followed.state) is not None
    assert not isinstance(followed.state, PhasedRequest)


def test_a_parameter_that_the_processor_refuses_is_refused_at_admission() -> None:
    dialect = EditDialect(BUILTIN_EDITS["min_tokens"](), "min_tokens", shipped=False)
    params = {"min_tokens": 3, "phase": "tool_call", "phase_tags": TAGS}
    dialect.validate(params, {})
    with pytest.raises(InvalidArgument, match="no id that ends a sequence is known"):
        dialect.start(RequestContext("request", History([1]), {}, VOCAB_SIZE), params)
    with pytest.raises(InvalidArgument, match="unknown parameter 'other'"):
        dialect.validate({**params, "other": 1}, {})


def test_the_start_tag_of_the_first_block_stays_possible() -> None:
    dialect = EditDialect(BUILTIN_EDITS["disallowed_tokens"](), "name", shipped=False)
    followed = Followed(dialect, {"token_ids": [START, 9], "phase": "answer", "phase_tags": TAGS}, [1], [])

    def denied() -> list[int]:
        return [one for _, ids, _ in by_row(dialect.edit([followed.state]), 1)[0] for one in ids.tolist()]

    assert denied() == [9]
    followed.append(NEWLINE)
    assert denied() == [9]
    followed.append(START)
    assert denied() == []
    followed.append(END)
    assert denied() == [START, 9]


def test_the_start_tag_of_the_first_block_is_allowed_beside_other_ids() -> None:
    processor, params = CASES["loop_guard"]
    dialect = EditDialect(processor, "name", shipped=False)
    followed = Followed(dialect, {**params, "phase": "answer", "phase_tags": TAGS}, [1], [NEWLINE, NEWLINE])
    (edit,) = by_row(dialect.edit([followed.state]), 1)[0]
    assert (edit[0], edit[1].tolist()) == (EditKind.ALLOW, [*EOS, START])


class Phases(EditProcessor):
    """Forces an id for each phase."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.force(["answer", "thinking", "tool_call", "header", None].index(request.phase))


def test_an_author_reads_the_phase() -> None:
    dialect = EditDialect(Phases(), "name", shipped=True)
    known = Followed(dialect, {"phase_tags": TAGS}, [1], [])
    unknown = Followed(dialect, {}, [1], [])
    inside = Followed(dialect, {"phase_tags": TAGS, "phase": "tool_call"}, [1], [])
    found = []
    for token_id in (1, START, 1, END, TOOL):
        for one in (known, unknown, inside):
            one.append(token_id)
        rows = by_row(dialect.edit([known.state, unknown.state, inside.state]), 3)
        found.append([[ids.tolist() for kind, ids, _ in row if kind is EditKind.FORCE] for row in rows])
    assert found == [
        [[[0]], [[4]], []],
        [[[1]], [[4]], []],
        [[[1]], [[4]], []],
        [[[0]], [[4]], []],
        [[[2]], [[4]], [[2]]],
    ]
    known.rewind(2)
    known.append(START)
    assert [ids.tolist() for _, ids, _ in by_row(dialect.edit([known.state]), 1)[0]] == [[1]]


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"phase": "thoughts"}, "phase must be one of answer, thinking, tool_call, after_thinking, not 'thoughts'"),
        ({"phase": "header"}, "phase must be one of"),
        ({"phase": "answer", "phase_tags": "gpt5"}, "unknown preset 'gpt5'; known presets: qwen3"),
        ({"phase": "answer", "phase_tags": {"thinking_start_ids": [1]}}, "give both thinking_start_ids and"),
        ({"phase": "answer", "phase_tags": {}}, "give both thinking_start_ids and"),
        ({"phase": "answer", "phase_tags": {**TAGS, "tool_call_end_ids": []}}, "give both tool_call_start_ids and"),
        ({"phase": "answer", "phase_tags": {**TAGS, "start": 1}}, "phase_tags: there is no parameter 'start'"),
        ({"phase": "answer", "phase_tags": {**TAGS, "newline_id": -1}}, "newline_id must hold token ids"),
        ({"phase": "answer", "phase_tags": {**TAGS, "starts_in": "x"}}, "starts_in must be one of"),
        ({"phase": "answer", "phase_tags": {**SPLIT_TAGS, "starts_in": None}}, "set starts_in to thinking"),
        ({"phase": "answer", "phase_tags": {**SPLIT_TAGS, "starts_in": "either"}}, "starts_in must be one of"),
        ({"phase": "answer", "phase_tags": [1, 2]}, "phase_tags must be the name of a preset, or an object"),
        ({"phase": "answer", "phase_tags": {**TAGS, "thinking_end_ids": [START]}}, "thinking_end_ids .* the same ids"),
        ({"phase": "answer", "phase_tags": {**TAGS, "tool_call_start_ids": [END]}}, "tool_call_start_ids .* the same"),
        ({"phase": "tool_call", "phase_tags": {**SPLIT_TAGS}}, "mark no calls of tools: add tool_call_start_ids"),
        ({"phase": "answer", "phase_tags": "qwen3"}, r"token id 151668, but ids must lie in \[0, 40\)"),
        ({"phase": "answer"}, "the tags of the model are not known: no tokenizer is named"),
    ],
)
def test_what_cannot_be_used_is_refused(params: dict[str, Any], problem: str) -> None:
    dialect = EditDialect(Outputs(), "name", shipped=False)
    with pytest.raises(InvalidArgument, match=problem):
        dialect.start(RequestContext("request", History([1]), {}, VOCAB_SIZE), params)


def test_no_processor_declares_a_reserved_parameter() -> None:
    with pytest.raises(InvalidArgument, match="every EditProcessor accepts the parameter 'phase'"):

        class Own(EditProcessor):
            params: ClassVar = {"phase": Int(ge=0)}

            def edit(self, request: EditRequest, edits: RowEdits) -> None:
                """Do nothing."""


@pytest.mark.parametrize(("output", "denied"), [([], [9]), ([START], []), ([START, 1, END], [START, 9])])
def test_a_call_with_a_tensor(output: list[int], denied: list[int]) -> None:
    """As SGLang calls a processor."""
    torch = pytest.importorskip("torch")
    params = {"token_ids": [START, 9], "phase": "answer", "phase_tags": TAGS}
    params["__req__"] = SimpleNamespace(origin_input_ids=[1], output_ids=output, rid="a")
    logits = BUILTIN_EDITS["disallowed_tokens"]()(torch.zeros(1, VOCAB_SIZE), [params])
    assert torch.isinf(logits[0]).nonzero().flatten().tolist() == denied
