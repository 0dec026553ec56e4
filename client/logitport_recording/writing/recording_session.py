"""A session that is recorded. Sessions that are not recorded run none of this code."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from logitport.errors import RequestsFailed, warn_all_denied
from logitport.session.handle import Handle
from logitport.session.session import Session
from logitport.session.steps.pending_step import PendingStep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.core.edits import Edits
    from logitport.core.history import TokenIds
    from logitport.session.handle import RowLike
    from logitport.session.steps.step_reply import StepResult
    from logitport_recording.writing.recorder import Recorder


class RecordedStep(PendingStep):
    """A step of a recorded session."""

    _recorder: Recorder

    def record(self, recorder: Recorder, base_lengths: Mapping[Handle, int]) -> None:
        """Record the step, which begins after histories of these lengths."""
        self._recorder = recorder
        recorder.begin(self, base_lengths, self._content.drafts, self._content.rows)

    def apply(self, logits: Any, *, check: bool = True) -> StepResult:
        self._recorder.sample(self, logits)
        result = super().apply(logits, check=False)
        self._finish(result, logits, check=check)
        return result

    def edits(self, *, check: bool = True) -> Edits:
        edits = super().edits(check=False)
        result = self.result
        assert result is not None  # noqa: S101 - the edits have arrived
        self._finish(result, None, check=check)
        return edits

    def _finish(self, result: StepResult, logits: Any | None, *, check: bool) -> None:
        answer = self._answer
        assert answer is not None  # noqa: S101 - the step is finished
        programs = {row for row, (handle, _) in enumerate(self._content.rows) if handle.programs}
        errors = {handle: str(error) for handle, error in (result.failures | result.skipped).items()}
        events = {handle: found for handle, (_, found) in self._context.reports.changes.items() if found}
        self._recorder.finish(self, answer.edits, programs.union(answer.logits_rows), errors, events, logits)
        if check and result.failures:
            raise RequestsFailed(result.failures, result)
        if check:
            warn_all_denied(result.all_denied_rows, stacklevel=3)


class RecordingSession(Session):
    """A session whose requests are recorded.

    Args:
        recorder: records them.
        args, options: as for `Session`.
    """

    _step_class = RecordedStep

    def __init__(self, *args: Any, recorder: Recorder, **options: Any) -> None:
        self._recorder = recorder
        # Also at the end of the process, and for a session that is never closed.
        self._end_recording = weakref.finalize(self, recorder.writer.close)
        try:
            super().__init__(*args, **options)
        except BaseException:
            self._end_recording()
            raise

    def step(
        self,
        new_token_ids: Mapping[Handle, TokenIds],
        *,
        rows: Sequence[RowLike] | None = None,
        drafts: Mapping[Handle, TokenIds] | None = None,
        draft_parents: Mapping[Handle, TokenIds] | None = None,
    ) -> PendingStep:
        handles = new_token_ids if isinstance(new_token_ids, Mapping) else ()
        base_lengths = {handle: handle.history.length for handle in handles if isinstance(handle, Handle)}
        pending = super().step(new_token_ids, rows=rows, drafts=drafts, draft_parents=draft_parents)
        assert isinstance(pending, RecordedStep)  # noqa: S101 - this session makes no others
        pending.record(self._recorder, base_lengths)
        return pending

    def remove(self, *handles: Handle) -> None:
        super().remove(*handles)
        for handle in handles:
            self._recorder.remove(handle)

    def close(self) -> None:
        self._recorder.flush()
        super().close()
        self._end_recording()
