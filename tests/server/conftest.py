"""Parts of a server, in this process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from logitport import History
from logitport_server.dialects import Dialect, RequestContext, speak
from logitport_server.requests import ActiveRequest, Link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport import CustomLogitProcessor


@dataclass
class Admission:
    """Makes requests out of instances of processors. Requests that are given the same instance share its dialect.

    Attributes:
        vocab_size: width of the logits.
    """

    vocab_size: int
    _dialects: dict[int, Dialect] = field(default_factory=dict)
    _slots: int = 0

    def __call__(
        self,
        *chain: tuple[CustomLogitProcessor, dict[str, Any]],
        prompt: Sequence[int] = (),
        output: Sequence[int] = (),
        skip: bool = False,
    ) -> ActiveRequest:
        history = History(prompt, output)
        context = RequestContext(f"r{self._slots}", history, {}, self.vocab_size)
        links = []
        for processor, params in chain:
            dialect = self._dialects.setdefault(id(processor), speak(processor, type(processor).__name__, shipped=True))
            links.append(Link(dialect, dialect.start(context, params)))
        self._slots += 1
        return ActiveRequest(self._slots - 1, 0, history, links, skip=skip)


@pytest.fixture(scope="session")
def admission() -> type[Admission]:
    """The class: a property test needs a fresh one for each example."""
    return Admission
