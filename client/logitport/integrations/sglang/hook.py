"""Processes one step of SGLang's batch in the session."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any, cast

from logitport.errors import InvalidArgument, LogitportError
from logitport.integrations.common import environment
from logitport.integrations.common.chains import chain_of
from logitport.integrations.common.circuit_breaker import SessionHolder
from logitport.integrations.common.engine_step import EngineStep, OutputLists, leave_only
from logitport.integrations.common.ranks import Ranks
from logitport.integrations.sglang.draft_trees import NO_DRAFTS
from logitport.integrations.sglang.engine_options import (
    BEAMS,
    SEVERAL_ROWS,
    engine_name,
    is_disaggregated,
    max_draft_tokens,
    published_names,
    ranks_here,
    unsupported_here,
)
from logitport.integrations.sglang.requests import (
    SchedulerBatch,
    SchedulerRequest,
    awaits_token,
    check_custom_params,
    end,
    end_ids,
    ending_id,
    new_ids,
    request_of,
    tenant_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from logitport.client.client import Client
    from logitport.integrations.common.chains import Chain
    from logitport.integrations.sglang.draft_trees import DraftTree

_log = logging.getLogger(__name__)


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
        self._default: Chain = ()
        try:
            self._default = default()
        except InvalidArgument as error:
            self._refusal = str(error)
        if self._refusal:
            _log.error("logitport refuses every request with processors: %s", self._refusal)
        ranks = ranks or (Ranks() if self._refusal else ranks_here())
        self._holder = SessionHolder(connect)
        self._options: dict[str, Any] = {}
        self._batch = SchedulerBatch(self._holder, lambda: self._options, ranks, "SGLang")
        # Requests that have started and not ended, by the identity of SGLang's.
        self._tracked: dict[int, SchedulerRequest] = {}
        # The last step, and the parameters of its rows. Empty if a row may join the next step.
        self._step = EngineStep()
        self._params: Sequence[Any] = []
        # SGLang's requests of that step, and their output ids.
        self._reqs: list[weakref.ref[Any]] = []
        self._outputs = OutputLists()

    def process(
        self,
        logits: torch.Tensor,
        custom_params: Sequence[Mapping[str, Any] | None],
        trees: Mapping[int, DraftTree] | None = None,
    ) -> dict[int, Any]:
        """Process float[rows, vocab_size] in place, and end requests that fail. Does not raise.

        Args:
            logits: one row for each of `custom_params`.
            custom_params: each row's parameters, with SGLang's request under "__req__"; None for rows after a draft.
            trees: the drafts of each request, by its first row, which its other rows follow.

        Returns:
            The rows after a draft in which processors deny every id, with SGLang's requests. Such a row ends its
            request only if SGLang accepts the draft. Only the id that ends the request is left in it.
        """
        if trees is not None or not self._repeat_step(custom_params):
            self._step = self._build_step(logits, custom_params, trees or {})
        step = self._step
        if not step.requests:
            self._batch.send_changes()
            return {}
        for request in self._batch.finish(step, logits):
            end(cast("SchedulerRequest", request).req(), cast("LogitportError", request.error))
        return {row: request.req() for row, request in step.denied.items()} if step.denied else {}

    def may_have_chain(self, custom_params: Mapping[str, Any]) -> bool:
        """Return whether a request with these parameters has processors, or parameters that are wrong."""
        try:
            return bool(chain_of(custom_params, self._default))
        except InvalidArgument:
            return True

    def _repeat_step(self, custom_params: Sequence[Mapping[str, Any] | None]) -> bool:
        """Set the new ids of the last step again, if only one id has joined each request. Returns whether it did."""
        try:
            if not self._batch.is_steady(self._step) or [*custom_params] != self._params:
                return False
            newest = self._outputs.next_ids()
            if not newest:
                return False
            for find_req, output_ids in zip(self._reqs, self._outputs.lists):  # noqa: B905
                req: Any = find_req()
                if req.output_ids is not output_ids:  # a retracted request may begin again, with another list
                    return False
                if req.to_finish or req.finished_reason is not None or req.inflight_middle_chunks > 0:
                    return False
            self._step.repeat(newest)
        except Exception:  # noqa: BLE001 - a request that was dropped, or of another version: `_build_step` ends it
            return False
        return True

    def _build_step(
        self,
        logits: torch.Tensor,
        custom_params: Sequence[Mapping[str, Any] | None],
        trees: Mapping[int, DraftTree],
    ) -> EngineStep:
        """Build the step from the rows of requests with processors that await a token."""
        self._drop_ended()
        rows, is_whole = self._rows(logits, custom_params, trees)
        step, outputs = EngineStep(), []
        for request, indices in rows.items():
            if not request.chain and request.refusal is None:
                continue
            ids: list[int] = []
            try:
                req: Any = request.req()
                self._check(request, req, indices)
                if request.handle is None and request.error is None:
                    if self._holder.session is None:
                        self._options = _options(logits, req)
                        self._batch.is_disaggregated = is_disaggregated()
                    self._batch.admit(request, request.to_admit)
                ids = new_ids(req, request, self._batch)
                outputs.append(req.output_ids)
            except Exception as error:  # noqa: BLE001 - an exception would end the engine
                self._batch.fail(request, error if isinstance(error, LogitportError) else _unreadable(error))
            tree = trees.get(indices[0], NO_DRAFTS)
            step.add(request, ids, *(index + node for index in indices for node in tree.nodes))
            if tree.drafts:
                step.drafts[request] = tree.drafts
                if not tree.is_chain:
                    step.draft_parents[request] = tree.parents
        self._params = list(custom_params) if is_whole and not trees else []
        self._reqs, self._outputs = [request.req for request in step.requests], OutputLists(outputs)
        return step

    def _check(self, request: SchedulerRequest, req: Any, rows: list[int]) -> None:
        """Raise why the request cannot be processed."""
        if request.refusal is not None:
            raise request.refusal
        refusal = self._refusal or (SEVERAL_ROWS if len(rows) > 1 else "")
        if refusal or req.beam_group is not None:
            raise InvalidArgument(refusal or BEAMS)

    def _rows(
        self,
        logits: torch.Tensor,
        custom_params: Sequence[Mapping[str, Any] | None],
        trees: Mapping[int, DraftTree],
    ) -> tuple[dict[SchedulerRequest, list[int]], bool]:
        """Return the first rows of each request that awaits a token, and whether those are all requests of the batch.

        A request has several such rows only if SGLang passes drafts in another way.
        """
        rows: dict[SchedulerRequest, list[int]] = {}
        is_whole = True
        for row, params in enumerate(custom_params):
            req = request_of(params)
            if req is None:
                continue
            try:
                if awaits_token(req):
                    rows.setdefault(self._track(req, cast("Mapping[str, Any]", params)), []).append(row)
                else:
                    is_whole = False
            except Exception as broken:  # noqa: BLE001 - an exception would end the engine
                is_whole = False
                if self.may_have_chain(cast("Mapping[str, Any]", params)):
                    end(req, _unreadable(broken))
                    leave_only(logits, [row + node for node in trees.get(row, NO_DRAFTS).nodes], ending_id(req))
        return rows, is_whole

    def _track(self, req: Any, custom_params: Mapping[str, Any]) -> SchedulerRequest:
        """Return the tracked request, reading its chain at the first call."""
        request = self._tracked.get(id(req))
        if request is None or request.req() is not req:
            request = self._tracked[id(req)] = SchedulerRequest(weakref.ref(req), ending_id=ending_id(req))
            try:
                check_custom_params(custom_params)
                request.chain, request.tenant = chain_of(custom_params, self._default), tenant_in(custom_params)
            except Exception as error:  # noqa: BLE001 - an exception would end the engine
                request.refusal = error
        return request

    def _drop_ended(self) -> None:
        """Release requests that have ended, or that SGLang dropped."""
        for key, request in list(self._tracked.items()):
            req = request.req()
            if req is None or req.finished():
                self._batch.release(self._tracked.pop(key))


def _options(logits: torch.Tensor, req: Any) -> dict[str, Any]:
    """Return the options of the session: the engine, and the layout of these logits."""
    return {
        "vocab_size": logits.shape[-1],
        "dtype": logits.dtype,
        "device": str(logits.device),
        "max_draft_tokens": max_draft_tokens(),
        **published_names(),
        "eos_token_ids": sorted(end_ids(req)),
        "engine": engine_name(),
        "reconnect_seconds": environment.reconnect_seconds(),
    }


def _unreadable(error: Exception) -> LogitportError:
    """Make the error for a request of a version of SGLang whose requests have other attributes."""
    return LogitportError(f"the request of this SGLang cannot be read ({error!r}); 0.5.23 is known to work")
