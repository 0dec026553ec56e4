"""One attempt, and its targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_sandbox.plan import WorkerLimits


@dataclass(frozen=True)
class Targets:
    """The targets of attempts.

    Attributes:
        limits: the worker's.
        result: descriptor for an attempt's result, for a program that it may start.
        parent: process id of the preloaded parent, in its own namespace.
        sibling: process id of another worker, in the parent's namespace.
        sibling_file: file in the temporary folder of that worker.
        port: port of 127.0.0.1 that the host listens on.
        abstract_socket: name of a listening abstract socket of the host, without the leading zero byte.
    """

    limits: WorkerLimits
    result: int
    parent: int
    sibling: int
    sibling_file: str
    port: int
    abstract_socket: str


@dataclass(frozen=True)
class Attempt:
    """One attempt, made inside a worker.

    Attributes:
        what: description of the attempt, in a few words.
        run: returns what it obtained, or raises if it was stopped.
        stopped_by: each of these sets of layers is enough to stop it. An empty set means that no layer is needed: a
            worker has no capabilities, cannot gain any, and cannot be traced. Users of their own, which workers of a
            root server have, count as the layer "users".
    """

    what: str
    run: Callable[[Targets], object]
    stopped_by: tuple[frozenset[str], ...]


ATTEMPTS: list[Attempt] = []


def stopped_by(*enough: str) -> Callable[[Callable[[Targets], object]], Callable[[Targets], object]]:
    """Register an attempt, described by its docstring; each argument names layers that stop it, joined by "+"."""

    def register(run: Callable[[Targets], object]) -> Callable[[Targets], object]:
        assert run.__doc__ is not None  # noqa: S101 - it is the description
        sets = tuple(frozenset(filter(None, layers.split("+"))) for layers in enough)
        ATTEMPTS.append(Attempt(run.__doc__.rstrip("."), run, sets))
        return run

    return register


def first_that_works(call: Callable[..., object], *candidates: object) -> object:
    """Return the first candidate with a successful call. Raises the last failure."""
    failure: OSError | None = None
    for candidate in candidates:
        try:
            call(candidate)
        except OSError as error:
            failure = error
        else:
            return candidate
    assert failure is not None  # noqa: S101 - there were candidates
    raise failure
