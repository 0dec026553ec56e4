"""Processors that misbehave in a call fail only their own requests."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch

from logitport import Client, CustomLogitProcessor, EditProcessor, ProcessorFailed, Request
from tests.toy_processors import AddOneInPlace, DenyHistory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from logitport import EditRequest, LogitportError, RowEdits
    from tests.conftest import RunningServer

VOCAB = 64
INF = float("inf")
SECONDS = 5.0  # the deadline; well-behaved processors have the same


def reading(misbehave: Callable[[torch.Tensor], Any]) -> type[CustomLogitProcessor]:
    """Make a logits-reading processor that calls `misbehave`."""

    class Misbehaves(CustomLogitProcessor):
        def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
            result: torch.Tensor = misbehave(logits)
            return result

    return Misbehaves


def logits_free(misbehave: Callable[[], Any]) -> type[EditProcessor]:
    """Make a logits-free processor that calls `misbehave`."""

    class Misbehaves(EditProcessor):
        def edit(self, request: EditRequest, edits: RowEdits) -> None:
            misbehave()

    return Misbehaves


def loop(logits: torch.Tensor) -> None:
    while True:
        pass


def sleep_in_c(logits: torch.Tensor) -> None:
    ctypes.PyDLL(None).sleep(3600)  # does not release the interpreter lock


def exit_process(logits: torch.Tensor) -> None:
    os._exit(3)


def segfault(logits: torch.Tensor) -> None:
    ctypes.string_at(0)


def allocate(logits: torch.Tensor) -> None:
    kept = []
    while True:
        kept.append(bytearray(1 << 24))


def fork(logits: torch.Tensor) -> None:
    while True:
        os.fork()


def leak_threads(logits: torch.Tensor) -> None:
    while True:
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()


def close_descriptors(logits: torch.Tensor) -> torch.Tensor:
    os.closerange(0, 4096)
    return logits


def recurse(logits: torch.Tensor) -> None:
    sys.setrecursionlimit(1 << 30)

    def deeper() -> list[Any]:
        return sorted([1], key=lambda _: deeper())  # recurses through C, whose stack is limited

    deeper()


def another_shape(logits: torch.Tensor) -> torch.Tensor:
    return logits[:, 1:]


def not_a_number(logits: torch.Tensor) -> torch.Tensor:
    logits[0, 5] = float("nan")
    return logits


def view_of_other_rows(logits: torch.Tensor) -> torch.Tensor:
    return logits.as_strided(logits.shape, logits.stride(), logits.numel())


def write_before_its_rows(logits: torch.Tensor) -> None:
    ctypes.memset(logits.data_ptr() - (1 << 30), 255, 2 << 30)


class Unprintable(BaseException):
    def __str__(self) -> str:
        raise KeyboardInterrupt


RAISED: tuple[type[BaseException], ...] = (
    *(ValueError, MemoryError, RecursionError, StopIteration, AssertionError, OSError, EOFError),
    *(KeyboardInterrupt, SystemExit, GeneratorExit, BaseException, Unprintable),
)


def raiser(error: type[BaseException]) -> Callable[[torch.Tensor], Any]:
    def misbehave(logits: torch.Tensor) -> None:
        logits.zero_()
        raise error

    return misbehave


Kind = tuple[type[CustomLogitProcessor], type["LogitportError"], str]
TOOK_LONG = rf"its call took over {SECONDS:g} s \(--processor-timeout-seconds\), and its worker was ended"
HANGING: dict[str, Kind] = {
    "an infinite loop": (reading(loop), ProcessorFailed, TOOK_LONG),
    "an infinite loop, logits-free": (logits_free(lambda: loop(torch.empty(0))), ProcessorFailed, TOOK_LONG),
    "a long sleep in C": (reading(sleep_in_c), ProcessorFailed, TOOK_LONG),
}
FAILING: dict[str, Kind] = {
    "os._exit": (reading(exit_process), ProcessorFailed, "ended with status 3"),
    "os._exit, logits-free": (logits_free(lambda: os._exit(4)), ProcessorFailed, "ended with status 4"),
    "a segmentation fault": (reading(segfault), ProcessorFailed, "SIGSEGV"),
    "an allocation bomb": (reading(allocate), ProcessorFailed, "MemoryError"),
    "a fork bomb": (reading(fork), ProcessorFailed, "raised|ended|killed"),
    "a thread leak": (reading(leak_threads), ProcessorFailed, "can't start new thread"),
    "closing our descriptors": (reading(close_descriptors), ProcessorFailed, "ended with status|closed its connection"),
    "a recursion limit blown up": (reading(recurse), ProcessorFailed, "raised|killed"),
    "another shape": (reading(another_shape), ProcessorFailed, r"returned a tensor of shape \[1, 63\]"),
    "NaN": (reading(not_a_number), ProcessorFailed, "returned NaN"),
    "a view of other rows": (reading(view_of_other_rows), ProcessorFailed, "out of bounds"),
    "a write outside its rows": (reading(write_before_its_rows), ProcessorFailed, "SIGSEGV|SIGBUS"),
    **{f"raise {error.__name__}": (reading(raiser(error)), ProcessorFailed, error.__name__) for error in RAISED},
}


# Workers have little memory, and no processor is quarantined.
OPTIONS = ("--enable-custom-logit-processor", "--worker-memory-bytes", str(256 << 20), "--quarantine-after", "1000")


@pytest.fixture(scope="module")
def slow_deadline(serving: Callable[..., AbstractContextManager[RunningServer]]) -> Iterator[RunningServer]:
    """A server with a deadline that no call exceeds."""
    with serving(*OPTIONS) as running:
        yield running


@pytest.fixture(scope="module")
def short_deadline(serving: Callable[..., AbstractContextManager[RunningServer]]) -> Iterator[RunningServer]:
    """A server with a short deadline, for processors that hang."""
    with serving(*OPTIONS, "--processor-timeout-seconds", str(SECONDS)) as running:
        yield running


class Batch:
    """A session with three well-behaved requests: one of a built-in and two of the tenant `good`."""

    def __init__(self, session: Any) -> None:
        self.session = session
        denying = ("disallowed_tokens", {"token_ids": [7]})
        self.well_behaved = [
            session.add(Request([1], processors=[denying])),
            session.add(Request([2], processors=[(AddOneInPlace, {})], tenant="good")),
            session.add(Request([3], processors=[(DenyHistory, {})], tenant="good")),
        ]
        self.denied = [3]

    def step(self, *others: Any) -> tuple[dict[Any, LogitportError], torch.Tensor, float]:
        """Run a step with the rows of `others` between those of the well-behaved requests; check the latter.

        Returns the failures, the rows of `others`, and the seconds that the step took.
        """
        token_id = 10 + len(self.denied)
        self.denied.append(token_id)
        first, second, third = self.well_behaved
        handles = {first: [token_id], **dict.fromkeys(others, ()), second: [token_id], third: [token_id]}
        logits = self.session.logits_buffer(len(handles))
        logits.zero_()
        began = time.monotonic()
        result = self.session.step(handles).apply(logits, check=False)
        took = time.monotonic() - began
        assert [at for at in range(VOCAB) if logits[0, at] == -INF] == [7]
        assert torch.equal(logits[-2], torch.ones(VOCAB))
        assert [at for at in range(VOCAB) if logits[-1, at] == -INF] == self.denied
        assert result.failures.keys() | result.skipped.keys() <= set(others)
        return result.failures | result.skipped, logits[1:-2], took


@contextmanager
def working(server: RunningServer, local: Literal["grpc", "local"]) -> Iterator[Batch]:
    with (
        Client(server.target) as client,
        client.session(vocab_size=VOCAB, dtype=torch.float32, transport=local) as session,
    ):
        yield Batch(session)


@pytest.fixture(params=["grpc", "local"])
def batch(slow_deadline: RunningServer, request: pytest.FixtureRequest) -> Iterator[Batch]:
    with working(slow_deadline, request.param) as begun:
        yield begun


@pytest.fixture(params=["grpc", "local"])
def short_deadline_batch(short_deadline: RunningServer, request: pytest.FixtureRequest) -> Iterator[Batch]:
    with working(short_deadline, request.param) as begun:
        yield begun


def check_that_only_its_request_fails(batch: Batch, kind: Kind) -> float:
    """Return the seconds that the failing step took."""
    processor, expected, message = kind
    bad = batch.session.add(Request([4], processors=[(processor, {})], tenant="bad"))
    neighbour = batch.session.add(Request([5], processors=[(AddOneInPlace, {})], tenant="bad"))
    failures, _, took = batch.step(bad)
    assert list(failures) == [bad]
    assert type(failures[bad]) is expected
    with pytest.raises(expected, match=message):
        raise failures[bad]
    batch.session.remove(bad)
    failures, rows, _ = batch.step(neighbour)
    assert not failures
    assert torch.equal(rows, torch.ones(1, VOCAB))
    return took


@pytest.mark.parametrize("name", FAILING)
def test_a_failing_processor_fails_only_its_request(batch: Batch, name: str) -> None:
    check_that_only_its_request_fails(batch, FAILING[name])


@pytest.mark.parametrize("name", HANGING)
def test_a_hanging_processor_fails_only_its_request(short_deadline_batch: Batch, name: str) -> None:
    took = check_that_only_its_request_fails(short_deadline_batch, HANGING[name])
    assert took < SECONDS + 15  # the target is 0.1 s; a busy machine may take longer


def check_that_it_is_skipped(batch: Batch, kind: Kind, steps: int) -> None:
    skipping = batch.session.add(Request([4], processors=[(kind[0], {})], tenant="bad", on_error="skip"))
    for _ in range(steps):
        failures, rows, _ = batch.step(skipping)
        assert list(failures) == [skipping]
        assert not rows.any()


@pytest.mark.parametrize("name", ["os._exit", "raise ValueError"])
def test_rows_of_a_failing_skipped_request_are_unchanged(batch: Batch, name: str) -> None:
    check_that_it_is_skipped(batch, FAILING[name], 2)


def test_rows_of_a_hanging_skipped_request_are_unchanged(short_deadline_batch: Batch) -> None:
    check_that_it_is_skipped(short_deadline_batch, HANGING["an infinite loop"], 1)


class PatchesTorch(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        result = logits + 2

        def broken(*_: Any, **__: Any) -> None:
            raise RuntimeError("patched")

        for name in ("add_", "copy_", "is_set_to", "index_copy_"):
            setattr(torch.Tensor, name, broken)
        torch.frombuffer = torch.empty = broken  # type: ignore[assignment]
        return result


class WritesLater(CustomLogitProcessor):
    """Keeps writing to the logits of all earlier calls in a thread."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        def write() -> None:
            while True:
                logits.fill_(-5)
                time.sleep(0.001)

        threading.Thread(target=write, daemon=True).start()
        return logits.add_(1)


@pytest.mark.parametrize("processor", [PatchesTorch, WritesLater])
def test_side_effects_of_a_processor_stay_in_its_worker(batch: Batch, processor: type[CustomLogitProcessor]) -> None:
    bad = batch.session.add(Request([4], processors=[(processor, {})], tenant="bad", on_error="skip"))
    for _ in range(4):
        batch.step(bad)
        time.sleep(0.01)
    batch.session.remove(bad)
    for _ in range(2):
        batch.step()
