"""SGLang's dialect: `CustomLogitProcessor`, as SGLang 0.5.23 calls it."""

from __future__ import annotations

from array import array
from copy import deepcopy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from logitport.errors import StateLost
from logitport_server.dialects.base import Dialect, RequestContext

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from logitport.core.history import History
    from logitport.processors import CustomLogitProcessor

_REQ = {"rid", "origin_input_ids", "output_ids"}


class _State:
    """One dict for the request's whole life, where processors keep state; its `__req__` stands for SGLang's `Req`."""

    __slots__ = ("custom_params", "given", "history", "req")

    def __init__(self, context: RequestContext, params: dict[str, Any]) -> None:
        self.history: History = context.history
        self.req = SimpleNamespace(
            rid=context.request_id,
            origin_input_ids=array("q", self.history.prompt_token_ids.tolist()),
            output_ids=array("q", self.history.output_token_ids.tolist()),
        )
        self.given = params
        self.custom_params = {**deepcopy(params), "__req__": self.req}

    def kept_something(self) -> bool:
        """Whether a processor has changed the dict, or left something on its `__req__`."""
        if self.custom_params.get("__req__") is not self.req or vars(self.req).keys() != _REQ:
            return True
        try:
            return {**self.given, "__req__": self.req} != self.custom_params
        except Exception:  # noqa: BLE001 - tensors, for example, do not compare to one bool
            return True


def _copy_of_attributes(processor: object) -> dict[str, Any] | None:
    """The instance's attributes, as deep as they go; None if that cannot be had."""
    try:
        return deepcopy(getattr(processor, "__dict__", {}))
    except Exception:  # noqa: BLE001 - somebody else's code may raise anything
        return None


class SGLangDialect(Dialect):
    """Logits and one dict a row in, logits out."""

    reads_logits = True
    processor: CustomLogitProcessor

    def __init__(self, processor: Any, name: str, *, shipped: bool) -> None:
        super().__init__(processor, name, shipped=shipped)
        self._attributes_at_first = _copy_of_attributes(self.processor)

    def start(self, context: RequestContext, params: dict[str, Any]) -> _State:
        return _State(context, params)

    def token_callback(self, state: _State) -> Callable[[int], object]:
        output_ids: array[int] = state.req.output_ids
        return output_ids.append

    def rewind(self, state: _State) -> None:
        self.check_rebuildable(state)
        state.req.output_ids[:] = array("q", state.history.output_token_ids.tolist())

    def rebuild(self, state: _State) -> None:
        self.rewind(state)

    def check_rebuildable(self, state: _State) -> None:
        if state.kept_something() or not self._is_as_at_first():
            raise StateLost(
                f"request {state.req.rid!r}: its history was changed, and {self.name} keeps state of its own that "
                "cannot follow; remove the request and add it again"
            )

    def _is_as_at_first(self) -> bool:
        """Whether no attribute of the instance has changed since its construction."""
        try:
            return bool(getattr(self.processor, "__dict__", {}) == self._attributes_at_first)
        except Exception:  # noqa: BLE001 - as above
            return False

    def process(self, states: Sequence[_State], logits: torch.Tensor) -> torch.Tensor:
        return self.processor(logits, [state.custom_params for state in states])
