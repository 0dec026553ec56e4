"""Runs the programs of a step's requests on the engine's logits, in the order of their chains."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from logitport.core import tensors
from logitport.core.drafts import DraftWalks
from logitport.errors import LogitportError, ProcessorFailed
from logitport.ops import apply_edits
from logitport_programs.parameters import Columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport.core.drafts import Drafts
    from logitport.core.edits import Edits
    from logitport.session.handle import Handle, ProgramCall
    from logitport_programs.runtime.program_runner import Runner as TorchRunner
    from logitport_programs.runtime.reference_runner import ReferenceRunner
    from logitport_programs.verifier import Verified

    # The request and the draft offset of each row.
    Placed = Sequence[tuple[Handle, int]]


class _Group(NamedTuple):
    """Rows that run a program together.

    Attributes:
        verified: the program.
        rows: ascending.
        handles: the request of each row.
        columns: the parameters of each row.
        reads_history: whether the program reads the histories of the rows.
        visit: the place of the rows' draft offsets in `Drafts.walk`; 0 if it does not read histories.
    """

    verified: Verified
    rows: list[int]
    handles: list[Handle]
    columns: Columns
    reads_history: bool
    visit: int


class ProgramRuns:
    """Groups the rows of a step by program, and keeps the groups while the requests of the rows stay the same."""

    def __init__(self) -> None:
        self._runners: dict[bool, TorchRunner | ReferenceRunner] = {}
        self._key: list[tuple[Handle, int, tuple[ProgramCall, ...]]] = []
        self._places: list[list[_Group]] = []

    def apply(
        self,
        logits: Any,
        rows: Placed,
        drafts: Mapping[Handle, Drafts],
        edits: Sequence[Edits],
        earlier: Mapping[Handle, LogitportError],
    ) -> dict[Handle, LogitportError]:
        """Apply edits and programs in the order of each row's chain, in place.

        Rows of failed requests are restored if their request has on_error="skip"; otherwise they hold any values.
        Programs of requests that failed earlier do not run.

        Args:
            logits: float[rows, vocab_size], a torch tensor or a numpy array.
            rows: the request and draft offset of each row.
            drafts: the draft tokens of requests that speculate.
            edits: those before the first program of each row, after the first one, after the second one, ...
            earlier: the requests that failed on the server in this step.

        Returns:
            The error of each other request that failed.

        Raises:
            InvalidArgument: the logits require gradients, and grad mode is on.
        """
        tensors.check_gradient(logits)
        places = self._grouped(rows, drafts)
        originals = {
            row: tensors.copied(logits[row]) for row, (handle, _) in enumerate(rows) if handle.programs and handle.skips
        }
        failed = dict(earlier)
        for place in range(max(len(edits), len(places))):
            if place < len(edits):
                apply_edits(edits[place], logits)
            if place < len(places):
                self._run_place(places[place], logits, drafts, failed)
        for row, original in originals.items() if failed else ():
            if rows[row][0] in failed:
                logits[row] = original
        return {handle: error for handle, error in failed.items() if handle not in earlier}

    def _run_place(
        self,
        groups: Sequence[_Group],
        logits: Any,
        drafts: Mapping[Handle, Drafts],
        failed: dict[Handle, LogitportError],
    ) -> None:
        """Run the groups of one place of the chains, with the drafts that their rows see in the histories."""
        seen = 0
        walks = DraftWalks({handle: drafts[handle] for group in groups if group.visit for handle in group.handles})
        lengths = {handle: handle.history.length for handle in walks}
        try:
            for group in groups:
                for visit in range(seen + 1, group.visit + 1):
                    for handle, depth, token_id in walks.changes(visit):
                        _rewind(handle, lengths[handle] + depth)
                        handle.history.draft_tokens += 1
                        handle.history.append(token_id)
                seen = max(seen, group.visit)
                self._run_group(_without(group, failed), logits, failed)
        finally:
            for handle, length in lengths.items():
                _rewind(handle, length)

    def _run_group(self, group: _Group, logits: Any, failed: dict[Handle, LogitportError]) -> None:
        if not group.rows:
            return
        histories = [handle.tokens for handle in group.handles] if group.reads_history else ()
        try:
            errors: Mapping[int, LogitportError] = self._runner(logits).apply(
                group.verified, logits, group.rows, group.columns, histories
            )
        except LogitportError as error:
            errors = dict.fromkeys(group.rows, error)
        except Exception as error:  # noqa: BLE001 - such as out of memory on a GPU: only these requests fail
            name = group.verified.program.name
            message = f"program {name} could not be run: {error!r}"
            errors = dict.fromkeys(group.rows, ProcessorFailed(message, processor=name))
        if errors:
            by_row = dict(zip(group.rows, group.handles, strict=True))
            for row, failure in errors.items():
                failed.setdefault(by_row[row], failure)

    def _runner(self, logits: Any) -> TorchRunner | ReferenceRunner:
        is_torch = tensors.is_torch(logits)
        if is_torch in self._runners:
            return self._runners[is_torch]
        if is_torch:
            from logitport_programs.runtime.program_runner import Runner as TorchRunner

            self._runners[True] = TorchRunner()
        else:
            from logitport_programs.runtime.reference_runner import ReferenceRunner

            self._runners[False] = ReferenceRunner()
        return self._runners[is_torch]

    def _grouped(self, rows: Placed, drafts: Mapping[Handle, Drafts]) -> list[list[_Group]]:
        """The groups of each place: first the first program of each chain, then the second one, ..."""
        walks = DraftWalks(drafts)
        visited = [(handle, walks.visit_of(handle, offset)) for handle, offset in rows]
        key = [(handle, visit, handle.programs) for handle, visit in visited]
        if key != self._key:
            self._key, self._places = key, _group(visited)
        return self._places


def _group(rows: Placed) -> list[list[_Group]]:
    """Group the rows, given as the request and the visit of each."""
    places: list[list[_Group]] = []
    longest = max((len(handle.programs) for handle, _ in rows), default=0)
    for place in range(longest):
        by_program: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
        for row, (handle, visit) in enumerate(rows):
            if place < len(handle.programs):
                verified = handle.programs[place].verified
                by_program[visit if verified.reads_history else 0, verified.program.digest].append(row)
        groups = []
        for (visit, _), members in sorted(by_program.items()):
            calls = [rows[row][0].programs[place] for row in members]
            verified, handles = calls[0].verified, [rows[row][0] for row in members]
            columns = Columns(verified, [call.values for call in calls])
            groups.append(_Group(verified, members, handles, columns, verified.reads_history, visit))
        places.append(groups)
    return places


def _rewind(handle: Handle, length: int) -> None:
    if handle.history.length != length:
        handle.history.rewind(length)
        handle.tokens.rewound()


def _without(group: _Group, failed: Mapping[Handle, LogitportError]) -> _Group:
    """The group without the rows of failed requests."""
    if not failed or not any(handle in failed for handle in group.handles):
        return group
    kept = [at for at, handle in enumerate(group.handles) if handle not in failed]
    return group._replace(
        rows=[group.rows[at] for at in kept],
        handles=[group.handles[at] for at in kept],
        columns=group.columns.select(kept),
    )
