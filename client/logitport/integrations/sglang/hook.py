"""Processes one step of SGLang's batch in the service."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from logitport.errors import InvalidArgument, LogitportError
from logitport.integrations.common import environment
from logitport.integrations.common.admission_time import AdmissionTime, begin_together
from logitport.integrations.common.circuit_breaker import SessionHolder, is_session_error
from logitport.integrations.common.ranks import Ranks
from logitport.integrations.common.rows import rows_of
from logitport.integrations.common.statuses import all_denied
from logitport.integrations.sglang.engine_options import (
    BEAMS,
    SEVERAL_ROWS,
    engine_name,
    published_names,
    ranks_here,
    unsupported_here,
)
from logitport.integrations.sglang.requests import (
    TrackedRequest,
    TrackedRequests,
    awaits_token,
    end,
    end_ids,
    new_ids,
    request_of,
)
from logitport.ops import apply_edits

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import torch

    from logitport.client.client import Client
    from logitport.core.edits import Edits
    from logitport.integrations.common.chains import Chain
    from logitport.session import Handle, PendingStep, Session, StepResult

_log = logging.getLogger(__name__)


@dataclass
class _HookResult:
    """Result of a step, identical on every rank.

    Attributes:
        rows: rows of the logits that belong to requests with processors.
        edits: edits of these rows, if edits are all that is needed.
        in_place: whether the first rank modified its logits.
        failures: the error of each failed request, by row.
    """

    rows: list[int] = field(default_factory=list)
    edits: Edits | None = None
    in_place: bool = False
    failures: dict[int, LogitportError] = field(default_factory=dict)


class Hook:
    """Processes the logits of one scheduler, in one session that is opened on first use.

    Args:
        connect: creates the client.
        default: returns the chain of requests that name none.
        ranks: the ranks that sample with this process; read from SGLang by default.
        refusal: why this engine is unsupported; "" if it is supported. Determined from SGLang's options by default.
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
            _log.error("logitport refuses every request with processors: %s", self._refusal)
        self._ranks = ranks or (Ranks() if self._refusal else ranks_here())
        self._holder = SessionHolder(connect)

    def process(self, logits: torch.Tensor, custom_params: Sequence[Mapping[str, Any] | None]) -> None:
        """Process float[rows, vocab_size] in place, and end requests that fail. Does not raise.

        Args:
            logits: one row for each of `custom_params`.
            custom_params: each row's parameters, with SGLang's request under "__req__".
        """
        reqs: dict[int, Any] = {}
        for row, params in enumerate(custom_params):
            req = request_of(params)
            try:
                if req is not None and awaits_token(req):
                    reqs[row] = req
            except Exception as broken:  # noqa: BLE001 - an exception would end the engine
                if self._tracked.may_have_chain(cast("Mapping[str, Any]", params)):
                    end(req, _unreadable(broken))
                    _force_end(logits[row], end_ids(req))
        if not reqs:
            return
        result = self._ranks.share(
            self._process_on_leader(logits, reqs, custom_params) if self._ranks.is_leader else None
        )
        if result.edits is not None:
            with rows_of(logits, result.rows) as rows:
                apply_edits(result.edits, rows)
        elif result.in_place:
            self._ranks.share_rows(logits)
        for row, error in result.failures.items():
            end(reqs[row], error)
            _force_end(logits[row], end_ids(reqs[row]))

    def _process_on_leader(
        self, logits: torch.Tensor, reqs: Mapping[int, Any], custom_params: Sequence[Mapping[str, Any] | None]
    ) -> _HookResult:
        result = _HookResult()
        refusal = self._refusal or (SEVERAL_ROWS if len(set(map(id, reqs.values()))) < len(reqs) else "")
        active: dict[int, TrackedRequest] = {}
        for row, req in reqs.items():
            try:
                tracked = self._tracked.track(req, cast("Mapping[str, Any]", custom_params[row]))
                if tracked.chain and (why := refusal or (BEAMS if req.beam_group is not None else "")):
                    raise InvalidArgument(why)
            except Exception as error:  # noqa: BLE001 - an exception would end the engine
                result.failures[row] = error if isinstance(error, LogitportError) else _unreadable(error)
            else:
                if tracked.chain:
                    active[row] = tracked
        try:
            self._tracked.drop_ended(self._holder.session)
            if active:
                self._step(logits, reqs, active, result)
        except Exception as error:  # noqa: BLE001 - an exception would end the engine
            failure = error if isinstance(error, LogitportError) else LogitportError(f"the hook failed: {error!r}")
            _log.error("logitport: ending %d requests: %s", len(active), failure, exc_info=failure is not error)
            self._tracked.mark_session_lost(failure)
            self._holder.discard(failure)
            result.edits, result.in_place = None, True
            result.failures = dict.fromkeys(active, failure) | result.failures
        return result

    def _step(
        self, logits: torch.Tensor, reqs: Mapping[int, Any], active: Mapping[int, TrackedRequest], result: _HookResult
    ) -> None:
        """Process the rows of requests that have a chain. Raises if the session is unusable."""
        session = self._holder.ensure_open(lambda: _options(logits, reqs[next(iter(active))]))
        handles = _admit(session, active, result)
        if not handles:
            return
        result.rows = list(handles)
        sends_all = all(handle.sends_logits for handle in handles.values())
        buffer = session.logits_buffer(len(handles)) if sends_all else None  # after the last request is added
        pending = session.step({handle: new_ids(reqs[row], handle, session) for row, handle in handles.items()})
        if any(handle.reads_logits for handle in handles.values()):
            result.in_place = True
            step_result = _apply(pending, logits, result.rows, buffer)
        else:
            result.edits = pending.edits(check=False)
            step_result = cast("StepResult", pending.result)  # set, because the edits have arrived
        self._holder.record_success()
        rows = {handle: row for row, handle in handles.items()}
        result.failures |= {rows[handle]: error for handle, error in step_result.failures.items()}
        for index in step_result.all_denied_rows:
            result.failures.setdefault(result.rows[index], all_denied("SGLang"))


