"""The class that vLLM loads, for both of its runners."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from logitport.integrations.vllm import front_end, request_trials
from logitport.integrations.vllm.engine import find_config

if TYPE_CHECKING:
    import torch


def _interfaces() -> tuple[type, ...]:
    """Return the base classes of processors in the installed vLLM: of the first runner, and of the second."""
    found = []
    for module in ("vllm.v1.sample.logits_processor", "vllm.v1.worker.gpu.sample.logits_processor"):
        try:
            found.append(import_module(module).LogitsProcessor)
        except (ImportError, AttributeError):
            continue
    if not found:
        raise ImportError(
            "this vLLM has no logits processor interface that logitport supports; install vLLM 0.32 or 0.33"
        )
    return tuple(found)


# vLLM imports this module when it creates the front end, before the first request.
front_end.check_off_the_event_loop()
front_end.show_log()


class RemoteLogitsProcessor(*_interfaces()):  # type: ignore[misc] # the bases are the installed vLLM's
    """Processes the logits of requests that name processors in the service, with either of vLLM's runners.

    A request names processors by `SamplingParams(extra_args={"logitport": [[processor, parameters], ...]})`, over HTTP
    by `"vllm_xargs": {"logitport": "<the same as JSON>"}`; other requests get LOGITPORT_DEFAULT_PROCESSORS. The
    service is at LOGITPORT_TARGET. See docs/engines/vllm.md.

    The number of arguments identifies the runner that creates the object.

    Args:
        vllm_config: vLLM's.
        runner_args: first runner: the device, and whether host memory is pinned; second runner: its request state.

    Raises:
        ValueError: vLLM's configuration is not supported, or the environment variables are invalid.
    """

    def __init__(self, vllm_config: Any, *runner_args: Any) -> None:
        self._hook: Any
        if len(runner_args) == 1:
            from logitport.integrations.vllm.v2 import V2Hook

            self._hook = V2Hook(vllm_config, *runner_args)
        else:
            from logitport.integrations.vllm.v1 import V1Hook

            self._hook = V1Hook(vllm_config, runner_args[0])

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a malformed chain, or one that the service refuses, with the errors of `request_trials.check`."""
        config = find_config()
        front_end.install(config)
        request_trials.check(sampling_params, config)

    def is_argmax_invariant(self) -> bool:
        """Return False: processors may change the likeliest id."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """First runner: called before the forward pass."""
        self._hook.update_state(batch_update)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Second runner: a request enters a slot. Returns whether it has processors."""
        has_chain: bool = self._hook.add_request(req_idx, sampling_params)
        return has_chain

    def apply_staged_writes(self) -> None:
        """Second runner: called before the forward pass."""
        self._hook.apply_staged_writes()

    def apply(self, logits: torch.Tensor, *context: Any) -> torch.Tensor:
        """Process float32[rows, vocab_size] in place; the second runner passes the slots of the rows."""
        processed: torch.Tensor = self._hook.apply(logits, *context)
        return processed
