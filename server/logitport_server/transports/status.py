"""The status of a server, for operators."""

from __future__ import annotations

import platform
import time
from itertools import islice
from typing import TYPE_CHECKING

from logitport_proto import admin_pb2
from logitport_server.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from logitport_server.config import ServerConfig
    from logitport_server.executors import Executor
    from logitport_server.executors.report import WorkerReport
    from logitport_server.metrics import Metrics
    from logitport_server.principals import TrustDomain
    from logitport_server.registry.registry import Registry
    from logitport_server.transports.departures import Departures

# Bounds of the lists in a reply, so that it fits into a message.
_MAX_WORKERS = 256
_MAX_PROCESSORS_OF_WORKER = 8
_MAX_QUARANTINES = 256
_MAX_REASON_LENGTH = 500


class Status:
    """Describes a server. Thread-safe.

    Args:
        config: the operator's options.
        device: where processors that read logits run.
        executor: runs the processors.
        registry: the registered processors.
        metrics: the server's metrics.
        departures: the open sessions.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        config: ServerConfig,
        device: torch.device,
        executor: Executor,
        registry: Registry,
        metrics: Metrics,
        departures: Departures,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._device = device
        self._executor = executor
        self._registry = registry
        self._metrics = metrics
        self._departures = departures
        self._clock = clock
        self._started_at = clock()

    def describe(self) -> admin_pb2.GetStatusResponse:
        """Describe the server now. Reads a file for each worker, so it may take milliseconds."""
        config, quarantine = self._config, self._executor.quarantine
        sessions, requests = self._metrics.load()
        workers, quarantines = self._executor.workers(), quarantine.entries()
        return admin_pb2.GetStatusResponse(
            version=VERSION,
            python_version=platform.python_version(),
            device=str(self._device),
            uptime_seconds=self._clock() - self._started_at,
            draining=self._departures.is_draining,
            sessions=sessions,
            movable_sessions=self._departures.movable_sessions,
            max_sessions=config.max_sessions,
            requests=requests,
            pending_requests=self._metrics.num_pending,
            steps=self._metrics.num_steps,
            accepts_code=config.enable_custom_logit_processor,
            accepts_programs=config.programs,
            isolation=config.isolation,
            requires_authentication=config.requires_authentication,
            requires_signatures=config.trusted_keys is not None,
            registered_processors=self._registry.num_registered,
            max_registered_processors=self._config.max_registered_processors,
            installed_processors=self._registry.num_installed,
            loader_hits=self._executor.hits,
            loader_misses=self._executor.misses,
            worker_count=len(workers),
            max_workers=config.max_workers if config.has_workers else 0,
            workers_lost=quarantine.failures,
            workers=map(_describe_worker, workers[:_MAX_WORKERS]),
            quarantine_count=len(quarantines),
            quarantines=(self._describe_quarantine(*entry) for entry in quarantines[:_MAX_QUARANTINES]),
            time_bounds_seconds=self._metrics.processors.bounds,
            processor_times=(
                admin_pb2.ProcessorTimes(
                    processor=name, counts=times.buckets, total_seconds=times.seconds, rows=times.rows
                )
                for name, times in sorted(self._metrics.processors.snapshot().items())
            ),
        )

    def _describe_quarantine(self, domain: TrustDomain | None, digest: str, reason: str) -> admin_pb2.QuarantineInfo:
        info = admin_pb2.QuarantineInfo(digest=digest, reason=reason[:_MAX_REASON_LENGTH])
        if domain is not None:
            info.owner, info.principal, info.tenant = domain.owner, domain.party.principal, domain.party.tenant
            info.names.extend(self._registry.names_of(digest, domain.owner))
        return info


def _describe_worker(worker: WorkerReport) -> admin_pb2.WorkerInfo:
    info = admin_pb2.WorkerInfo(
        process_id=worker.process_id,
        state=worker.state,
        memory_bytes=worker.memory_bytes,
        processors=islice(worker.processors, _MAX_PROCESSORS_OF_WORKER),
    )
    if worker.domain is not None:
        party = worker.domain.party
        info.owner, info.principal, info.tenant = worker.domain.owner, party.principal, party.tenant
    return info
