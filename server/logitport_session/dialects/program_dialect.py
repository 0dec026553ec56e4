"""Programs: verified data instead of code, run in the process of their session, or by the engine.

A program needs no isolation. Its rows do not affect each other, so that one call may have rows of several tenants.
"""

from __future__ import annotations

import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from logitport.errors import LimitExceeded
from logitport.system.installation import has_torch
from logitport_programs.cost import DEFAULT_LIMIT_MS, NUMPY, TORCH, check_cost
from logitport_programs.parameters import Columns, check_params
from logitport_programs.request_tokens import RequestTokens
from logitport_session.dialects.base import Dialect, RequestContext
from logitport_session.dialects.shared_runner import SharedRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from logitport.core.history import History
    from logitport.payload import Signature
    from logitport_programs.parameters import Checked
    from logitport_programs.verifier import Verified
    from logitport_session.dialects.base import EditsResult

_RUNNER = SharedRunner()
# Of the counts in `RequestTokens`, for each distinct id: measured in tests/server/session/test_principal_memory.py.
_BYTES_PER_COUNTED_ID = 200


class _ProgramState:
    """State of a request: its checked parameters, and its ids if the program reads them."""

    __slots__ = ("history", "tokens", "values")

    def __init__(self, values: tuple[Checked, ...], history: History, tokens: RequestTokens | None) -> None:
        self.values = values
        self.history = history
        self.tokens = tokens


class ProgramDialect(Dialect):
    """Runs a program on logits.

    Args:
        verified: the program.
        name: its name in messages.
        signature: of the program, for engines.
        limit_ms: how long the program may take for a row here, in the worst case.
    """

    reads_logits = True
    row_safe = True

    def __init__(
        self, verified: Verified, name: str, signature: Signature | None = None, limit_ms: float = DEFAULT_LIMIT_MS
    ) -> None:
        super().__init__(None, name, shipped=False)
        self.takes_long = False  # to start; see `installed.Installed`
        self.denies_without = () if verified.only_denies else None
        self.verified = verified
        self.signature = signature
        self._reads_history = verified.reads_history
        # Whether the prompt is left out, for each way of counting ids.
        counted = {value.flag for value in verified.program.values if value.operator in ("token_mask", "token_counts")}
        self.bytes_per_prompt_id = _BYTES_PER_COUNTED_ID * (False in counted)
        self.bytes_per_output_id = _BYTES_PER_COUNTED_ID * len(counted)
        # A program that does not read the history runs once for the rows of all draft offsets.
        self.takes_drafts = not self._reads_history
        self._has_lists = any(parameter.length for parameter in verified.program.parameters)
        self._fitting_width = 0
        self._limit_ms = limit_ms
        self._priced_width = 0
        # The parameters of the last call, by the list of its states, which never changes.
        self._columns: tuple[weakref.ref[object], Columns] | None = None
        self._lock = threading.Lock()
        self._deferred: Callable[[], DeferredProgram | None] = lambda: None

    @property
    def follows_from_history(self) -> bool:
        return True

    def for_engine(self) -> DeferredProgram:
        with self._lock:
            deferred = self._deferred()
            if deferred is None:
                deferred = DeferredProgram(self)
                self._deferred = weakref.ref(deferred)
            return deferred

    def _own_check(self) -> Callable[[Any], object]:
        return partial(check_params, self.verified.program.parameters)

    def check_width(self, vocab_size: int) -> None:
        """Check that the program can run on logits of this width. Raises InvalidArgument, LimitExceeded."""
        if self._fitting_width != vocab_size:
            self.verified.check_width(vocab_size)
            self._fitting_width = vocab_size

    def start(self, context: RequestContext, params: dict[str, Any]) -> _ProgramState:
        self.check_width(context.vocab_size)
        self._check_cost(context.vocab_size)
        values = check_params(self.verified.program.parameters, params)
        tokens = RequestTokens(context.history) if self._reads_history else None
        return _ProgramState(values, context.history, tokens)

    def _check_cost(self, vocab_size: int) -> None:
        """Check that the program may take as long as it needs here. Raises LimitExceeded."""
        if self._priced_width != vocab_size:
            try:
                check_cost(self.verified, vocab_size, self._limit_ms, priced=TORCH if has_torch() else NUMPY)
            except LimitExceeded as error:
                message = f"{error.message}, or raise the limit (--program-milliseconds)"
                raise LimitExceeded(message, processor=self.name) from None
            self._priced_width = vocab_size

    def rewind(self, state: _ProgramState) -> None:
        if state.tokens is not None:
            state.tokens.rewound()

    def rebuild(self, state: _ProgramState) -> None:
        if state.tokens is not None:
            state.tokens = RequestTokens(state.history)

    def process(self, states: Sequence[_ProgramState], logits: Any) -> Any:
        tokens = [state.tokens for state in states if state.tokens is not None]
        self.failed = _RUNNER.apply(self.verified, logits, self._parameters(states), tokens, self.seconds)
        return logits

    def _parameters(self, states: Sequence[_ProgramState]) -> Callable[[int, int], Columns]:
        """The parameters of a range of rows.

        They are reused for the same list of states, which is the same while the batch is. Lists of ids are padded, and
        may take much memory: they are arranged for a part of a call only.
        """
        if self._has_lists:
            return lambda begin, end: Columns(self.verified, [state.values for state in states[begin:end]])
        if self._columns is not None and self._columns[0]() is states:
            return self._columns[1].part
        columns = Columns(self.verified, [state.values for state in states])
        self._columns = (weakref.ref(states), columns)
        return columns.part


class DeferredProgram(Dialect):
    """The place of a program that the engine runs: the server makes no edits there.

    Args:
        program: runs the program on the server, if a later request needs that.
    """

    reads_logits = False
    row_safe = True

    def __init__(self, program: ProgramDialect) -> None:
        super().__init__(None, program.name, shipped=False)
        self.takes_long = False
        self.key = program.key
        self.engine_program = program.verified.program
        self.signature = program.signature
        self._program = program

    @property
    def on_server(self) -> Dialect:
        return self._program

    def validate(self, params: dict[str, Any], sampling_params: dict[str, Any], caller: Hashable = None) -> None:
        self._program.validate(params, sampling_params, caller)

    def start(self, context: RequestContext, params: dict[str, Any]) -> None:  # noqa: ARG002 - the engine has them
        self._program.check_width(context.vocab_size)

    def rewind(self, state: None) -> None:
        """Do nothing: the engine has the state."""

    def edit(self, states: Sequence[None]) -> EditsResult:  # noqa: ARG002
        return ()
