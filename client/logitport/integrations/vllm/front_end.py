"""Patches vLLM's front end: a logits processor can neither end one request, nor check one without blocking all."""

from __future__ import annotations

import functools
import logging
import sys
import threading
from typing import TYPE_CHECKING, Any

from logitport.integrations.vllm import request_trials, response_reports, responses
from logitport.integrations.vllm.failed_requests import Failure, WaitingFailures
from logitport.integrations.vllm.front_end_sockets import FrontEndReceiver
from logitport.integrations.vllm.response_reports import RunningReports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_lock = threading.Lock()


class _Engine:
    """What the workers of an engine have sent to this process."""

    def __init__(self, instance_id: str) -> None:
        self.failures = WaitingFailures()
        self.reports = RunningReports()
        self._receiver = FrontEndReceiver(instance_id)

    def receive(self) -> None:
        for message in self._receiver.receive():
            if "failed" in message:
                self.failures.add(Failure(**message["failed"]))
            else:
                self.reports.receive(message)


# The engines of this process's front ends.
_engines: dict[str, _Engine] = {}
# Where a request's state holds the reports of its response, and the index of its choice.
_RESPONSE = "logitport_response"


def show_log() -> None:
    """Log at vLLM's level: in vLLM's HTTP server the level of the root logger is ERROR, which hides warnings."""
    ours, theirs = logging.getLogger("logitport"), logging.getLogger("vllm")
    if ours.level == logging.NOTSET and logging.NOTSET < theirs.level < logging.root.level:
        ours.setLevel(theirs.level)


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
    """Report the failures of an engine's requests, and their reports, to its clients. Another call does nothing.

    Args:
        config: the `VllmConfig`; None if the front end does not show it.
    """
    if config is None or config.instance_id in _engines:
        return
    from vllm.v1.engine.output_processor import OutputProcessor

    with _lock:
        if not hasattr(OutputProcessor.process_outputs, "__wrapped__"):
            OutputProcessor.process_outputs = _wrap(OutputProcessor.process_outputs)
            OutputProcessor.add_request = _wrap_state(OutputProcessor.add_request)
        _engines[config.instance_id] = _Engine(config.instance_id)


def _wrap_state(add: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(add)
    def wrapped(processor: Any, request: Any, *args: Any, **keywords: Any) -> Any:
        """Remember the response that the request belongs to: this context makes it, and no later one does."""
        added = add(processor, request, *args, **keywords)
        reports = response_reports.response.get()
        state = processor.request_states.get(request.request_id)
        if reports is not None and state is not None and state.queue is not None:
            samples = 1 if state.parent_req is None else state.parent_req.sampling_params.n
            setattr(state, _RESPONSE, (reports, reports.choice(state.queue, samples, state.request_index)))
        return added

    return wrapped


def _wrap(process: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(process)
    def wrapped(processor: Any, engine_core_outputs: Any, *args: Any, **keywords: Any) -> Any:
        """Answer failed requests with their error, have the engine abort them, and collect reports."""
        aborted: list[str] = []
        for engine in list(_engines.values()):
            engine.receive()
            for failure in engine.failures.waiting():
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
                engine.failures.take(failure)
        running = _with_reports(processor, engine_core_outputs)
        result = process(processor, engine_core_outputs, *args, **keywords)
        result.reqs_to_abort.extend(aborted)
        for reports, request_id, state in running:
            if request_id not in processor.request_states:
                _end(reports, request_id, state)
        return result

    return wrapped


def _with_reports(processor: Any, outputs: Iterable[Any]) -> list[tuple[RunningReports, str, Any]]:
    """Return the requests among these outputs that have reports, with their states."""
    tables = [engine.reports for engine in _engines.values() if engine.reports]
    return [
        (reports, output.request_id, state)
        for reports in tables
        for output in outputs
        if output.request_id in reports and (state := processor.request_states.get(output.request_id)) is not None
    ]


def _end(reports: RunningReports, request_id: str, state: Any) -> None:
    """Put the report of a request that has ended into its response. Without the middleware, drop it."""
    report = reports.end(request_id, state.detokenizer.num_output_tokens())
    found = getattr(state, _RESPONSE, None)
    if report is not None and found is not None:
        collected, choice = found
        collected.add(choice, report)


def _mark(engine_core_outputs: Any, failure: Failure) -> bool:
    """Set "error" as the finish reason of a request of the synchronous engine. Returns whether it has an output."""
    from vllm.v1.engine import FinishReason

    for output in engine_core_outputs:
        if output.request_id == failure.request_id:
            output.finish_reason = FinishReason.ERROR
            output.stop_reason = str(responses.failure(failure.error, failure.code, failure.message))
            return True
    return False
