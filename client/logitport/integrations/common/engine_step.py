"""A step of an engine's batch: its requests, their rows, and what is sent of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    import torch

    from logitport.errors import LogitportError
    from logitport.integrations.common.rows import Selection
    from logitport.session import Handle


@dataclass(eq=False, kw_only=True)
class TrackedRequest:
    """One request of the engine that has processors. A hook adds the engine's own attributes.

    Attributes:
        ending_id: the id that it gets once it has failed; None for any id.
        handle: in the session; None before it was sent, and on all ranks but the leader.
        error: why it failed; on the leader from then on, on all ranks from the next step on.
        failed: whether the failure was sent to every rank.
    """

    ending_id: int | None = None
    handle: Handle | None = None
    error: LogitportError | None = None
    failed: bool = False


@dataclass(eq=False)
class EngineStep:
    """Requests of one step, and their rows in the engine's logits.

    The steps of a batch that stays the same may share one object: see `EngineBatch.is_steady` and `repeat`.

    Attributes:
        requests: the requests, each once.
        new_ids: the ids that joined each of them; set on the leader.
        rows: each row's request, and how many draft tokens precede the row.
        row_indices: each row's index in the engine's logits.
        drafts: draft tokens of the requests that have any.
        draft_parents: their parents, as in `Session.step`, of the requests with drafts that are no chain.
        denied: the row indices after drafts in which every id is denied, with their requests; set by `finish`.
        changes: the batch's count of changes when `handles` and the next attributes were set; -1 before that.
        handles: of the requests that are sent.
        is_whole: whether they are all requests of the step.
        sent_rows: their rows in the engine's logits.
        selection: the same for `rows_of`.
        repeated: the new ids by handle, after `repeat`.
    """

    requests: list[Any] = field(default_factory=list)
    new_ids: list[Sequence[int]] = field(default_factory=list)
    rows: list[tuple[Any, int]] = field(default_factory=list)
    row_indices: list[int] = field(default_factory=list)
    drafts: dict[Any, Sequence[int]] = field(default_factory=dict)
    draft_parents: dict[Any, Sequence[int]] = field(default_factory=dict)
    denied: dict[int, Any] = field(default_factory=dict)
    changes: int = -1
    handles: list[Handle] = field(default_factory=list)
    is_whole: bool = False
    sent_rows: list[int] = field(default_factory=list)
    selection: Selection = field(default_factory=list)
    repeated: dict[Handle, list[int]] = field(default_factory=dict)

    def add(self, request: TrackedRequest, new_ids: Sequence[int], *row_indices: int) -> None:
        """Add a request with its rows: one, and one more for each of its draft tokens."""
        self.requests.append(request)
        self.new_ids.append(new_ids)
        if len(row_indices) == 1:  # without drafts
            self.rows.append((request, 0))
            self.row_indices.append(row_indices[0])
            return
        self.rows += [(request, offset) for offset in range(len(row_indices))]
        self.row_indices += row_indices

    def repeat(self, newest: Iterable[int]) -> None:
        """Set the new ids of a step like the last one, in which one id has joined each request.

        From the second call on it changes the lists in `new_ids`.
        """
        if not self.repeated:
            cells = [[0] for _ in self.requests]
            self.new_ids, self.repeated = [*cells], dict(zip(self.handles, cells))  # noqa: B905
        for ids, token_id in zip(self.repeated.values(), newest):  # noqa: B905
            ids[0] = token_id


class OutputLists:
    """The engine's own lists of output ids, of the requests of a step, to which each further step adds one id.

    Attributes:
        lists: one of each request.
    """

    def __init__(self, lists: Sequence[Sequence[int]] = ()) -> None:
        self.lists = lists
        self.lengths = list(map(len, lists))
        self.steps = 0

    def next_ids(self) -> list[int] | None:
        """Return the last id of each list; None if a list has not one id more than at the last call."""
        self.steps = steps = self.steps + 1
        if [len(ids) - steps for ids in self.lists] != self.lengths:
            return None
        return [ids[-1] for ids in self.lists]

    def newest(self) -> list[int]:
        """Return the last id of each list."""
        return [ids[-1] for ids in self.lists]


def step_arguments(step: EngineStep) -> dict[str, Any]:
    """Return the arguments of `Session.step` without failed requests."""
    new_ids = zip(step.requests, step.new_ids)  # noqa: B905
    drafts = {it.handle: ids for it, ids in step.drafts.items() if it.error is None}
    return {
        "new_token_ids": {it.handle: ids for it, ids in new_ids if it.error is None},
        "drafts": drafts,
        "draft_parents": {it.handle: parents for it, parents in step.draft_parents.items() if it.error is None},
        "rows": [(it.handle, offset) for it, offset in step.rows if it.error is None] if drafts else None,
    }


def force_ends(step: EngineStep, logits: torch.Tensor) -> Collection[TrackedRequest]:
    """Let only the ending id of each failed request be sampled. Returns these requests."""
    rows = zip(step.row_indices, step.rows)  # noqa: B905
    failed = {index: request for index, (request, _) in rows if request.failed}
    for index, request in (step.denied | failed).items():
        leave_only(logits, index, request.ending_id)
    return set(failed.values())


def leave_only(logits: torch.Tensor, rows: int | slice | list[int], ending_id: int | None) -> None:
    """Deny all ids but this one in rows of float[rows, vocab_size]; if it is None, make all ids equally likely."""
    logits[rows] = float("-inf")
    logits[rows, slice(None) if ending_id is None else ending_id] = 0.0
