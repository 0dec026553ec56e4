"""The result of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logitport.errors import LogitportError
    from logitport.session.handle import Handle


@dataclass(frozen=True)
class StepResult:
    """Result of a step.

    Attributes:
        failures: the error of each request that failed; the engine must end these. Their rows are unspecified.
        skipped: the error of each failed request with on_error="skip"; their rows are unchanged.
        rows_applied: number of rows by processor: a built-in's name, or the `ProcessorRef.display_name` of a shipped
            one (its class and the beginning of its digest).
        all_denied_rows: rows in which edits left no id allowed.
    """

    failures: dict[Handle, LogitportError]
    skipped: dict[Handle, LogitportError]
    rows_applied: dict[str, int]
    all_denied_rows: tuple[int, ...]

    def combined(self, other: StepResult) -> StepResult:
        """Return the result of the rows of both, which are different ones."""
        applied = dict(self.rows_applied)
        for processor, rows in other.rows_applied.items():
            applied[processor] = applied.get(processor, 0) + rows
        return StepResult(
            self.failures | other.failures,
            self.skipped | other.skipped,
            applied,
            tuple(sorted(self.all_denied_rows + other.all_denied_rows)),
        )
