"""Runs the requests of a recording again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.errors import InvalidArgument, LogitportError
from logitport.request import Request
from logitport.testing.replaying.chains import replaced_chain
from logitport.testing.replaying.effects import best_of, difference, effect_of, row_of
from logitport.testing.runner import RowStep, load_backend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from logitport.recording.events import RecordedRow, RequestStepped, SessionOpened
    from logitport.recording.reader import RecordedRequest, Recording, RequestPart
    from logitport.testing.replaying.chains import Replacement
    from logitport.testing.replaying.effects import RowDifference
    from logitport.testing.runner import Runner

# How far logits of a chain that reads them may differ, by the engine's datatype.
_TOLERANCES = {"FP32": 1e-4, "FP16": 5e-3, "BF16": 4e-2}
_BEST_IDS = 5
_SLOT, _OTHER_SLOT = 0, 1


@dataclass(frozen=True, eq=False)
class ReplayedRow:
    """A row where the new version differs.

    Attributes:
        step: number of the request's step.
        offset: number of draft tokens that the row has seen.
        length: length of the history that the row follows.
        difference: the ids; None if one of both has failed.
        chosen: the id that the engine chose after it; None if this is not known.
        chosen_denied: whether the new version denies that id.
        error: the error of the new version; "" if it has none.
        recorded_error: the error in the recording.
        before, recorded, new: the most probable ids before the chain, after it, and after the new one, as (id,
            probability); None if the logits of the step were not recorded.
    """

    step: int
    offset: int
    length: int
    difference: RowDifference | None
    chosen: int | None = None
    chosen_denied: bool = False
    error: str = ""
    recorded_error: str = ""
    before: list[tuple[int, float]] | None = None
    recorded: list[tuple[int, float]] | None = None
    new: list[tuple[int, float]] | None = None

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "step": self.step,
            "offset": self.offset,
            "length": self.length,
            "chosen": self.chosen,
            "chosen_denied": self.chosen_denied,
            "error": self.error,
            "recorded_error": self.recorded_error,
            "difference": None if self.difference is None else self.difference.to_json(),
            "before": self.before,
            "recorded": self.recorded,
            "new": self.new,
        }


@dataclass
class ReplayedRequest:
    """A request that ran again.

    Attributes:
        request_id: the engine's name for it.
        chain: the names of its processors, as they ran.
        rows: the rows that differ.
        compared: number of rows that were compared.
        not_compared: number of rows without recorded edits or logits.
        error: why the new version refuses or ends the request; "" if it does not.
    """

    request_id: str
    chain: tuple[str, ...] = ()
    rows: list[ReplayedRow] = field(default_factory=list)
    compared: int = 0
    not_compared: int = 0
    error: str = ""

    @property
    def differs(self) -> bool:
        """Whether the new version has another effect."""
        return bool(self.rows or self.error)

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "request_id": self.request_id,
            "chain": list(self.chain),
            "differs": self.differs,
            "compared": self.compared,
            "not_compared": self.not_compared,
            "error": self.error,
            "rows": [row.to_json() for row in self.rows],
        }


@dataclass
class Replay:
    """A recording that ran again.

    Attributes:
        requests: those whose chain has a place for the new version.
        left_out: number of other requests.
    """

    requests: list[ReplayedRequest]
    left_out: int = 0

    @property
    def differs(self) -> bool:
        """Whether the new version has another effect in any request."""
        return any(request.differs for request in self.requests)

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "differs": self.differs,
            "requests": [request.to_json() for request in self.requests],
            "left_out": self.left_out,
            "compared": sum(request.compared for request in self.requests),
            "not_compared": sum(request.not_compared for request in self.requests),
            "rows_that_differ": sum(len(request.rows) for request in self.requests),
        }


def replay(recording: Recording, replacements: Sequence[Replacement], *, request_id: str | None = None) -> Replay:
    """Run the recorded requests with new processors, on the recorded histories, and compare.

    The histories stay the recorded ones: where the new version would have led to another id, later steps do not follow.

    Args:
        recording: as `read_recording` returns it.
        replacements: the new processors.
        request_id: only requests with this id; None for all.

    Raises:
        InvalidArgument: no request has this id, or a chain that a replacement fits; or a processor is not recorded.
        NotInstalled: the server is not installed.
    """
    chosen = [
        (session.opened, request)
        for session in recording.sessions
        for request in session.requests
        if request_id is None or request.began.request_id == request_id
    ]
    if not chosen:
        raise InvalidArgument("the recording has no request" + ("" if request_id is None else f" {request_id!r}"))
    result = Replay([])
    with load_backend().open_runner("here") as runner:
        for opened, request in chosen:
            chain = replaced_chain(request.began.processors, replacements)
            if chain is None:
                result.left_out += 1
            else:
                result.requests.append(_replay_request(runner, opened, request, chain))
    if not result.requests:
        chains = {", ".join(one.display_name for one in request.began.processors) for _, request in chosen}
        raise InvalidArgument(
            "no recorded chain has one place for the new version; name the processor that it replaces, as in --with "
            f"NAME=FILE.py:CLASS. The chains are: {'; '.join(sorted(chains))}"
        )
    return result


def _replay_request(
    runner: Runner, opened: SessionOpened, request: RecordedRequest, chain: Sequence[tuple[Any, Any]]
) -> ReplayedRequest:
    result = ReplayedRequest(request.began.request_id)
    for part in request.parts:
        try:
            _Player(runner, opened, part, chain, result).play()
        except LogitportError as error:  # of the admission
            result.error = str(error)
        if result.error:
            break
    return result


class _Player:
    """Plays the steps of one part, in a batch of its own."""

    def __init__(
        self,
        runner: Runner,
        opened: SessionOpened,
        part: RequestPart,
        chain: Sequence[tuple[Any, Any]],
        result: ReplayedRequest,
    ) -> None:
        began = part.began
        self._vocab_size = opened.vocab_size
        self._tolerance = _TOLERANCES.get(opened.datatype, 1e-4)
        self._part = part
        self._result = result
        self._batch = runner.open(
            opened.vocab_size, tokenizer_id=opened.tokenizer_id, eos_token_ids=opened.eos_token_ids
        )
        request = Request(
            began.prompt.tolist(),
            began.output.tolist(),
            list(chain),
            began.request_id,
            began.sampling_params,
            on_error="skip" if began.on_error == "skip" else "abort",
        )
        infos = self._batch.add(_SLOT, request)
        result.chain = tuple(info.name for info in infos)
        self._reads = any(info.reads_logits for info in infos)
        self._batch.add(_OTHER_SLOT, Request())  # not greedy
        self._history: list[int] = [*began.prompt.tolist(), *began.output.tolist()]
        self._shared = len(self._history)  # ids that the batch has in common with the history

    def play(self) -> None:
        steps = self._part.steps
        for place, step in enumerate(steps):
            del self._history[step.base_length :]
            self._shared = min(self._shared, step.base_length)
            self._history += step.new_ids.tolist()
            following = steps[place + 1] if place + 1 < len(steps) else None
            for row in sorted(step.rows, key=lambda one: one.offset):
                self._play_row(step, row, following)
                if self._result.error:
                    return
            self._shared = min(self._shared, len(self._history))

    def _play_row(self, step: RequestStepped, row: RecordedRow, following: RequestStepped | None) -> None:
        raw = None if row.before is None else row_of(row.before, self._vocab_size)
        by_logits = row.edits is None or self._reads
        if not step.finished or (by_logits and (raw is None or row.after is None) and not step.error):
            self._result.not_compared += 1
            return
        history = self._history + step.draft_ids[: row.offset].tolist()
        given = raw if by_logits and raw is not None else np.zeros(self._vocab_size, np.float32)
        new, error = self._step(history, given, greedy=step.greedy)
        self._result.compared += 1
        chosen = _chosen(step, row, following, len(self._history))
        if error or step.error:
            if bool(error) != bool(step.error):
                self._result.rows.append(
                    ReplayedRow(step.index, row.offset, len(history), None, chosen, False, error, step.error)
                )
            if error:
                self._result.error = error
            return
        found, recorded_row, new_row = self._compare(row, given, new, raw, by_logits=by_logits)
        if not found:
            return
        denied = chosen is not None and bool(np.isneginf(new[chosen]))
        known = [top.ids for top in (row.before, row.after) if top is not None]
        ids = np.unique(np.concatenate(known)) if known else np.empty(0, np.int32)
        tops = [None if one is None else best_of(one, ids, _BEST_IDS) for one in (raw, recorded_row, new_row)]
        self._result.rows.append(
            ReplayedRow(step.index, row.offset, len(history), found, chosen, denied, "", "", *tops)
        )

    def _compare(
        self,
        row: RecordedRow,
        given: NDArray[np.float32],
        new: NDArray[np.float32],
        raw: NDArray[np.float32] | None,
        *,
        by_logits: bool,
    ) -> tuple[RowDifference, NDArray[np.float32] | None, NDArray[np.float32] | None]:
        """The difference, and the rows after both chains, if the logits are known."""
        if not by_logits:
            recorded = effect_of(row.edits or (), self._vocab_size)
            rows = (None, None) if raw is None else (raw + recorded, raw + new)
            return difference(recorded, new), *rows
        if row.edits is not None:  # the new version reads logits, the recorded one did not
            recorded = given + effect_of(row.edits, self._vocab_size)
            return difference(recorded, new, tolerance=self._tolerance), recorded, new
        assert row.before is not None  # noqa: S101 - the caller has checked both
        assert row.after is not None  # noqa: S101
        recorded = row_of(row.after, self._vocab_size)
        ids = row.before.ids  # the logits of other ids are not known before the chain
        return difference(recorded[ids], new[ids], ids, self._tolerance), recorded, new

    def _step(
        self, history: list[int], logits: NDArray[np.float32], *, greedy: bool
    ) -> tuple[NDArray[np.float32], str]:
        """The row after the chain, and the request's error."""
        rows = [RowStep(_SLOT, self._shared, history[self._shared :])]
        given = [logits]
        if not greedy:  # then a processor that never changes the best id is called for a greedy request, too
            rows.append(RowStep(_OTHER_SLOT, 0))
            given.append(np.zeros_like(logits))
        self._shared = len(history)
        result = self._batch.step(rows, np.stack(given))[0]
        return result.logits, "" if result.error is None else str(result.error)


def _chosen(step: RequestStepped, row: RecordedRow, following: RequestStepped | None, length: int) -> int | None:
    """The id after a row: the first new one of the next step that continues there."""
    if following is None or not len(following.new_ids) or following.base_length != length:
        return None
    if row.offset >= len(following.new_ids) or not np.array_equal(
        following.new_ids[: row.offset], step.draft_ids[: row.offset]
    ):
        return None
    return int(following.new_ids[row.offset])