def _options(logits: torch.Tensor, req: Any) -> dict[str, Any]:
    """Return the options of the session: the engine, and the layout of these logits."""
    return {
        "vocab_size": logits.shape[-1],
        "dtype": logits.dtype,
        "device": str(logits.device),
        **published_names(),
        "eos_token_ids": sorted(end_ids(req)),
        "engine": engine_name(),
        "reconnect_seconds": environment.reconnect_seconds(),
    }


def _admit(session: Session, active: Mapping[int, TrackedRequest], result: _HookResult) -> dict[int, Handle]:
    """Return the handles of the requests. New ones are admitted at the same time, for a bounded time.

    Raises if the session is unusable.
    """
    result.failures |= {row: tracked.lost for row, tracked in active.items() if tracked.lost is not None}
    new = {row: it.request() for row, it in active.items() if it.handle is None and it.lost is None}
    begun, errors = begin_together(session, new)
    for row, error in errors.items():
        if not isinstance(error, LogitportError):
            raise error
        result.failures[row] = error
    limited = AdmissionTime(session)
    for row, pending in begun.items():
        try:
            active[row].handle = limited.result(pending)
        except LogitportError as error:
            if is_session_error(error):
                raise
            result.failures[row] = error
    return {row: it.handle for row, it in active.items() if it.handle is not None and row not in result.failures}


def _apply(pending: PendingStep, logits: torch.Tensor, rows: Sequence[int], buffer: torch.Tensor | None) -> StepResult:
    """Finish a step on these rows of the logits, in place; through the buffer, if there is one."""
    all_rows = len(rows) == len(logits)
    selected = logits if all_rows else logits[rows]
    if buffer is not None:
        selected = buffer.copy_(selected)
    step_result = pending.apply(selected, check=False)
    if all_rows and selected is not logits:
        logits.copy_(selected)
    elif not all_rows:
        logits[rows] = selected
    return step_result


def _force_end(row: torch.Tensor, ending: Collection[int]) -> None:
    """Leave only the ids that end the request; any id if none is known."""
    row[:] = -float("inf") if ending else 0.0
    row[list(ending)] = 0.0


def _unreadable(error: Exception) -> LogitportError:
    """Make the error for a request of a version of SGLang whose requests have other attributes."""
    return LogitportError(f"the request of this SGLang cannot be read ({error!r}); 0.5.23 is known to work")
