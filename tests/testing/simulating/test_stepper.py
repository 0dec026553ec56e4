"""Simulations that go on step by step, and processors that are left out of the steps in which they fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import CustomLogitProcessor, EditProcessor, InvalidArgument, ProcessorFailed
from logitport_testing import Stepper, ToyModel, simulate

if TYPE_CHECKING:
    import torch

VOCAB = 8
MODEL = ToyModel(VOCAB)


class FailsAt(EditProcessor):
    """Raises at some length of the output."""

    def edit(self, request: Any, edits: Any) -> None:
        if len(request.history.output_token_ids) in request.params["at"]:
            raise RuntimeError("no edits here")
        edits.deny([1])


class FailsInAdvance(EditProcessor):
    def start(self, request: Any) -> None:
        request.state = request.history.length

    def advance(self, request: Any, token_id: int) -> None:
        if request.history.length == 3:
            raise RuntimeError("no third id")
        request.state = request.history.length

    def edit(self, request: Any, edits: Any) -> None:
        edits.bias([2], float(request.state))


class OutOfVocabulary(EditProcessor):
    def edit(self, request: Any, edits: Any) -> None:
        edits.deny([VOCAB])


class ReaderFails(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        if len(custom_param_list[0]["__req__"].output_ids) == 1:
            raise ZeroDivisionError("in a reader")
        return logits * 2


class Refuses(EditProcessor):
    @classmethod
    def validate_params(cls, params: Any) -> None:
        raise InvalidArgument("no parameters please")

    def edit(self, request: Any, edits: Any) -> None: ...


DENIES = ("disallowed_tokens", {"token_ids": [0]})


def test_steps_equal_a_simulation() -> None:
    chain = [DENIES, ("temperature", {"temperature": 0.5})]
    whole = simulate(chain, MODEL, [3], 6, temperature=1.0, seed=4, output=[None, None, 5])
    with Stepper(chain, MODEL, [3], temperature=1.0, seed=4) as stepper:
        for given in (None, None, 5, None, None, None):
            stepper.step(given)
        assert stepper.result().to_json() == whole.to_json()
        assert [step.given for step in stepper.steps] == [False, False, True, False, False, False]
        assert whole.output_token_ids[2] == 5


def test_the_result_before_the_first_step() -> None:
    with Stepper([DENIES], MODEL, [3]) as stepper:
        result = stepper.result()
    assert (result.prompt_token_ids, result.output_token_ids, result.vocab_size) == ((3,), (), 0)


def test_there_is_no_step_after_the_end() -> None:
    with Stepper([], MODEL, eos_token_ids=[2]) as stepper:
        stepper.step(2)
        assert stepper.ended == "eos"
        with pytest.raises(InvalidArgument, match="ended"):
            stepper.step()


def test_a_given_id_must_exist() -> None:
    with Stepper([], MODEL) as stepper, pytest.raises(InvalidArgument, match=r"output\[0\] is 8"):
        stepper.step(8)


def test_the_width_must_not_change() -> None:
    with Stepper([], lambda ids: np.zeros(4 + len(ids), np.float32)) as stepper:
        stepper.step()
        with pytest.raises(InvalidArgument, match="one width"):
            stepper.step()


def test_a_step_has_the_moved_mass_and_the_candidates() -> None:
    (step,) = simulate([DENIES, ("logit_bias", {"logit_bias": {"3": 2.0}})], np.zeros((1, 4)), top_k=2).steps
    assert step.moved == pytest.approx(np.abs([-0.25, -0.25 + 1 / 9.389, -0.25 + 1 / 9.389, 0.537]).sum() / 2, abs=1e-3)
    ids = step.candidates.ids.tolist()
    assert set(ids) == {0, 1, 3}
    table = dict(zip(ids, step.candidates.probabilities.tolist(), strict=True))
    assert table[0] == [0.25, 0.0, 0.0, 0.0]
    assert table[3] == pytest.approx([0.25, 1 / 3, 0.787, 0.787], abs=1e-3)
    assert ids[0] == 3


def test_only_the_processor_that_fails_is_left_out() -> None:
    chain = [DENIES, (FailsAt, {"at": [1]}), ("logit_bias", {"logit_bias": {"3": 2.0}})]
    steps = simulate(chain, MODEL, [4], 3, on_error="isolate").steps
    for step in steps:
        denies, fails, bias = step.processors
        assert (denies.denied.tolist(), bias.biased.tolist()) == ([0], [3])
        assert (fails.called, fails.denied.tolist()) == ((False, []) if step.index == 1 else (True, [1]))
        assert bool(fails.error) == (step.index == 1)
        assert not any((step.error, denies.error, bias.error))
    assert "no edits here" in steps[1].processors[1].error
    assert "Remote traceback" in steps[1].processors[1].error
    assert steps[1].processors[1].to_json()["error"] == steps[1].processors[1].error


def test_one_of_two_that_fail_goes_on() -> None:
    chain = [(FailsAt, {"at": [0]}), DENIES, (FailsAt, {"at": [0, 1]})]
    errors = [
        [one.error != "" for one in step.processors]
        for step in simulate(chain, MODEL, [4], 2, on_error="isolate").steps
    ]
    assert errors == [[True, False, True], [False, False, True]]
    with pytest.raises(ProcessorFailed, match="no edits here") as raised:
        simulate(chain, MODEL, [4], 2)
    assert 'raise RuntimeError("no edits here")' in raised.value.remote_traceback


def test_the_others_have_the_results_of_a_chain_without_it() -> None:
    rest = [DENIES, ("temperature", {"temperature": 0.5})]
    chain = [DENIES, (ReaderFails, {}), rest[1]]
    steps = simulate(chain, MODEL, [4], 3, on_error="isolate", keep_logits=True).steps
    output = [step.token_id for step in steps]
    without = simulate(rest, MODEL, [4], 3, output=output, keep_logits=True).steps
    assert [bool(step.processors[1].error) for step in steps] == [False, True, False]
    assert np.array_equal(steps[1].final_logits, without[1].final_logits)  # type: ignore[arg-type]
    assert not np.array_equal(steps[2].final_logits, without[2].final_logits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("processor", "failing"),
    [(FailsInAdvance, [1]), (OutOfVocabulary, [0, 1, 2]), (Refuses, [0, 1, 2]), ("no_such_thing", [0, 1, 2])],
)
def test_failures_outside_the_call(processor: Any, failing: list[int]) -> None:
    steps = simulate([DENIES, (processor, {}), DENIES], MODEL, [4, 5], 3, on_error="isolate").steps
    assert [step.index for step in steps if step.processors[1].error] == failing
    assert all(step.processors[0].denied.tolist() == [0] for step in steps)
    assert not any(step.processors[place].error for step in steps for place in (0, 2))
    assert {step.processors[1].processor for step in steps} == {getattr(processor, "__name__", processor)}
