"""Processors of a chain with parameters that they accept, shared by the requests of one frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logitport_builtins import BUILTINS

if TYPE_CHECKING:
    from logitport_proto import common_pb2
    from logitport_session.dialects import Dialect


@dataclass(slots=True)
class CheckedCall:
    """A processor of a chain, and parameters that it accepts.

    Attributes:
        label: the name or digest in the request.
        params_bytes: their size as JSON.
        state: of the last request that was started with it; None before.
    """

    dialect: Dialect
    label: str
    params: dict[str, Any]
    params_bytes: int
    state: Any = None


class CheckedCalls:
    """The checked calls of built-ins in one frame: its requests often have the same chain.

    Lives as long as the admission of the frame, so that nothing becomes outdated. Holds only logits-free processors of
    logitport itself, which answer at once, cannot be deleted or quarantined, and do not change their parameters.
    """

    def __init__(self) -> None:
        self._by_call: dict[tuple[int, str, str, bytes], CheckedCall] = {}

    def find(self, call: common_pb2.ProcessorCall, tenant: str, place: int) -> CheckedCall | None:
        """Return the checked call if an earlier request of this tenant has the same call at this place."""
        return self._by_call.get((place, tenant, call.processor.builtin, call.params))

    def keep(self, call: common_pb2.ProcessorCall, tenant: str, place: int, checked: CheckedCall) -> None:
        """Keep a checked call for later requests if it may be shared."""
        dialect, name = checked.dialect, call.processor.builtin
        # An operator may have installed another processor under the name of a built-in.
        is_own = bool(name) and type(dialect.processor) is BUILTINS.get(name)
        if is_own and not (dialect.reads_logits or dialect.takes_long or dialect.checks_sampling_params):
            self._by_call[place, tenant, name, call.params] = checked
