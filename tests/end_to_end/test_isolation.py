"""Processors that misbehave in a call: each costs its own requests, and nothing else."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch

from logitport import Client, CustomLogitProcessor, EditProcessor, ProcessorFailed, ProcessorTimedOut, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from logitport import EditRequest, LogitportError, RowEdits
    from tests.conftest import RunningServer

VOCAB = 64
INF = float("inf")
SECONDS = 5.0  # of which the innocent have as many


class AddOne(CustomLogitProcessor):
    """Behaves."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits.add_(1)


class DenyHistory(EditProcessor):
    """Behaves, and keeps state."""

    def start(self, request: EditRequest) -> None:
        request.state = request.history.token_ids.tolist()

    def advance(self, request: EditRequest, token_id: int) -> None:
        request.state.append(token_id)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny(request.state)


def reading(misbehave: Callable[[torch.Tensor], Any]) -> type[CustomLogitProcessor]:
    """A logits-reading processor that does this."""

    class Misbehaves(CustomLogitProcessor):
        def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
            result: torch.Tensor = misbehave(logits)
            return result

    return Misbehaves


def logits_free(misbehave: Callable[[], Any]) -> type[EditProcessor]:
    """A logits-free processor that does this."""

    class Misbehaves(EditProcessor):
        def edit(self, request: EditRequest, edits: RowEdits) -> None:
            misbehave()

    return Misbehaves


def loop(logits: torch.Tensor) -> None:
    while True:
        pass


def sleep_in_c(logits: torch.Tensor) -> None:
    ctypes.PyDLL(None).sleep(3600)  # does not let go of the interpreter


def leave(logits: torch.Tensor) -> None:
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
        return sorted([1], key=lambda _: deeper())  # by way of C, whose stack ends

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
    "an infinite loop": (reading(loop), ProcessorTimedOut, TOOK_LONG),
    "an infinite loop, logits-free": (logits_free(lambda: loop(torch.empty(0))), ProcessorTimedOut, TOOK_LONG),
    "a long sleep in C": (reading(sleep_in_c), ProcessorTimedOut, TOOK_LONG),
}
FAILING: dict[str, Kind] = {
    "os._exit": (reading(leave), ProcessorFailed, "ended with status 3"),
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


# Small workers, and nobody is put into quarantine.
OPTIONS = ("--enable-custom-logit-processor", "--worker-memory-bytes", str(256 << 20), "--quarantine-after", "1000")


@pytest.fixture(scope="module")
def patient(serving: Callable[..., AbstractContextManager[RunningServer]]) -> Iterator[RunningServer]:
    """A server whose deadline nobody meets."""
    with serving(*OPTIONS) as running:
        yield running


@pytest.fixture(scope="module")
def hasty(serving: Callable[..., AbstractContextManager[RunningServer]]) -> Iterator[RunningServer]:
    """A server for those that hang."""
    with serving(*OPTIONS, "--processor-timeout-seconds", str(SECONDS)) as running:
        yield running


class Batch:
    """A session with innocent requests: a built-in's, and two of a tenant that behaves."""

    def __init__(self, session: Any) -> None:
        self.session = session
        denying = ("disallowed_tokens", {"token_ids": [7]})
        self.innocent = [
            session.add(Request([1], processors=[denying])),
            session.add(Request([2], processors=[(AddOne, {})], tenant="good")),
            session.add(Request([3], processors=[(DenyHistory, {})], tenant="good")),
        ]
        self.told = [3]

    def step(self, *others: Any) -> tuple[dict[Any, LogitportError], torch.Tensor, float]:
        """A step in which the others' rows lie between those of the innocent, which are checked.

        Returns failures, the rows of the others, and the seconds that the step took.
        """
        token_id = 10 + len(self.told)
        self.told.append(token_id)
        first, second, third = self.innocent
        handles = {first: [token_id], **dict.fromkeys(others, ()), second: [token_id], third: [token_id]}
        logits = self.session.logits_buffer(len(handles))
        logits.zero_()
        began = time.monotonic()
        result = self.session.step(handles).apply(logits, check=False)
        took = time.monotonic() - began
        assert [at for at in range(VOCAB) if logits[0, at] == -INF] == [7]
        assert torch.equal(logits[-2], torch.ones(VOCAB))
        assert [at for at in range(VOCAB) if logits[-1, at] == -INF] == self.told
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
def batch(patient: RunningServer, request: pytest.FixtureRequest) -> Iterator[Batch]:
    with working(patient, request.param) as begun:
        yield begun


@pytest.fixture(params=["grpc", "local"])
def hasty_batch(hasty: RunningServer, request: pytest.FixtureRequest) -> Iterator[Batch]:
    with working(hasty, request.param) as begun:
        yield begun


def costs_its_own_request(batch: Batch, kind: Kind) -> float:
    """Returns the seconds that the step took which it failed in."""
    processor, expected, message = kind
    bad = batch.session.add(Request([4], processors=[(processor, {})], tenant="bad"))
    neighbour = batch.session.add(Request([5], processors=[(AddOne, {})], tenant="bad"))
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
def test_who_fails_costs_its_own_request(batch: Batch, name: str) -> None:
    costs_its_own_request(batch, FAILING[name])


@pytest.mark.parametrize("name", HANGING)
def test_who_hangs_costs_its_own_request(hasty_batch: Batch, name: str) -> None:
    took = costs_its_own_request(hasty_batch, HANGING[name])
    assert took < SECONDS + 15  # the bar is 0.1 s; a machine that is busy with tests may take longer


def skips(batch: Batch, kind: Kind, steps: int) -> None:
    skipping = batch.session.add(Request([4], processors=[(kind[0], {})], tenant="bad", on_error="skip"))
    for _ in range(steps):
        failures, rows, _ = batch.step(skipping)
        assert list(failures) == [skipping]
        assert not rows.any()


@pytest.mark.parametrize("name", ["os._exit", "raise ValueError"])
def test_who_fails_and_asked_to_be_skipped_has_its_rows_as_they_were(batch: Batch, name: str) -> None:
    skips(batch, FAILING[name], 2)


def test_who_hangs_and_asked_to_be_skipped_has_its_rows_as_they_were(hasty_batch: Batch) -> None:
    skips(hasty_batch, HANGING["an infinite loop"], 1)


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
    """Writes to the logits of every call that it has had, for as long as it lives."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        def write() -> None:
            while True:
                logits.fill_(-5)
                time.sleep(0.001)

        threading.Thread(target=write, daemon=True).start()
        return logits.add_(1)


@pytest.mark.parametrize("processor", [PatchesTorch, WritesLater])
def test_what_it_leaves_behind_stays_with_it(batch: Batch, processor: type[CustomLogitProcessor]) -> None:
    bad = batch.session.add(Request([4], processors=[(processor, {})], tenant="bad", on_error="skip"))
    for _ in range(4):
        batch.step(bad)
        time.sleep(0.01)
    batch.session.remove(bad)
    for _ in range(2):
        batch.step()


def test_several_that_hang_at_once_cost_one_deadline(hasty_batch: Batch) -> None:
    bad = [
        hasty_batch.session.add(Request([4], processors=[(reading(loop), {})], tenant=tenant))
        for tenant in ("x", "y", "z")
    ]
    failures, _, took = hasty_batch.step(*bad)
    assert {type(error) for error in failures.values()} == {ProcessorTimedOut}
    assert failures.keys() == set(bad)
    assert took < 2 * SECONDS
    gc.collect()
