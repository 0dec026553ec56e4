"""Equal calls of built-ins in one frame: found, checked and read once."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import orjson
import pytest

from logitport import History, InvalidArgument, Request
from logitport.errors import from_proto
from logitport_builtins import BUILTIN_EDITS, BUILTINS, DisallowedTokens, NoRepeatNGram
from logitport_proto import common_pb2, processing_pb2
from logitport_session.admissions.checked_calls import CheckedCall, CheckedCalls
from logitport_session.dialects import RequestContext, make_dialect
from logitport_session.telemetry import tracing
from tests.server.conftest import EngineRequest

VOCAB = 10
PARAMS: dict[str, dict[str, Any]] = {
    "disallowed_tokens": {"token_ids": [1, 2]},
    "thinking_budget": {"thinking_budget": 2, "thinking_start_ids": [1], "thinking_end_ids": [2], "newline_id": 4},
    "no_repeat_ngram": {"ngram_size": 2, "whitelist_token_ids": [3]},
    "bad_words": {"bad_words_ids": [[1, 2], [3]]},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "logit_bias": {"logit_bias": {"1": 2.0}},
    "loop_guard": {"action": "deny_next", "repeats": 2, "min_length": 4, "plain_repeats": 2},
    "min_tokens": {"min_tokens": 2, "stop_token_ids": [1]},
    "presence_penalty": {"presence_penalty": 0.5},
}


class OtherTokens(DisallowedTokens):
    """A processor of the operator under the name of a built-in."""


def kept(name: str, processor: Any, params: Any = None) -> bool:
    """Whether a checked call of this processor under a name is kept."""
    call = call_of(name, params or {})
    calls = CheckedCalls()
    checked = CheckedCall(make_dialect(processor, name, shipped=False), name, {}, 2)
    calls.keep(call, "", 0, checked)
    return calls.find(call, "", 0) is checked


def call_of(name: str, params: Any) -> common_pb2.ProcessorCall:
    return common_pb2.ProcessorCall(processor=common_pb2.Processor(builtin=name), params=orjson.dumps(params))


def test_a_call_is_found_for_the_same_tenant_place_and_parameters() -> None:
    calls, call = CheckedCalls(), call_of("disallowed_tokens", {"token_ids": [1]})
    assert calls.find(call, "", 0) is None
    checked = CheckedCall(make_dialect(DisallowedTokens, "disallowed_tokens", shipped=False), "", {}, 2)
    calls.keep(call, "", 0, checked)
    assert calls.find(call_of("disallowed_tokens", {"token_ids": [1]}), "", 0) is checked
    assert calls.find(call_of("disallowed_tokens", {"token_ids": [True]}), "", 0) is None
    assert calls.find(call_of("no_repeat_ngram", {"token_ids": [1]}), "", 0) is None
    assert calls.find(call, "acme", 0) is None
    assert calls.find(call, "", 1) is None
    assert calls.find(common_pb2.ProcessorCall(processor=common_pb2.Processor(name="t/x"), params=b"{}"), "", 0) is None


@pytest.mark.parametrize("name", PARAMS)
def test_processors_of_logitport_that_answer_at_once_are_shared(name: str) -> None:
    assert kept(name, BUILTINS[name])


@pytest.mark.parametrize(
    ("name", "processor"),
    [
        ("disallowed_tokens", OtherTokens),  # the operator's
        ("other", DisallowedTokens),
        ("", DisallowedTokens),  # requested by another name
        ("dry", BUILTINS["dry"]),  # takes long
    ],
)
def test_other_processors_are_not_shared(name: str, processor: Any) -> None:
    assert not kept(name, processor)


def test_all_shared_processors_are_tested_here() -> None:
    assert PARAMS.keys() == {name for name, processor in BUILTIN_EDITS.items() if not processor.takes_long}


@pytest.mark.parametrize("name", PARAMS)
def test_no_shared_processor_changes_its_parameters(name: str) -> None:
    params = deepcopy(PARAMS[name])
    dialect = make_dialect(BUILTINS[name], name, shipped=False)
    dialect.validate(params, {})
    first = dialect.start(RequestContext("a", History([1, 2, 1]), {}, VOCAB), params)
    second = dialect.start_like(first, RequestContext("b", History([3]), {}, VOCAB), params)
    dialect.rebuild(second)
    assert params == PARAMS[name]
    assert first is not second
    assert (second.history.length, second.vocab_size, second.params) == (1, VOCAB, params)


def test_a_constant_state_is_shared_and_another_is_not() -> None:
    for processor, is_shared in ((DisallowedTokens, True), (NoRepeatNGram, False)):
        name = str(processor.builtin_name)
        dialect = make_dialect(processor, name, shipped=False)
        contexts = [RequestContext(name, History(ids), {}, VOCAB) for ids in ([1, 2, 1], [5, 6, 5])]
        first = dialect.start(contexts[0], PARAMS[name])
        second = dialect.start_like(first, contexts[1], PARAMS[name])
        compiled = dialect.compiled_state(first) is not None
        assert (first.state is second.state) == (is_shared and compiled)


def test_equal_chains_in_one_frame_have_states_of_their_own(open_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[Any] = []
    monkeypatch.setattr(NoRepeatNGram, "validate_params", classmethod(lambda _, params: checks.append(params)))
    engine = open_engine(VOCAB, DisallowedTokens, NoRepeatNGram)
    engine.registry.toys |= {"disallowed_tokens": DisallowedTokens, "no_repeat_ngram": NoRepeatNGram}
    chain = [("disallowed_tokens", {"token_ids": [9]}), ("no_repeat_ngram", {"ngram_size": 2})]
    requests = [
        EngineRequest(slot, 0, Request(ids, processors=chain), ids) for slot, ids in enumerate(([1, 2, 1], [3]))
    ]
    requests.append(EngineRequest(2, 0, Request([4], processors=chain, tenant="acme"), [4]))
    engine.add_again(*requests)
    assert len(checks) == 2  # one for each tenant
    assert engine.denied(engine.step({one: [] for one in requests}), 3) == [[2, 9], [9], [9]]
    assert engine.denied(engine.step({requests[0]: [5], requests[1]: [3], requests[2]: [4]}), 3) == [
        [9],
        [3, 9],
        [4, 9],
    ]


def test_with_tracing_each_request_has_spans_of_its_own(open_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr(tracing, "is_on", lambda: True)
    monkeypatch.setattr(tracing, "span", lambda name, *_, **__: names.append(name) or tracing.NO_SPAN)
    engine = open_engine(VOCAB)
    engine.registry.toys["disallowed_tokens"] = DisallowedTokens
    one = Request([1], processors=[("disallowed_tokens", {"token_ids": [9]})])
    engine.add_again(*(EngineRequest(slot, 0, one, [1]) for slot in range(2)))
    assert names == ["request admission", "processor load", "history replay"] * 2


def test_each_request_with_wrong_parameters_is_refused(open_engine: Any) -> None:
    engine = open_engine(VOCAB)
    engine.registry.toys["disallowed_tokens"] = DisallowedTokens
    wrong = Request([1], processors=[("disallowed_tokens", {"token_ids": [-1]})])
    reply: processing_pb2.RequestsAdded = engine.send_add(
        *(EngineRequest(slot, 0, wrong, [1]) for slot in range(2)), in_background=False
    )
    assert [(failure.slot, type(from_proto(failure.error))) for failure in reply.failures] == [
        (0, InvalidArgument),
        (1, InvalidArgument),
    ]
