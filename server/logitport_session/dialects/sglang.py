"""SGLang's dialect: `CustomLogitProcessor`, as SGLang 0.5.23 calls it."""

from __future__ import annotations

from array import array
from contextlib import suppress
from copy import deepcopy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from logitport.errors import StateLost
from logitport.processors import CustomLogitProcessor
from logitport.tokenizers import operator_tokenizer
from logitport_session.dialects.base import Dialect, RequestContext, is_method

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from logitport.core.history import History
    from logitport.tokenizers import Tokenizer

_REQ = {"rid", "origin_input_ids", "output_ids"}


class _Req(SimpleNamespace):
    """The attributes of SGLang's `Req` that processors may read."""

    __slots__ = ("_tokenizer_id",)

    def __init__(self, tokenizer_id: str, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._tokenizer_id = tokenizer_id

    @property
    def tokenizer(self) -> Tokenizer:
        """The operator's tokenizer. Raises InvalidArgument if the session's is not configured."""
        return operator_tokenizer(self._tokenizer_id)


class _SglangState:
    """State of a request: one dict for its whole life, where processors keep state.

    The dict's `__req__` is a `_Req`.
    """

    __slots__ = ("custom_params", "given", "history", "req")

    def __init__(self, context: RequestContext, params: dict[str, Any]) -> None:
        self.history: History = context.history
        self.req = _Req(
            context.tokenizer_id,
            rid=context.request_id,
            origin_input_ids=array("q", self.history.prompt_token_ids.tolist()),
            output_ids=array("q", self.history.output_token_ids.tolist()),
        )
        self.given = params
        self.custom_params = {**deepcopy(params), "__req__": self.req}

    def was_changed(self) -> bool:
        """Whether a processor has changed the dict, or added an attribute to its `__req__`."""
        if self.custom_params.get("__req__") is not self.req or vars(self.req).keys() != _REQ:
            return True
        try:
            return {**self.given, "__req__": self.req} != self.custom_params
        except Exception:  # noqa: BLE001 - tensors, for example, do not compare to one bool
            return True


class SGLangDialect(Dialect):
    """Calls a processor with logits and one dict per row; it returns logits."""

    reusable = True
    reads_logits = True
    takes_rows = True
    processor: CustomLogitProcessor

    def __init__(self, processor: Any, name: str, *, shipped: bool) -> None:
        super().__init__(processor, name, shipped=shipped)
        self._initial_attributes: dict[str, Any] | None = None
        with suppress(Exception):  # third-party code may raise anything
            self._initial_attributes = deepcopy(getattr(self.processor, "__dict__", {}))

    @property
    def checks_params(self) -> bool:
        check = getattr(self.processor, "validate_params", None)
        return check is not None and not is_method(check, CustomLogitProcessor.validate_params)

    def start(self, context: RequestContext, params: dict[str, Any]) -> _SglangState:
        return _SglangState(context, params)

    def token_callback(self, state: _SglangState) -> Callable[[int], object]:
        output_ids: array[int] = state.req.output_ids
        return output_ids.append

    def rewind(self, state: _SglangState) -> None:
        self.check_rebuildable(state)
        state.req.output_ids[:] = array("q", state.history.output_token_ids.tolist())

    def check_rebuildable(self, state: _SglangState) -> None:
        if state.was_changed() or not self._is_unchanged():
            raise StateLost(
                f"request {state.req.rid!r}: its history was changed, and {self.name} keeps state that cannot be "
                "rebuilt from the history; remove the request and add it again"
            )

    def _is_unchanged(self) -> bool:
        """Whether no attribute of the instance has changed since its construction."""
        try:
            return bool(getattr(self.processor, "__dict__", {}) == self._initial_attributes)
        except Exception:  # noqa: BLE001 - tensors, for example, do not compare to one bool
            return False

    def process(self, states: Sequence[_SglangState], logits: torch.Tensor) -> torch.Tensor:
        return self.processor(logits, [state.custom_params for state in states])
