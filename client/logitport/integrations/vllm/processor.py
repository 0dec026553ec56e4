"""The class that vLLM is given, for either of its runners."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from logitport.integrations.vllm import admission

if TYPE_CHECKING:
    import torch


def _interfaces() -> tuple[type, ...]:
    """The base classes that the installed vLLM wants a processor to have: of the first runner, and of the second."""
    found = []
    for module in ("vllm.v1.sample.logits_processor", "vllm.v1.worker.gpu.sample.logits_processor"):
        try:
            found.append(import_module(module).LogitsProcessor)
        except (ImportError, AttributeError):
            continue
    if not found:
        raise ImportError("this vLLM has no logits processors that logitport knows; vLLM 0.32 and 0.33 are supported")
    return tuple(found)


class RemoteLogitsProcessor(*_interfaces()):  # type: ignore[misc] # the bases are the installed vLLM's
    """Has the service process the logits of requests that ask for it, whichever of vLLM's runners is at work.

    A request asks by `SamplingParams(extra_args={"logitport": [[processor, parameters], ...]})`, over HTTP by
    `"vllm_xargs": {"logitport": "<the same as JSON>"}`; one that does not gets LOGITPORT_DEFAULT_PROCESSORS. The
    service is the one that LOGITPORT_TARGET names. See docs/engines/vllm.md.

    vLLM makes it, with two or three arguments: so the runner is known.

    Args:
        vllm_config: vLLM's.
        told: of the first runner the device and whether host memory is pinned, of the second its request state.

    Raises:
        ValueError: vLLM runs in a way that is not supported, or the environment names no service.
    """

    def __init__(self, vllm_config: Any, *told: Any) -> None:
        self._hook: Any
        if len(told) == 1:
            from logitport.integrations.vllm.v2 import V2Hook

            self._hook = V2Hook(vllm_config, *told)
        else:
            from logitport.integrations.vllm.v1 import V1Hook

            self._hook = V1Hook(vllm_config, told[0])

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a request whose chain is malformed, or that the service refuses. Raises as `Admission.check`."""
        admission.check(sampling_params)

    def is_argmax_invariant(self) -> bool:
        """No: processors may choose another id."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """First runner, before the forward pass."""
        self._hook.update_state(batch_update)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Second runner: a request enters a slot. Whether it asks for anything."""
        asks: bool = self._hook.add_request(req_idx, sampling_params)
        return asks

    def apply_staged_writes(self) -> None:
        """Second runner, before the forward pass."""
        self._hook.apply_staged_writes()

    def apply(self, logits: torch.Tensor, *context: Any) -> torch.Tensor:
        """Process float32[rows, vocab_size] in place; the second runner says whose rows they are."""
        processed: torch.Tensor = self._hook.apply(logits, *context)
        return processed
