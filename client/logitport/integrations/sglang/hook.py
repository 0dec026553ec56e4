"""One step of SGLang's batch: what its requests ask for, done by the service."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from logitport.errors import InternalError, InvalidArgument, LogitportError, ProcessorFailed, SessionClosed
from logitport.integrations.common import environment
from logitport.integrations.common.circuit_breaker import SESSION_ERRORS
from logitport.integrations.common.ranks import Ranks
from logitport.integrations.common.session_holder import RECONNECT_SECONDS, SessionHolder
from logitport.integrations.sglang.engine import (
    BEAMS,
    SEVERAL_ROWS,
    engine_name,
    model_name,
    ranks_here,
    tokenizer_id,
    unsupported_here,
)
from logitport.integrations.sglang.requests import awaits_token, end, request_of
from logitport.integrations.sglang.tracked_requests import TrackedRequest, TrackedRequests, new_ids
from logitport.ops import apply_edits

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import torch

    from logitport.client import Client
    from logitport.core.edits import Edits
    from logitport.integrations.common.history_batch import Chain
    from logitport.session.frames import Handle
    from logitport.session.session import Session
    from logitport.session.step import PendingStep, StepResult

_log = logging.getLogger(__name__)


@dataclass
class _HookResult:
    """What came of a step; the same on every rank.

    Attributes:
        rows: of the logits, those of requests with processors.
        edits: of these rows, if that is all that is to be done to them.
        in_place: whether the logits were processed on the first rank.
        failures: the error of each request that failed, by its row.
    """

    rows: Sequence[int] = ()
    edits: Edits | None = None
    in_place: bool = False
    failures: dict[int, LogitportError] = field(default_factory=dict)


class Hook:
    """Follows the requests of one scheduler, in one session that is opened when a request needs it.

    Args:
        connect: makes the client.
        default: what requests get that ask for nothing.
        ranks: those that sample with this process; by default as SGLang says.
        refusal: why logitport cannot be right on this engine; "" if it can. By default it is found out.
    """

    def __init__(
        self,
        connect: Callable[[], Client] = environment.client,
        default: Callable[[], Chain] = environment.default_chain,
        ranks: Ranks | None = None,
        refusal: str | None = None,
    ) -> None:
        self._refusal = unsupported_here() if refusal is None else refusal
        try:
            self._tracked = TrackedRequests(default())
        except InvalidArgument as error:
            self._tracked, self._refusal = TrackedRequests(()), str(error)
        if self._refusal:
            _log.error("logitport refuses every request: %s", self._refusal)
        self._ranks = ranks or (Ranks() if self._refusal else ranks_here())
        self._holder = SessionHolder(connect)

    def process(self, logits: torch.Tensor, custom_params: Sequence[Mapping[str, Any] | None]) -> None:
        """Process float[rows, vocab_size] in place; a request that fails is ended. Does not raise.

        Args:
            logits: a row for each of `custom_params`.
            custom_params: what each row's request asks, and SGLang's request under "__req__".
        """
        reqs = {
            row: req
            for row, params in enumerate(custom_params)
            if (req := request_of(params)) is not None and awaits_token(req)
        }
        if not reqs:
            return
        outcome = self._ranks.share(self._ask(logits, reqs, custom_params) if self._ranks.leads else None)
        if outcome.edits is not None:
            _edit(logits, outcome.rows, outcome.edits)
        elif outcome.in_place:
            self._ranks.share_rows(logits)
        for row, error in outcome.failures.items():
            end(reqs[row], error)
            _force(logits[row], reqs[row].eos_token_ids)

    def _ask(
        self, logits: torch.Tensor, reqs: Mapping[int, Any], custom_params: Sequence[Mapping[str, Any] | None]
    ) -> _HookResult:
        outcome = _HookResult()
        refusal = self._refusal or (SEVERAL_ROWS if len(set(map(id, reqs.values()))) < len(reqs) else "")
        follows: dict[int, TrackedRequest] = {}
        for row, req in reqs.items():
            try:
                follow = self._tracked.follow(req, cast("Mapping[str, Any]", custom_params[row]))
                if follow.chain and (why := refusal or (BEAMS if req.beam_group is not None else "")):
                    raise InvalidArgument(why)
            except InvalidArgument as error:
                outcome.failures[row] = error
            else:
                if follow.chain:
                    follows[row] = follow
        try:
            self._tracked.drop_ended(self._holder.session)
            if follows:
                self._step(logits, reqs, follows, outcome)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the engine
            failure = error if isinstance(error, LogitportError) else InternalError(f"the hook failed: {error!r}")
            _log.error("logitport: %d requests end: %s", len(follows), failure, exc_info=failure is not error)
            self._tracked.forget_session(failure)
            self._holder.lose(failure)
            outcome.edits, outcome.in_place = None, True
            outcome.failures = dict.fromkeys(follows, failure) | outcome.failures
        return outcome

    def _step(
        self, logits: torch.Tensor, reqs: Mapping[int, Any], follows: Mapping[int, TrackedRequest], outcome: _HookResult
    ) -> None:
        """Process the rows of requests that have a chain. Raises if the session is of no use any more."""
        session = self._holder.opened(lambda: _options(logits, reqs[next(iter(follows))]))
        handles = {}
        for row, follow in follows.items():
            try:
                handles[row] = follow.admitted(session)
            except SESSION_ERRORS:
                raise
            except LogitportError as error:
                outcome.failures[row] = error
        if not handles:
            return
        outcome.rows = list(handles)
        buffer = _buffer(session, handles.values())
        pending = session.step({handle: new_ids(reqs[row], handle, session) for row, handle in handles.items()})
        if any(handle.reads_logits for handle in handles.values()):
            outcome.in_place = True
            result = _apply(pending, logits, outcome.rows, buffer)
        else:
            outcome.edits = pending.edits(check=False)
            result = cast("StepResult", pending.result)  # there are edits, so the server has answered
        self._holder.answered()
        rows = {handle: row for row, handle in handles.items()}
        outcome.failures |= {rows[handle]: error for handle, error in result.failures.items()}
        for place in result.all_denied_rows:
            outcome.failures.setdefault(outcome.rows[place], ProcessorFailed(_ALL_DENIED))

    def close(self) -> None:
        """End the session; another is opened when a request needs it."""
        if self._holder.session is not None:
            self._tracked.forget_session(SessionClosed("the hook was closed"))
            self._holder.close()


_ALL_DENIED = "its processors deny every id, and SGLang would then sample any of them"


def _options(logits: torch.Tensor, req: Any) -> dict[str, Any]:
    """What a session is told of the engine that has these logits and this request."""
    return {
        "vocab_size": logits.shape[-1],
        "dtype": logits.dtype,
        "device": str(logits.device),
        "model_name": model_name(),
        "tokenizer_id": tokenizer_id(),
        "eos_token_ids": sorted(req.eos_token_ids or ()),
        "engine": engine_name(),
        "reconnect_seconds": RECONNECT_SECONDS,
    }


def _buffer(session: Session, handles: Collection[Handle]) -> torch.Tensor | None:
    """Memory that the server reaches, for logits all of which are read; asked for after the last request is added."""
    if all(handle.reads_logits for handle in handles):
        return cast("torch.Tensor", session.logits_buffer(len(handles)))
    return None


def _apply(pending: PendingStep, logits: torch.Tensor, rows: Sequence[int], buffer: torch.Tensor | None) -> StepResult:
    """Finish a step on these rows of the logits, in place; in the buffer, if there is one."""
    every = len(rows) == len(logits)
    picked = logits if every else logits[rows]
    if buffer is not None:
        picked = buffer.copy_(picked)
    result = pending.apply(picked, check=False)
    if every and picked is not logits:
        logits.copy_(picked)
    elif not every:
        logits[rows] = picked
    return result


def _edit(logits: torch.Tensor, rows: Sequence[int], edits: Edits) -> None:
    """Apply edits to these rows of the logits, in place."""
    if len(rows) == len(logits):
        apply_edits(edits, logits)
        return
    picked = logits[rows]
    apply_edits(edits, picked)
    logits[rows] = picked


def _force(row: torch.Tensor, token_ids: Collection[int] | None) -> None:
    """Leave a request that ends nothing to sample but what ends it; anything, if that is not known."""
    row.fill_(-float("inf") if token_ids else 0.0)
    if token_ids:
        row[list(token_ids)] = 0.0
