"""What a step came to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

from logitport.core.edits import Edits, RowEdits
from logitport_server.dialects.base import by_row
from logitport_server.dialects.failures import of_dialect

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logitport.errors import LogitportError
    from logitport_server.dialects.base import EditsResult
    from logitport_server.principals import TrustDomain
    from logitport_server.session.active_request import ActiveRequest
    from logitport_server.session.grouping import Group, Row

# How many calls of one trust domain may run out of time in one step: each keeps all others waiting.
_MAX_TIMEOUTS = 2


class Failed(NamedTuple):
    """Why a request failed in a step, and whether it goes on without its processors."""

    error: LogitportError
    skipped: bool


@dataclass
class StepOutcome:
    """What a step came to. A request that failed has no part in what was said and applied before it did.

    Attributes:
        served: the groups that went well, in order, and what each one's processor said of its rows, if it says edits.
        failures: the requests that failed in this step, by slot.
        timeouts: how often a worker of a trust domain has not answered in time.
    """

    served: list[tuple[Group, EditsResult]] = field(default_factory=list)
    failures: dict[int, Failed] = field(default_factory=dict)
    timeouts: Counter[TrustDomain | None] = field(default_factory=Counter)

    def fail(self, request: ActiveRequest, error: LogitportError) -> None:
        """The request goes no further in this step."""
        request.fail(error)
        self.failures[request.slot] = Failed(error, request.skip)
        self.__dict__.pop("edits", None)

    def out_of_time(self, group: Group) -> bool:
        """Whether the group's trust domain has kept the others of this step waiting long enough."""
        return bool(self.timeouts) and self.timeouts[group.dialect.domain] >= _MAX_TIMEOUTS

    @property
    def applied(self) -> Counter[str]:
        """Rows by processor, each by its key."""
        applied: Counter[str] = Counter()
        for group, _ in self.served:
            rows = sum(self._alive(group)) if self.failures else len(group.rows)
            if rows:
                applied[group.dialect.key] += rows
        return applied

    @property
    def names(self) -> dict[str, str]:
        """What processors are called that were served, by their keys."""
        return {group.dialect.key: group.dialect.name for group, _ in self.served}

    @cached_property
    def edits(self) -> dict[int, RowEdits]:
        """What the processors said, of each row of which they said anything; not to be asked before all were served."""
        edits: dict[int, RowEdits] = {}
        for group, said in self.served:
            for row, row_edits in self._by_row(group, said):
                if row_edits:
                    before = edits.get(row.index)
                    edits[row.index] = row_edits if before is None else _joined(before, row_edits)
        return edits

    def pack(self, vocab_size: int) -> Edits:
        """The edits of all rows. A request whose processors said what cannot be fails; the others go on."""
        if (packed := self._packed()) is not None:
            return packed
        try:
            return Edits.pack(sorted(self.edits.items()), vocab_size)
        except Exception:  # noqa: BLE001 - what was said is somebody else's
            for group, said in self.served:
                for row, edits in self._by_row(group, said):
                    try:
                        edits.check(vocab_size)
                    except Exception as error:  # noqa: BLE001 - as above
                        self.fail(row.request, of_dialect(error, group.dialect))
            return Edits.pack(sorted(self.edits.items()), vocab_size)

    def all_denied(self, vocab_size: int) -> list[int]:
        """Rows in which edits left no id allowed, ascending."""
        return sorted(row for row, said in self.edits.items() if said.denies_all(vocab_size))

    def _packed(self) -> Edits | None:
        """The edits of all rows, if one processor has said them all, and in columns."""
        speaking = [(group, said) for group, said in self.served if len(said)]
        if self.failures or len(speaking) != 1:
            return None
        ((group, said),) = speaking
        return said.moved([row.index for row in group.rows]) if isinstance(said, Edits) else None

    def _by_row(self, group: Group, said: EditsResult) -> Iterator[tuple[Row, RowEdits]]:
        """The rows of requests that have not failed, and what was said of each; a reader of logits says nothing."""
        pairs = zip(group.rows, by_row(said, len(group.rows)), strict=False)
        return compress(pairs, self._alive(group)) if self.failures else pairs

    def _alive(self, group: Group) -> Sequence[bool]:
        return [row.request.failure is None for row in group.rows]


def _joined(first: RowEdits, later: RowEdits) -> RowEdits:
    joined = RowEdits()
    joined.extend(first)
    joined.extend(later)
    return joined
