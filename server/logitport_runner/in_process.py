"""Runs chains in this process, with the server's admission, grouping and calls, but without its transports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import logitport_builtins
from logitport.core import tensors
from logitport.core.history import extend_crc
from logitport.errors import InvalidArgument, LogitportError, NotFound, ServerUnavailable
from logitport_proto import processing_pb2
from logitport_runner.executor_choice import choose_executor
from logitport_runner.local_registry import LocalRegistry
from logitport_runner.own_processors import OwnProcessors
from logitport_runner.watched_step import WatchedStep
from logitport_sandbox import LAYERS
from logitport_server.config import ServerConfig
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.registry.policy import PayloadPolicy
from logitport_session.admissions.admission import Admission, check_limits, check_token_ids
from logitport_session.processor_sources import installed
from logitport_session.requests.loaded_processors import LoadedProcessors
from logitport_session.steps.grouping import Row, Rows, needs_logits
from logitport_session.steps.outcome import StepOutcome
from logitport_session.steps.step_time import StepTime
from logitport_session.trust.principals import ANONYMOUS, Party
from logitport_testing.runner import ProcessorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from logitport.shipping.request import Request
    from logitport_proto import common_pb2
    from logitport_server.executors.base import Executor
    from logitport_session.dialects import Dialect
    from logitport_session.requests.active_request import ActiveRequest
    from logitport_testing.runner import RowResult, RowStep, Where

# A test does not depend on the speed of the machine, unless it sets these options.
_LONG_LIMITS = {
    "processor_timeout_seconds": 60.0,
    "load_timeout_seconds": 200.0,
    "program_milliseconds": 1e6,
}


class InProcessRunner:
    """Runs chains; see `logitport_testing.runner.ChainRunner`.

    Args:
        where: where processors run.
        options: options of the server, by the names of `ServerConfig`.
        tokenizers: further tokenizers by name, for processors that run here. They are read when one uses them.

    Raises:
        ServerUnavailable: this machine cannot run workers.
        InvalidArgument: an option is unknown or has a wrong value.
    """

    def __init__(self, where: Where, options: Mapping[str, Any], tokenizers: Mapping[str, Path]) -> None:
        config = self._config = make_config(
            {"isolation": "process" if where == "worker" else "none", **_LONG_LIMITS, **options}
        )
        if config.tokenizer:
            logitport_builtins.configure(config)
        found = installed.load(config.logits_processors, with_entry_points=config.entry_points)
        self._own = OwnProcessors(found, shipped=where != "here")
        self._executor = make_executor(config)
        self._registry = LocalRegistry(
            PayloadPolicy(allow_shipped=True, max_bytes=config.max_payload_bytes),
            max_registered=config.max_registered_processors,
            max_owned=config.max_processors_per_principal,
            quarantine=self._executor.quarantine,
            check_python=self._executor.check_python,
            installed=self._own.installed,
        )
        logitport_builtins.add_tokenizers(tokenizers)
        self._tokenizers: list[str] = [*tokenizers]

    def open(self, vocab_size: int, *, tokenizer_id: str = "", eos_token_ids: Sequence[int] = ()) -> InProcessBatch:
        """Open an empty batch, with new instances of all processors."""
        opening = processing_pb2.OpenSession(
            vocab_size=vocab_size,
            datatype="FP32",
            tokenizer_id=tokenizer_id,
            eos_token_ids=eos_token_ids,
            max_requests=self._config.max_requests_per_session,
        )
        loaded = LoadedProcessors(self._registry, self._executor, ANONYMOUS)
        return InProcessBatch(opening, loaded, self._own, self._config)

    def close(self) -> None:
        """End all workers. The runner's tokenizers are no longer configured. A second call has no effect."""
        self._executor.close()
        logitport_builtins.remove_tokenizers(self._tokenizers)
        self._tokenizers.clear()
        if self._config.tokenizer:
            logitport_builtins.configure(make_config({}))

    def __enter__(self) -> InProcessRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class InProcessBatch:
    """Some requests, and their steps; see `logitport_testing.runner.Batch`."""

    def __init__(
        self, opening: processing_pb2.OpenSession, loaded: LoadedProcessors, own: OwnProcessors, config: ServerConfig
    ) -> None:
        self._opening = opening
        self._loaded = loaded
        self._own = own
        self._config = config
        self._requests: dict[int, ActiveRequest] = {}

    def add(self, slot: int, request: Request) -> tuple[ProcessorInfo, ...]:
        """Admit a request. Returns its chain. Raises LogitportError if a server would refuse it."""
        if slot in self._requests:
            raise InvalidArgument(f"slot {slot} is taken; remove that request first")
        addition = processing_pb2.SlottedRequest(slot=slot, request=self._own.to_proto(request))
        check_limits(addition.request, self._config.session_limits)
        admission = Admission(addition, self._opening, caller=Party(ANONYMOUS.name, request.tenant))
        admission.load(self._load, self._config.load_timeout_seconds)
        active = self._requests[slot] = admission.finish()
        return tuple(
            ProcessorInfo(
                entry.dialect.name,
                entry.dialect.reads_logits,
                entry.dialect.for_engine() is not None,
                entry.dialect.takes_rows,
            )
            for entry in active.chain
        )

    def remove(self, slot: int) -> None:
        """Remove a request."""
        self._requests.pop(slot, None)

    def check_rebuildable(self, slot: int) -> None:
        """Raise StateLost if the request has state that cannot be rebuilt from its history."""
        for entry in self._active(slot).chain:
            entry.dialect.check_rebuildable(entry.state)

    def step(self, rows: Sequence[RowStep], logits: NDArray[np.float32]) -> list[RowResult]:
        """Run one step, as `session_steps` does: first the chains that read no logits, then the others.

        Args:
            rows: the requests of the step.
            logits: float32[rows, vocab_size], not changed.
        """
        outcome = StepOutcome()
        requests = [self._synchronized(row, outcome) for row in rows]
        greedy = all(request.greedy for request in requests)
        parts: dict[bool, list[Row]] = {False: [], True: []}
        for index, request in enumerate(requests):
            if request.failure is None:
                parts[needs_logits(request, greedy=greedy)].append(Row(index, request))
        given = tensors.of_sessions(np.array(logits, np.float32))
        time = StepTime(self._config.processor_timeout_seconds)
        watched = WatchedStep(given)
        watched.run_logits_free(Rows(parts[False], greedy=greedy), outcome, time)
        watched.run_logits_reading(Rows(parts[True], greedy=greedy), outcome, time)
        return [watched.result(index, request) for index, request in enumerate(requests)]

    def _load(self, processor: common_pb2.Processor, tenant: str, place: int) -> Dialect:
        return self._own.adapt(processor.builtin, self._loaded.load(processor, tenant, place))

    def _synchronized(self, row: RowStep, outcome: StepOutcome) -> ActiveRequest:
        """Bring the history of a request up to date; the request fails if that fails."""
        request = self._active(row.slot)
        crc = extend_crc(0, request.history.token_ids[: row.base_length].tolist())
        try:
            check_token_ids(row.new_token_ids, self._opening.vocab_size, "new_token_ids")
            request.synchronize(row.base_length, crc, row.new_token_ids)
        except LogitportError as error:
            outcome.fail(request, error)
        return request

    def _active(self, slot: int) -> ActiveRequest:
        try:
            return self._requests[slot]
        except KeyError:
            raise NotFound(f"slot {slot} holds no request; add it first") from None


def make_executor(config: ServerConfig) -> Executor:
    """Create the executor. Raises ServerUnavailable if this machine cannot run workers."""
    try:
        executor = choose_executor(config)
    except StartupError as error:
        raise ServerUnavailable(f"no worker can run on this machine: {error}") from error
    executor.program_milliseconds = config.program_milliseconds
    try:
        executor.ready()
    except RuntimeError as error:
        executor.close()
        raise ServerUnavailable(f"no worker can run on this machine: {error}") from error
    return executor


def make_config(options: Mapping[str, Any]) -> ServerConfig:
    """Make a configuration that accepts shipped processors. Layers that this machine lacks are left out.

    Raises InvalidArgument for an unknown option or a wrong value.
    """
    chosen = {"enable_custom_logit_processor": True, "device": "cpu", **options}
    if chosen.get("isolation") != "none":
        chosen.setdefault("layers", [f"{layer.name}=off" for layer in LAYERS if layer.missing() is not None])
    try:
        return ServerConfig(**chosen)
    except ValueError as error:
        raise InvalidArgument(f"options of the server: {error}") from error
