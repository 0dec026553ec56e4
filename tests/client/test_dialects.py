"""Recognition of a processor's dialect: by base class, methods or parameters, or as named by its author."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from logitport import CustomLogitProcessor, EditProcessor
from logitport.dialects import InDialect, author_of, recognise
from logitport_builtins import BUILTIN_EDITS


def base(module: str, name: str = "LogitsProcessor") -> type:
    """A class with the module and name of an engine's base class."""
    return type(name, (), {"__module__": module})


BATCH = base("vllm.v1.sample.logits_processor.interface")
ADAPTER = type("AdapterLogitsProcessor", (BATCH,), {"__module__": "vllm.v1.sample.logits_processor", "apply": None})
V2 = base("vllm.v1.worker.gpu.sample.logits_processor.interface")
SCORES = base("transformers.generation.logits_process")
DYNAMO = base("dynamo.logits_processing.base", "BaseLogitsProcessor")
SCORES_LIST = type("LogitsProcessorList", (list,), {"__module__": "transformers.generation.logits_process"})
OF_SGLANG = type(
    "CustomLogitProcessor",
    (),
    {"__module__": "sglang.srt.sampling.custom_logit_processor", "__call__": lambda self, logits, params=None: logits},
)


class Reading(CustomLogitProcessor):
    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits


class Editing(EditProcessor):
    def edit(self, request: Any, edits: Any) -> None:
        pass


class EditingAndCalled(Editing):
    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits


class CalledLikeSGLang:
    def __call__(self, logits: Any, custom_param_list: Any) -> Any:
        return logits


class Scoring:
    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores


class OfTheBatch:
    def update_state(self, batch_update: Any) -> None: ...

    def apply(self, logits: Any) -> Any: ...


class OfTheBatchToo(Reading, OfTheBatch):
    """Has the methods of SGLang's contract and those of vLLM's."""


class OfTheRequest:
    def new_req_logits_processor(self, params: Any) -> Any: ...


class OfSlots:
    def add_request(self, slot: int, params: Any) -> bool: ...

    def apply(self, logits: Any, ctx: Any) -> Any: ...


class AdapterThatSeesUpdates(ADAPTER):
    def update_state(self, batch_update: Any) -> None: ...


def two(output_ids: Any, logits: Any) -> Any:
    return logits


def three(prompt_ids: Any, output_ids: Any, logits: Any) -> Any:
    return logits


def scores(input_ids: Any, scores: Any) -> Any:
    return scores


def after(by: Any, input_ids: Any, scores: Any) -> Any:
    return scores


class EditsOneRow:
    def __call__(self, input_ids: Any, logits: Any) -> None: ...


def two_and_more(output_ids: Any, logits: Any, by: Any) -> Any:
    return logits


@pytest.mark.parametrize(
    ("processor", "dialect"),
    [
        (Reading, "sglang"),
        (Reading(), "sglang"),
        (Editing, "edits"),
        (type("Made", (Editing,), {}), "edits"),
        (type("Made", (Reading,), {"__module__": "abc"}), "sglang"),
        (EditingAndCalled, "sglang"),
        *((builtin, "edits") for builtin in BUILTIN_EDITS.values()),
        (CalledLikeSGLang, "sglang"),
        (type("Mine", (BATCH,), {}), "vllm_v1"),
        (type("Mine", (ADAPTER,), {}), "vllm_request"),
        (AdapterThatSeesUpdates, "vllm_v1"),
        (type("Mine", (V2,), {}), "vllm_v2"),
        (type("Mine", (SCORES,), {}), "transformers"),
        (type("Mine", (SCORES,), {})(), "transformers"),
        (SCORES_LIST([Scoring()]), "transformers"),
        (OfTheBatch, "vllm_v1"),
        (OfTheRequest, "vllm_request"),
        (OfSlots, "vllm_v2"),
        (Scoring, "transformers"),
        (Scoring(), "transformers"),
        (type("Mine", (DYNAMO,), {}), "dynamo"),
        (type("Mine", (DYNAMO,), {})(), "dynamo"),
        (EditsOneRow, "dynamo"),
        (EditsOneRow(), "dynamo"),
        (functools.partial(Scoring), "transformers"),
        (two, "vllm_request"),
        (three, "vllm_request"),
        (functools.partial(three, [1]), "vllm_request"),
        (functools.partial(two_and_more, by=1), "vllm_request"),
        (functools.partial(after, 1), "transformers"),
        (scores, "transformers"),
        (lambda _, logits: logits, "vllm_request"),
    ],
)
def test_the_dialect_is_recognised(processor: Any, dialect: str) -> None:
    assert recognise(processor) == (processor, dialect)


@pytest.mark.parametrize(
    ("processor", "named", "dialect"),
    [
        (lambda ids, values: values, "transformers", "transformers"),
        (lambda ids, values: values, "vllm", "vllm_request"),
        (OfTheBatch, "vllm", "vllm_v1"),
        (OfSlots, "vllm", "vllm_v2"),
        (OfTheRequest, "vllm", "vllm_request"),
        (Editing, "edits", "edits"),
        (two, "dynamo", "dynamo"),
        (CalledLikeSGLang, "dynamo", "dynamo"),
        (EditingAndCalled, "sglang", "sglang"),
        (OfTheBatchToo, "vllm_v1", "vllm_v1"),
        (OfTheBatchToo, "vllm", "vllm_v1"),
    ],
)
def test_the_author_may_name_it(processor: Any, named: str, dialect: str) -> None:
    assert recognise(InDialect(processor, named)) == (processor, dialect)


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (lambda ids, values: values, r"takes \(ids, values\), which fits no dialect"),
        (lambda: None, "fits no dialect"),
        (len, "fits no dialect"),
        ({}, "a dict is no processor"),
        (3, "a int is no processor"),
        (type("Nothing", (), {}), "has no __call__"),
        (InDialect(two, "esperanto"), "there is no dialect 'esperanto': write one of edits, sglang"),
        (InDialect(type("Nothing", (), {}), "vllm"), "Nothing has the methods of no vLLM contract"),
        (InDialect(two, "vllm_v1"), "two cannot be called as vllm_v1: define update_state, apply"),
        (InDialect(OfTheBatch, "vllm_v2"), "OfTheBatch cannot be called as vllm_v2: define add_request, apply"),
        (InDialect(two, "sglang"), "cannot be called as sglang: pass a class with instances"),
        *(
            (InDialect(one, named), rf"{message}, and cannot be called as '{named}")
            for named in ("transformers", "vllm", "vllm_request")
            for one, message in (
                (Editing, r"Editing is an EditProcessor \(dialect 'edits'\)"),
                (Editing(), r"Editing is an EditProcessor \(dialect 'edits'\)"),
                (EditingAndCalled, r"EditingAndCalled is a CustomLogitProcessor \(dialect 'sglang'\)"),
                (Reading, r"Reading is a CustomLogitProcessor \(dialect 'sglang'\)"),
                (type("Theirs", (OF_SGLANG,), {}), r"Theirs is a CustomLogitProcessor \(dialect 'sglang'\)"),
            )
        ),
        (InDialect(Reading, "edits"), "cannot be called as edits: derive a class from EditProcessor"),
    ],
)
def test_an_object_that_is_not_a_processor_is_refused(processor: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        recognise(processor)


def test_author_of_looks_below_wrappers() -> None:
    assert author_of(InDialect(functools.partial(functools.partial(three, [1]), [2]), "vllm")) is three
    assert author_of(InDialect(Scoring(), "transformers")) is Scoring
