"""`check`: its arguments and errors; processors that obey the laws."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from logitport import EditProcessor, InvalidArgument, LogitportError, NotFound
from logitport.errors import NotInstalled
from logitport_testing import LAWS, LawBroken, StoryModel, check
from logitport_testing.laws.stopwatch import Measured
from tests.testing.laws.correct import CORRECT
from tests.testing.laws.defects import CountsInAdvance, NormalizesTheBatch

if TYPE_CHECKING:
    from collections.abc import Callable

FAST = [law for law in LAWS if law != "worker"]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind in ("edits", "SGLang", "vLLM's batches") else [pytest.mark.slow])
        for kind in CORRECT
    ],
)
def test_it_accepts_processors_of_all_kinds(kind: str) -> None:
    correct = CORRECT[kind]
    check(correct.processor, [correct.params], laws=FAST, max_examples=4)


@pytest.mark.slow
def test_the_error_has_the_law_and_the_smallest_example() -> None:
    with pytest.raises(AssertionError) as raised:
        check(CountsInAdvance)
    error = raised.value
    assert isinstance(error, LawBroken)
    assert isinstance(error, LogitportError)
    assert error.law == "start"
    assert error.example == {
        "params": {},
        "prompt": [],
        "output": [0],
        "admitted_with": 0,
        "one_step": False,
        "logits": "ToyModel(64, 0)",
    }
    assert "CountsInAdvance breaks the law 'start'" in str(error)
    assert "output: [0]" in str(error)
    assert "after `advance` 4.7341, and after `start` 3.7341" in str(error)


@pytest.mark.slow
def test_the_same_arguments_give_the_same_example() -> None:
    def example(seed: int) -> dict[str, Any]:
        with pytest.raises(LawBroken) as raised:
            check(NormalizesTheBatch, laws=["batch"], seed=seed)
        return raised.value.example

    assert example(3) == example(3)


def test_only_the_named_laws_are_tested() -> None:
    check(CountsInAdvance, laws=["vocabulary", "nan"], max_examples=5)
    check(CountsInAdvance, laws="nan", max_examples=5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: check(CountsInAdvance, laws=["moon"]),
            InvalidArgument,
            "no law 'moon'; the laws are time, runs, deterministic, start, rewind",
        ),
        (lambda: check(CountsInAdvance, []), InvalidArgument, "at least one dict of parameters"),
        (
            lambda: check("disallowed_tokens"),
            InvalidArgument,
            r"params\[0\] is refused at vocab_size=64: .*token_ids is",
        ),
        (
            lambda: check("thinking_budget", [{"thinking_budget": 1, "preset": "qwen3"}]),
            InvalidArgument,
            "pass a vocab_size with all ids",
        ),
        (lambda: check("no_such_name"), NotFound, "no built-in is called 'no_such_name'"),
        (lambda: check("team/ours"), NotFound, "team/ours"),
        (lambda: check(CountsInAdvance, options={"max_moons": 3}), InvalidArgument, "max_moons"),
        (lambda: check(3), LogitportError, "int"),
    ],
)
def test_arguments_that_cannot_be_used(call: Callable[[], None], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_larger_ids_in_the_parameters_widen_the_vocabulary() -> None:
    check("disallowed_tokens", [{"token_ids": [99]}], laws=["vocabulary"], max_examples=5)
    check("logit_bias", [{"logit_bias": {"150": 1.0}}], laws=["vocabulary"], max_examples=5)


def test_the_server_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "logitport_runner", None)
    with pytest.raises(NotInstalled, match=r"pip install '\.\[server,testing\]'"):
        check(CountsInAdvance)


def test_no_package_provides_a_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logitport_testing.runner.entry_points", lambda group: [])
    with pytest.raises(NotInstalled, match=r"no package provides the entry point group 'logitport_testing\.runners'"):
        check(CountsInAdvance)


class DeniesText(EditProcessor):
    def edit(self, request: Any, edits: Any) -> None:
        edits.deny(request.tokenizer.ids_containing("king"))


@pytest.mark.slow
def test_a_processor_with_a_tokenizer() -> None:
    story = StoryModel()
    laws = ["runs", "params", "vocabulary"]
    check(DeniesText, vocab_size=story.vocab_size, laws=laws, max_examples=3, tokenizer=story.tokenizer_path)
    check(DeniesText, laws=laws, max_examples=3, tokenizer=story.tokenizer_path)
    options = {"tokenizer": [f"a={story.tokenizer_path}", f"b={story.tokenizer_path}"]}
    check(DeniesText, laws=laws, max_examples=3, tokenizer_id="b", options=options)
    with pytest.raises(LawBroken, match=r"\[0, 9\)"):
        check(DeniesText, laws=laws, max_examples=3, tokenizer=story.tokenizer_path, vocab_size=9)
    with pytest.raises(LawBroken, match="`simulate` and `check`"):
        check(DeniesText, laws=laws, max_examples=3)


class Chatters(EditProcessor):
    def edit(self, request: Any, edits: Any) -> None:
        for number in range(1000):
            print("line", number)  # noqa: T201
        if request.history.length > 2:
            raise ValueError("three ids")


def test_the_output_is_captured_and_its_end_is_in_the_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LawBroken) as raised:
        check(Chatters)
    assert capfd.readouterr() == ("", "")
    lines = str(raised.value).partition("Output of the processor:\n")[2].splitlines()
    assert lines[0] == "..."
    assert lines[-1] == "line 999"
    assert 10 < len(lines) < 300


class NeverEnds(EditProcessor):
    def edit(self, request: Any, edits: Any) -> None:
        while True:
            pass


def test_a_call_that_never_ends_is_stopped_and_its_line_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logitport_testing.laws.stopwatch._MIN_SECONDS_TO_STOP", 0.1)
    with pytest.raises(LawBroken, match=r"(?s)law 'time'.*the step was stopped after.*while True:") as raised:
        check(NeverEnds, options={"processor_timeout_seconds": 0.05})
    assert raised.value.law == "time"


def test_a_busy_machine_breaks_no_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call breaks the law `time` only if it is too slow again and again."""
    slow = iter([True, True])

    class Slow(Measured):
        def __str__(self) -> str:
            return "took long" if next(slow, False) else ""

    monkeypatch.setattr("logitport_testing.laws.stopwatch.Measured", Slow)
    check(Denies, laws=["time"])


class Denies(EditProcessor):
    def edit(self, request: Any, edits: Any) -> None:
        edits.deny([1])


def test_a_search_without_time_left_ends_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logitport_testing.laws.checking._MAX_SECONDS", 0.0)
    with pytest.warns(UserWarning, match=r"ended early: .*start \(1 examples\)"):
        check(Denies, laws=["start"])
