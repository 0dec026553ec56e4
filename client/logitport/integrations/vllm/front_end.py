"""Patches vLLM's front end: a logits processor can neither end one request, nor check one without blocking all."""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

from logitport.integrations.vllm import request_trials, responses
from logitport.integrations.vllm.mailbox import Mailbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport.integrations.vllm.mailbox import Failure

_lock = threading.Lock()
# The engines of this process's front ends.
_mailboxes: dict[str, Mailbox] = {}


def check_off_the_event_loop() -> None:
    """Have the asynchronous engine, if this process has loaded it, check chains on threads: its own check blocks."""
    engine = getattr(sys.modules.get("vllm.v1.engine.async_llm"), "AsyncLLM", None)
    if engine is not None and not hasattr(engine.add_request, "__wrapped__"):
        engine.add_request = _wrap_add(engine.add_request)


def _wrap_add(add: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(add)
    async def wrapped(engine: Any, request_id: str, prompt: Any, params: Any, *args: Any, **keywords: Any) -> Any:
        """Check the chain before vLLM does. Raises the errors of `request_trials.prepare`."""
        if hasattr(params, "extra_args") and hasattr(params, "stop_token_ids"):  # not of a pooling model
            await request_trials.prepare(params, engine.vllm_config)
        return await add(engine, request_id, prompt, params, *args, **keywords)

    return wrapped


def install(config: Any) -> None:
    """Report the failures of an engine's requests to its clients. Another call for the same engine does nothing.

    Args:
        config: the `VllmConfig`; None if the front end does not show it.
    """
    if config is None or config.instance_id in _mailboxes:
        return
    from vllm.v1.engine.output_processor import OutputProcessor

    with _lock:
        if not hasattr(OutputProcessor.process_outputs, "__wrapped__"):
            OutputProcessor.process_outputs = _wrap(OutputProcessor.process_outputs)
        _mailboxes[config.instance_id] = Mailbox(config.instance_id)


def _wrap(process: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(process)
    def wrapped(processor: Any, engine_core_outputs: Any, *args: Any, **keywords: Any) -> Any:
        """Answer failed requests with their error, and have the engine abort them."""
        aborted: list[str] = []
        for mailbox in _mailboxes.values():
            for failure in mailbox.waiting():
                state = processor.request_states.get(failure.request_id)
                if state is None:
                    continue
                if state.queue is not None:  # of the asynchronous engine
                    aborted += processor.abort_requests([failure.request_id], internal=True)
                    # Replaces the abort's output.
                    state.queue.put(responses.failure(failure.error, failure.code, failure.message))
                elif _mark(engine_core_outputs, failure):
                    aborted.append(failure.request_id)
                else:
                    continue
                mailbox.take(failure)
        result = process(processor, engine_core_outputs, *args, **keywords)
        result.reqs_to_abort.extend(aborted)
        return result

    return wrapped


def _mark(engine_core_outputs: Any, failure: Failure) -> bool:
    """Set "error" as the finish reason of a request of the synchronous engine. Returns whether it has an output."""
    from vllm.v1.engine import FinishReason

    for output in engine_core_outputs:
        if output.request_id == failure.request_id:
            output.finish_reason = FinishReason.ERROR
            output.stop_reason = str(responses.failure(failure.error, failure.code, failure.message))
            return True
    return False
