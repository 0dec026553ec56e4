"""An engine's session: its frames, transports, requests and logits memory. `Client.session` opens one."""

from typing import TYPE_CHECKING

from logitport.system.lazy import names_of

if TYPE_CHECKING:
    from logitport.session.handle import Handle
    from logitport.session.requests.pending_request import PendingRequest
    from logitport.session.session import Session
    from logitport.session.steps.pending_step import PendingStep
    from logitport.session.steps.step_reply import StepResult

__all__ = ["Handle", "PendingRequest", "PendingStep", "Session", "StepResult"]

__getattr__ = names_of(
    __name__,
    {
        "logitport.session.handle": "Handle",
        "logitport.session.requests.pending_request": "PendingRequest",
        "logitport.session.session": "Session",
        "logitport.session.steps.pending_step": "PendingStep",
        "logitport.session.steps.step_reply": "StepResult",
    },
)
