"""vLLM's requests in a session: failures and reports reach the front end, which answers the clients."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from logitport.integrations.common import environment
from logitport.integrations.common.circuit_breaker import SessionHolder
from logitport.integrations.common.engine_batch import EngineBatch
from logitport.integrations.common.engine_step import EngineStep, TrackedRequest
from logitport.integrations.vllm import response_reports
from logitport.integrations.vllm.failed_requests import record
from logitport.integrations.vllm.front_end_sockets import FrontEndSender

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import torch

    from logitport.errors import LogitportError
    from logitport.integrations.common.ranks import Ranks
    from logitport.session import StepResult


@dataclass(eq=False)
class RemoteRequest(TrackedRequest):
    """One request of vLLM that has processors.

    Attributes:
        request_id: vLLM's name for it, or "".
        prompt_length: number of prompt ids.
    """

    request_id: str
    prompt_length: int

    @property
    def known_outputs(self) -> int:
        """Return how many output ids the session has."""
        return 0 if self.handle is None else len(self.handle.history) - self.prompt_length


class RemoteBatch(EngineBatch):
    """The requests of a runner of vLLM.

    Args:
        options: of the session.
        ranks: the processes that sample the same rows; only the leader has a session.
        instance_id: vLLM's name of the engine, the same in all of its processes; "" if unknown.
    """

    def __init__(self, options: Mapping[str, Any], ranks: Ranks, instance_id: str = "") -> None:
        super().__init__(SessionHolder(environment.client), lambda: options, ranks, "vLLM")
        self._sender = FrontEndSender(instance_id)
        self._reports = environment.reports()

    def finish(self, step: EngineStep, logits: torch.Tensor) -> Collection[TrackedRequest]:
        failed = super().finish(step, logits)
        self._sender.flush()
        return failed

    def on_failed(self, request: TrackedRequest, error: LogitportError) -> None:
        """Have vLLM answer the request with the error."""
        known = cast("RemoteRequest", request)
        failure = record(
            error,
            request_id=known.request_id,
            output_length=known.known_outputs,
            forced_token_id=known.ending_id or 0,
        )
        if failure.request_id:
            self._sender.add({"failed": asdict(failure)})

    def on_admitted(self, request: RemoteRequest) -> None:
        if self._reports and request.request_id and request.handle is not None:
            with_params = self._reports == "full"
            self._sender.add(response_reports.began(request.request_id, request.handle, with_params=with_params))

    def on_applied(self, step: EngineStep, result: StepResult) -> None:  # noqa: ARG002 - fixed interface
        if not self._reports or (session := self._holder.session) is None or not (changes := session.report_changes):
            return
        for request in step.requests:
            if request.handle in changes and request.request_id:
                position, events = changes[request.handle]
                self._sender.add(response_reports.changed(request.request_id, position, events))
