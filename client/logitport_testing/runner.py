"""The interface through which tests run chains in process. The server implements it; an entry point finds it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from logitport.errors import InvalidArgument, NotInstalled
from logitport.system.installation import how_to_install

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from logitport.core.row_edits import Edit
    from logitport.core.row_events import RowEvent
    from logitport.errors import LogitportError
    from logitport.shipping.request import Request

GROUP = "logitport_testing.runners"
ADVICE = f"logitport_testing runs the server's code; install it {how_to_install('server', 'testing')}"

# Where processors run: the caller's own objects in this process; the same after pickling and loading; in a sandboxed
# worker, after pickling and loading.
Where = Literal["here", "shipped", "worker"]


@dataclass(frozen=True)
class ProcessorInfo:
    """A processor of an admitted chain.

    Attributes:
        name: its name in errors and metrics.
        reads_logits: whether it takes logits.
        is_program: whether it runs as a program.
        takes_rows: whether one call of its code takes the rows of several requests.
    """

    name: str
    reads_logits: bool
    is_program: bool
    takes_rows: bool = False


@dataclass(frozen=True)
class RowStep:
    """The part of one request in a step.

    Attributes:
        slot: the request.
        base_length: length of the history that stays; ids after it are cut off.
        new_token_ids: ids that are appended.
    """

    slot: int
    base_length: int
    new_token_ids: Sequence[int] = ()


@dataclass(frozen=True)
class PlaceResult:
    """The effect of one processor on one row.

    Attributes:
        logits: the row after the processor, float32[vocab_size].
        edits: its edits, in their order; () for a processor that reads logits.
        events: its events, in their order.
    """

    logits: NDArray[np.float32]
    edits: tuple[Edit, ...] = ()
    events: tuple[RowEvent, ...] = ()


@dataclass(frozen=True)
class RowResult:
    """The result of one row of a step.

    Attributes:
        logits: the row for the sampler, float32[vocab_size]; unchanged if the request failed.
        places: the effect of each processor; None where it was not called, or where its request had failed.
        error: the error of the request; None if it has not failed.
        failed_place: the processor with the call that failed; None if none failed, or the failure was before all calls.
    """

    logits: NDArray[np.float32]
    places: tuple[PlaceResult | None, ...]
    error: LogitportError | None = None
    failed_place: int | None = None


class Batch(Protocol):
    """The requests of one engine."""

    def add(self, slot: int, request: Request) -> tuple[ProcessorInfo, ...]:
        """Admit a request. Returns its chain. Raises LogitportError if the server would refuse it."""

    def remove(self, slot: int) -> None:
        """Remove a request."""

    def check_rebuildable(self, slot: int) -> None:
        """Raise StateLost if the request has state that cannot be rebuilt from its history."""

    def step(self, rows: Sequence[RowStep], logits: NDArray[np.float32]) -> list[RowResult]:
        """Run one step.

        Args:
            rows: the requests of the step.
            logits: float32[rows, vocab_size], not changed.
        """


class ChainRunner(Protocol):
    """Runs chains in this process, as a server does. Close it, or use it as a context manager."""

    def open(self, vocab_size: int, *, tokenizer_id: str = "", eos_token_ids: Sequence[int] = ()) -> Batch:
        """Open an empty batch, with new instances of all processors."""

    def close(self) -> None:
        """End all workers."""

    def __enter__(self) -> ChainRunner: ...

    def __exit__(self, *_: object) -> None:
        """Close it."""


class RunningServer(Protocol):
    """A server of the fixture.

    Attributes:
        target: HOST:PORT of its gRPC service.
    """

    target: str

    def stop(self) -> None:
        """Stop it."""


class Backend(Protocol):
    """The server's side of tests, which the entry point names."""

    def open_runner(
        self,
        where: Where = "here",
        options: Mapping[str, Any] | None = None,
        tokenizers: Mapping[str, Path] | None = None,
    ) -> ChainRunner:
        """Open a runner.

        Args:
            where: where processors run.
            options: options of `logitport serve`, by the names of `ServerConfig`.
            tokenizers: further tokenizers by name, for processors that run here. They are read when one uses them.
        """

    def serve_in_thread(self, options: Mapping[str, Any] | None = None) -> RunningServer:
        """Start a server whose front door is a thread of this process."""


def with_tokenizer(
    path: str | PathLike[str], name: str, options: Mapping[str, Any] | None
) -> tuple[str, dict[str, Any]]:
    """Return the tokenizer's name, and the options with the tokenizer. Raises InvalidArgument."""
    if "tokenizer" in (options or {}):
        raise InvalidArgument("tokenizer is given, and options has a tokenizer, too: leave one of them out")
    name = name or os.fspath(path).replace("=", "_")
    return name, {**(options or {}), "tokenizer": [f"{name}={os.fspath(path)}"]}


def load_backend() -> Backend:
    """Load the server's side of tests.

    Raises:
        NotInstalled: the server, or a package that it needs, is not installed.
    """
    points = list(entry_points(group=GROUP))
    if not points:
        raise NotInstalled(f"no package provides the entry point group {GROUP!r}; {ADVICE}")
    try:
        return cast("Backend", points[0].load())
    except ImportError as error:
        raise NotInstalled(f"{points[0].value} cannot be imported ({error}); {ADVICE}") from error
