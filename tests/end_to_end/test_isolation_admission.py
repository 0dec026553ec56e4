"""Admissions that block in shipped code while requests of the same trust domain run."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import Client, EditProcessor, ProcessorFailed, Request
from tests.processes import descendants
from tests.toy_processors import AddOneInPlace, DenyHistory
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from logitport import EditRequest, RowEdits
    from tests.conftest import RunningServer

VOCAB = 32
# Processor time, in ticks, after which a process is known to spin. Any other work takes less.
TICKS = 50


def spin() -> None:
    """Block until the test ends the process. The test recognizes the process by its use of a CPU."""
    sum(itertools.count())


class BlocksInCheck(DenyHistory):
    """Its check of {"block": true} does not return."""

    @classmethod
    def validate_params(cls, params: Any) -> None:
        if params.get("block"):
            spin()


class BlocksInInit(EditProcessor):
    def __init__(self) -> None:
        spin()

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        pass


class Blocks:
    """An object whose unpickling does not return."""

    def __reduce__(self) -> Any:
        return sum, (itertools.count(),)


class BlocksInUnpickling(EditProcessor):
    attribute = Blocks()

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        pass


@pytest.fixture(scope="module")
def quiet(serving: Callable[..., AbstractContextManager[RunningServer]]) -> Iterator[RunningServer]:
    """A server of its own, whose processes are observed."""
    with serving("--enable-custom-logit-processor") as running:
        yield running


def ticks(pid: int) -> int:
    """Return how much processor time a process has used; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11])
    except OSError:
        return 0


@contextmanager
def blocked_admission(server: RunningServer, request: Request, errors: list[Exception]) -> Iterator[None]:
    """Add the request, and wait until its admission spins in a process. Afterwards, end this process."""
    before = {pid: ticks(pid) for pid in descendants(server.process.pid)}

    def admit() -> None:
        with Client(server.target) as client, client.session(vocab_size=VOCAB, dtype=torch.float32) as session:
            try:
                session.add(request)
            except ProcessorFailed as error:
                errors.append(error)

    def spinning() -> list[int]:
        return [pid for pid in descendants(server.process.pid) if ticks(pid) - before.get(pid, 0) > TICKS]

    admission = threading.Thread(target=admit, daemon=True)
    admission.start()
    wait_until(spinning, lambda: "no process spins")
    try:
        yield
    finally:
        for pid in spinning():
            os.kill(pid, signal.SIGKILL)
        admission.join()


@pytest.mark.parametrize(
    ("processor", "params"),
    [(BlocksInCheck, {"block": True}), (BlocksInInit, {}), (BlocksInUnpickling, {})],
    ids=["validate_params", "init", "unpickling"],
)
def test_requests_are_served_while_another_admission_blocks(
    quiet: RunningServer, processor: type[EditProcessor], params: dict[str, Any]
) -> None:
    errors: list[Exception] = []
    with Client(quiet.target) as client, client.session(vocab_size=VOCAB, dtype=torch.float32) as session:
        # Registered processors of one owner share a trust domain.
        digests = {which: client.register(which).digest for which in {BlocksInCheck, AddOneInPlace, processor}}
        stateful = session.add(Request([1], processors=[(digests[BlocksInCheck], {})]))
        stateless = session.add(Request([1], processors=[(digests[AddOneInPlace], {})]))
        with blocked_admission(quiet, Request([1], processors=[(digests[processor], params)]), errors):
            for token_id in range(2, 12):
                logits = torch.zeros(2, VOCAB)
                session.step({stateful: [token_id], stateless: [token_id]}).apply(logits)
                denied = (logits[0] == -torch.inf).nonzero().flatten().tolist()
                assert denied == list(range(1, token_id + 1))
                assert logits[1].tolist() == [1.0] * VOCAB
    (error,) = errors
    assert "was killed by SIGKILL" in str(error)
