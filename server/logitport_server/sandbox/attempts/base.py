"""The seam: one attempt, and what there is to attack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_server.sandbox.plan import Limits


@dataclass(frozen=True)
class Targets:
    """What there is to attack.

    Attributes:
        limits: those that the worker has.
        result: the descriptor that an attempt's result goes to, for a program that it might start.
        parent: process id of the preloaded parent, as that one knows it.
        sibling: process id of another worker, as the parent knows it.
        sibling_file: what that one has left in its temporary folder.
        port: where the server's host listens, on 127.0.0.1.
        abstract_socket: the name under which it does so in the abstract namespace, without the leading zero byte.
    """

    limits: Limits
    result: int
    parent: int
    sibling: int
    sibling_file: str
    port: int
    abstract_socket: str


@dataclass(frozen=True)
class Attempt:
    """What is tried inside a worker.

    Attributes:
        what: what is tried, in a few words.
        run: returns what it got hold of, or raises when it was stopped.
        stopped_by: each of these sets of layers is enough to stop it; an empty one: it is stopped without any, for a
            worker has no capabilities, cannot gain any, and is closed to tracing.
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
    """What the call gives for the first candidate that it does not fail for. Raises the last failure."""
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
