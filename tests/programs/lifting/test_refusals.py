"""Processors that are refused before anything is captured: the message has the line, the cause and the advice."""

from __future__ import annotations

import pytest
from transformers.generation import logits_process as hf

from logitport import EditProcessor, NotCapturable
from logitport_programs.lifting import lift
from tests.programs.lifting import gallery


class Edits(EditProcessor):
    def edit(self, request, edits):
        edits.deny([1])


class Batches:
    def update_state(self, batch_update):
        pass

    def apply(self, logits):
        return logits


class Slots:
    def add_request(self, req_idx, sampling_params):
        return True

    def apply(self, logits, ctx):
        return logits


class OfRequests:
    def new_req_logits_processor(self, params):
        return None


@pytest.mark.parametrize(
    ("processor", "line", "text"),
    [
        (
            gallery.LoopOverRows,
            'logits[row] / params["temperature"]',
            "'temperature' of one row is an argument of div, in a loop",
        ),
        (gallery.Branches, "if p[", "'scale' of one row is used as a Python value (a comparison)"),
        (gallery.Divides, "1.0 / p[", "used as a Python value (arithmetic)"),
        (gallery.TestsTypes, "isinstance(p[", "used as a Python value (isinstance)"),
        (gallery.Formats, "float(f", "used as a Python value (a key or a text)"),
        (gallery.OneForAll, "custom_param_list[0]", "'scale' of one row is an argument of div"),
        (gallery.Reversed, "torch.tensor(scales)", "for some rows only"),
        (gallery.NoDefault, 'p.get("scale")', "write p.get('scale', 1.0), or p['scale']"),
        (gallery.TwoDefaults, "2.0", "read with two defaults"),
        (gallery.AsksForKeys, '"scale" in p', "the dict of a row's parameters is used as a Python value (in)"),
        (gallery.ThinkingBudget, "__req__", "reads the request, which a program has not"),
        (gallery.ReadsNothing, "", "'scale' is read, but no tensor is made of it"),
        (gallery.Validates, "validate_params", "declare the limits as params of a TensorProcessor"),
        (gallery.never_twice, "if output_ids", "reads output_ids, of which the length differs"),
    ],
)
def test_the_message_has_the_line_and_the_cause(processor, line: str, text: str) -> None:
    with pytest.raises(NotCapturable) as error:
        lift(processor)
    message = error.value.message
    assert message.startswith(f"{gallery.__file__}:")
    assert line in message
    assert text in message


@pytest.mark.parametrize(
    ("processor", "text"),
    [
        (Edits, "an EditProcessor reads no logits"),
        (Batches, "update_state keeps a table of requests in Python"),
        (Slots, "add_request keeps a table of requests"),
        (OfRequests, "new_req_logits_processor makes Python functions"),
        (hf.TemperatureLogitsWarper, "cannot be instantiated without arguments"),
        (hf.NoRepeatNGramLogitsProcessor(2), "reads input_ids, of which the length differs at each step"),
        (hf.RepetitionPenaltyLogitsProcessor(1.5, prompt_ignore_length=2), "reads input_ids"),
        (hf.MinLengthLogitsProcessor(9000, 1), "reads input_ids"),
    ],
)
def test_contracts_and_classes_that_are_no_tensor_code(processor, text: str) -> None:
    with pytest.raises(NotCapturable) as error:
        lift(processor)
    assert text in error.value.message


def test_what_is_no_processor() -> None:
    with pytest.raises(TypeError):
        lift(3)
