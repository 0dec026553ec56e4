"""A request in a session: its history, and its chain of processors with their state."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from logitport.errors import LogitportError
from logitport_session.dialects import failures
from logitport_session.requests.principal_memory import charge_by_loan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logitport.core.history import History
    from logitport_session.dialects import Dialect
    from logitport_session.requests.principal_memory import PrincipalMemory


@dataclass(eq=False, slots=True)
class ChainEntry:
    """One place in a request's chain: a processor, and its state for this request.

    Attributes:
        state: the dialect's state for this request.
        label: the name or digest of the processor in the request.
        stale: whether the state misses ids of the history, because the processor failed at one of them.
        only_denies: whether the processor declares that it only denies ids of this request.
    """

    dialect: Dialect
    state: Any
    label: str = ""
    stale: bool = False
    only_denies: bool = False


class ActiveRequest:
    """An admitted request.

    Args:
        account: charged with the memory of its history and states; None if they are not charged.

    Attributes:
        chain: its processors, which run in this order.
        reads_logits: whether any of them reads logits.
        programs_before: for each place of the chain, the number of earlier programs that the engine runs; empty if it
            runs none.
        skip: whether the request continues without its processors after a failure.
        greedy: whether the engine samples the largest logit of its rows.
        failure: the error it failed with, or None.
        is_compiled: whether the compiled core runs it in the steps of its session.
        trace: the span of its admission, as `Span.context`, or None.
    """

    __slots__ = (
        "_account",
        "_needs_check",
        "_token_callbacks",
        "chain",
        "failure",
        "generation",
        "greedy",
        "history",
        "is_compiled",
        "programs_before",
        "reads_logits",
        "skip",
        "slot",
        "trace",
    )

    def __init__(
        self,
        slot: int,
        generation: int,
        history: History,
        chain: list[ChainEntry],
        *,
        skip: bool,
        greedy: bool = False,
        account: PrincipalMemory | None = None,
    ) -> None:
        self._account = account
        self.trace: object = None
        self.slot = slot
        self.generation = generation
        self.history = history
        self.chain = chain
        self.is_compiled = False
        self.reads_logits = any(entry.dialect.reads_logits for entry in chain)
        runs = [entry.dialect.engine_program is not None for entry in chain]
        self.programs_before = tuple(accumulate(runs[:-1], initial=0)) if any(runs) else ()
        self.skip = skip
        self.greedy = greedy
        self.failure: LogitportError | None = None
        # Whether the last step left a failure or stale state, which the next step must resolve.
        self._needs_check = False
        self._token_callbacks = [
            (callback, entry) for entry in chain if (callback := entry.dialect.token_callback(entry.state)) is not None
        ]

    @property
    def is_sound(self) -> bool:
        """Whether it has no failure, and no state that misses ids."""
        return self.failure is None and not self._needs_check

    def synchronize(self, base_length: int, history_crc: int, new_token_ids: Sequence[int]) -> None:
        """Cut the history back to `base_length` if it is longer, check its checksum, and append the new ids.

        Raises:
            LogitportError: the history differs from the engine's.
            LimitExceeded: the principal would hold too much memory.
            LogitportError: the error the request failed with before, or one that a processor raises now.
        """
        failure = None
        if self._needs_check or base_length != self.history.length:
            failure = self._rewind_for_step(base_length)
        own_crc = self.history.crc()
        if own_crc != history_crc:
            raise LogitportError(
                f"slot {self.slot}: the first {base_length} ids differ between engine and server: the engine's "
                f"checksum is {history_crc}, the server's {own_crc}",
                code=LogitportError.NEED_SYNC,
            )
        if new_token_ids:
            length = self.history.length + len(new_token_ids)
            if not self.history.charge(length):
                charge_by_loan(self.history, self._account, length)
            later = self._extend(new_token_ids)
            failure = failure or later
        if failure is not None:
            raise failure

    def fail(self, failure: LogitportError) -> None:
        """Mark the request as failed: in this step, and in later ones too unless `skip` is set."""
        # The error is raised again at every step. Each time its traceback would grow, and keep frames and their locals.
        failure.__traceback__ = failure.__cause__ = failure.__context__ = None
        self.failure = failure
        self._needs_check = True

    def append(self, token_ids: Sequence[int]) -> None:
        """Append draft tokens to the history; `rewind` removes them.

        Raises:
            LimitExceeded: the principal would hold too much memory.
            LogitportError: the first error of a processor, raised after all processors were called.
        """
        length = self.history.length + len(token_ids)
        if not self.history.charge(length):
            charge_by_loan(self.history, self._account, length)
        self.history.draft_tokens += len(token_ids)
        failure = self._extend(token_ids)
        if failure is not None:
            raise failure

    def rewind(self, length: int) -> None:
        """Apply a rewind: cut the history back to `length` ids, and rewind the states. Raises as `append`."""
        self.history.rewind(length)
        failure = self._rewind_states(self.chain)
        if failure is not None:
            raise failure

    def _rewind_for_step(self, length: int) -> LogitportError | None:
        """Apply the rewind of a step that begins at this length. Clears a failure if `skip` is set.

        Returns:
            The first error of a processor.

        Raises:
            LogitportError: as `synchronize`.
        """
        if self.failure is not None:
            if not self.skip:
                raise self.failure
            self.failure = None
        own_length = self.history.length
        if length == own_length:
            failure = self._rewind_states([entry for entry in self.chain if entry.stale])
        elif self.history.prompt_length <= length < own_length:
            self.history.rewind(length)
            failure = self._rewind_states(self.chain)
        else:
            raise LogitportError(
                f"the engine's history has {length} ids, the server's {own_length}", code=LogitportError.NEED_SYNC
            )
        self._needs_check = failure is not None
        return failure

    def _extend(self, token_ids: Sequence[int]) -> LogitportError | None:
        """Append ids to the history, and call the token callbacks. Returns the first error of a processor."""
        failure = None
        for token_id in token_ids:
            self.history.append(token_id)
            for callback, entry in self._token_callbacks:
                if entry.stale:
                    continue
                try:
                    callback(token_id)
                except BaseException as error:  # noqa: BLE001 - a processor may raise anything
                    entry.stale = self._needs_check = True
                    failure = failure or failures.of_dialect(error, entry.dialect)
        return failure

    def _rewind_states(self, entries: Iterable[ChainEntry]) -> LogitportError | None:
        """Rewind states after the history was cut back; rebuild stale ones. Returns the first error of a processor."""
        failure = None
        for entry in entries:
            try:
                if entry.stale:
                    entry.dialect.rebuild(entry.state)
                else:
                    entry.dialect.rewind(entry.state)
                entry.stale = False
            except BaseException as error:  # noqa: BLE001 - as above
                entry.stale = True
                failure = failure or failures.of_dialect(error, entry.dialect)
        return failure
