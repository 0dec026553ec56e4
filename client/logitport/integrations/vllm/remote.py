"""An engine's requests at the service. Nothing here raises: whatever happens, it ends requests, never the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from logitport.errors import ProcessorFailed
from logitport.integrations.common import environment
from logitport.integrations.common.circuit_breaker import SESSION_ERRORS
from logitport.integrations.common.session_holder import RECONNECT_SECONDS, SessionHolder
from logitport.integrations.vllm.failures import record
from logitport.ops import apply_edits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from logitport.core.edits import Edits
    from logitport.integrations.common.ranks import Ranks
    from logitport.integrations.vllm.engine import Engine
    from logitport.request import Request
    from logitport.session.frames import Handle
    from logitport.session.step import PendingStep


@dataclass(eq=False)
class RemoteRequest:
    """One request of the engine that asks for processors.

    Attributes:
        request_id: vLLM's name for it, or "".
        prompt_length: ids of its prompt.
        ending_id: the id that it gets once it has failed.
        handle: at the service; None on ranks that do not ask, and before it was admitted.
        error: why it failed, on the rank that asks.
        failed: whether every rank knows that it failed.
    """

    request_id: str
    prompt_length: int
    ending_id: int
    handle: Handle | None = None
    error: Exception | None = None
    failed: bool = False

    @property
    def told(self) -> int:
        """How many output ids the service has been told."""
        return 0 if self.handle is None else len(self.handle.history) - self.prompt_length


@dataclass
class Step:
    """Requests of one step, and which rows of the engine's logits are theirs.

    Attributes:
        new_ids: for each request the ids that joined it; known to the rank that asks.
        rows: whose row each is, and how many draft tokens it has seen.
        places: where each of them is in the engine's logits.
        drafts: draft tokens, of those requests that have any.
    """

    new_ids: dict[RemoteRequest, Sequence[int]] = field(default_factory=dict)
    rows: list[tuple[RemoteRequest, int]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    drafts: dict[RemoteRequest, Sequence[int]] = field(default_factory=dict)

    def add(self, request: RemoteRequest, new_ids: Sequence[int], place: int) -> None:
        """A request with one row."""
        self.new_ids[request] = new_ids
        self.rows.append((request, 0))
        self.places.append(place)


@dataclass(frozen=True)
class _StepDecision:
    """What every rank does to the logits.

    Attributes:
        failed: which of the step's requests have failed, by their order.
        places: the rows that were processed.
        edits: what is to be done to them; None if they come processed.
    """

    failed: list[int]
    places: list[int]
    edits: Edits | None


class RemoteBatch:
    """The requests that one engine has at the service, in a session that is opened at the first, and again when lost.

    Args:
        engine: what the session is told.
        ranks: who samples the same rows; the leader alone has a session.
    """

    def __init__(self, engine: Engine, ranks: Ranks) -> None:
        self._engine = engine
        self._ranks = ranks
        self._holder = SessionHolder(environment.client)
        self._live: set[RemoteRequest] = set()
        self._begun: tuple[Step, list[int], PendingStep | None] | None = None

    def admit(self, request: RemoteRequest, asked: Callable[[], Request]) -> None:
        """Have the service admit what is asked; if that is refused, it fails in its first step."""
        if not self._ranks.leads:
            return
        self._live.add(request)
        try:
            request.handle = self._holder.opened(self._options).add(asked())
        except SESSION_ERRORS as error:
            self.fail(request, error)
            self._lose(error)
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self.fail(request, error)

    def release(self, request: RemoteRequest) -> None:
        """It has ended, or left for good."""
        self._live.discard(request)
        handle, request.handle = request.handle, None
        if handle is None or self._holder.session is None:
            return
        try:
            self._holder.session.remove(handle)
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self._lose(error)

    def rewind(self, request: RemoteRequest, outputs: int) -> None:
        """Some of its ids were taken back: `outputs` of them are left."""
        if self._holder.session is None or request.handle is None:
            return
        try:
            self._holder.session.rewind(request.handle, request.prompt_length + outputs)
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self.fail(request, error)

    def fail(self, request: RemoteRequest, error: Exception) -> None:
        """It gets its ending id from now on. Once failed it stays so, and the first reason is the one that counts."""
        if request.error is None:
            request.error = error
            record(
                error,
                request_id=request.request_id,
                prompt_length=request.prompt_length,
                output_length=request.told,
                forced_token_id=request.ending_id,
            )

    def begin(self, step: Step) -> None:
        """Tell what was sampled, and return at once: the service works while the forward pass runs."""
        if not self._ranks.leads:
            return
        kept = [place for place, (request, _) in enumerate(step.rows) if request.error is None]
        self._begun = (step, kept, None)
        try:
            if kept and self._holder.session is not None:
                self._begun = (step, kept, self._holder.session.step(**_of_session(step, kept)))
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self._lose(error)

    def finish(self, step: Step, logits: torch.Tensor) -> None:
        """Process the step's rows of float[rows, vocab_size], in place."""
        if not all(request.failed for request in step.new_ids):
            decision = self._ranks.share(self._decision(step, logits) if self._ranks.leads else None)
            if not self._ranks.alone and decision.places:
                self._follow(decision, logits)
            requests = list(step.new_ids)
            for place in decision.failed:
                requests[place].failed = True
        force(logits, [(place, request) for place, (request, _) in zip(step.places, step.rows) if request.failed])  # noqa: B905

    def _decision(self, step: Step, logits: torch.Tensor) -> _StepDecision:
        if self._begun is None or self._begun[0] is not step:
            self.begin(step)
        _, kept, pending = self._begun or (step, [], None)
        self._begun = None
        places = [step.places[row] for row in kept]
        edits = None
        try:
            if pending is not None:
                edits = self._settle(pending, step, places, logits)
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self._lose(error)
        failed = [place for place, request in enumerate(step.new_ids) if request.error is not None]
        return _StepDecision(failed, places if pending is not None and self._holder.session is not None else [], edits)

    def _settle(self, pending: PendingStep, step: Step, places: list[int], logits: torch.Tensor) -> Edits | None:
        """Process the leader's logits; the edits, if these are all that was done and others have to do it too."""
        edits = None
        reads = any(request.handle is not None and request.handle.reads_logits for request in step.new_ids)
        if self._ranks.alone or reads:
            rows, inside = _rows(logits, places)
            result = pending.apply(rows, check=False)
            if not inside:
                logits[places] = rows
        else:
            edits = pending.edits(check=False)
            result = pending.result  # type: ignore[assignment] # there is one once there are edits
        self._holder.answered()
        if result.failures:
            by_handle = {request.handle: request for request in step.new_ids}
            for handle, error in result.failures.items():
                self.fail(by_handle[handle], error)
        if result.all_denied_rows:
            at = dict(zip(step.places, step.rows))  # noqa: B905
            for row in result.all_denied_rows:
                request, offset = at[places[row]]
                if not offset:  # what a draft token leads to may never be sampled from
                    self.fail(request, ProcessorFailed(_ALL_DENIED))
        return edits

    def _follow(self, decision: _StepDecision, logits: torch.Tensor) -> None:
        """Do what the leader did, or have it done."""
        rows, inside = _rows(logits, decision.places)
        if decision.edits is not None:
            apply_edits(decision.edits, rows)
        else:
            self._ranks.share_rows(rows)
        if not inside:
            logits[decision.places] = rows

    def _options(self) -> dict[str, Any]:
        """What a session is told."""
        return {
            "vocab_size": self._engine.vocab_size,
            "dtype": torch.float32,
            "device": self._engine.device,
            "model_name": self._engine.model,
            "tokenizer_id": self._engine.tokenizer,
            "eos_token_ids": self._engine.eos_token_ids,
            "max_draft_tokens": self._engine.max_draft_tokens,
            "engine": self._engine.version,
            "reconnect_seconds": RECONNECT_SECONDS,
        }

    def _lose(self, error: Exception) -> None:
        """The session is of no use any more, and all its requests with it."""
        self.give_up(self._live, error)
        self._holder.lose(error)

    def give_up(self, requests: Iterable[RemoteRequest], error: Exception) -> None:
        """All these fail, of the same."""
        for request in requests:
            self.fail(request, error)
            request.handle = None


_ALL_DENIED = "its processors deny every id, and vLLM would then sample any of them"


def force(logits: torch.Tensor, failed: Sequence[tuple[int, RemoteRequest]]) -> None:
    """Leave each of these rows of the logits, [rows, vocab_size], its request's ending id alone."""
    if failed:
        rows = [row for row, _ in failed]
        logits[rows] = float("-inf")
        logits[rows, [request.ending_id for _, request in failed]] = 0.0


def _of_session(step: Step, kept: list[int]) -> dict[str, Any]:
    """The arguments of `Session.step` for those of its rows that go there."""
    new_ids = {request.handle: ids for request, ids in step.new_ids.items() if request.error is None}
    rows = [step.rows[place] for place in kept]
    drafts = {request.handle: ids for request, ids in step.drafts.items() if request.error is None}
    return {
        "new_token_ids": new_ids,
        "rows": [(request.handle, offset) for request, offset in rows] if drafts else None,
        "drafts": drafts,
    }


def _rows(logits: torch.Tensor, places: list[int]) -> tuple[torch.Tensor, bool]:
    """These rows, and whether they are still inside of the logits."""
    first, last = places[0], places[-1]
    if places == list(range(first, last + 1)):
        return logits[first : last + 1], True
    return logits[places], False
