"""The gRPC service Admin, and the status of the server that it returns."""

from __future__ import annotations

import asyncio
import logging
import platform
import re
import time
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from logitport.errors import InvalidArgument
from logitport_proto import admin_pb2, admin_pb2_grpc
from logitport_server.access import current_call
from logitport_server.transports.threads import on_thread
from logitport_server.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from logitport.system.fair_threads import FairThreads
    from logitport_server.access.grpc_errors import Context
    from logitport_server.config import ServerConfig
    from logitport_server.executors.worker_processes.worker_report import WorkerReport
    from logitport_server.front_door.session_pages import SessionsOfProcesses
    from logitport_server.front_door.worker_service import WorkerService
    from logitport_server.metrics import Metrics
    from logitport_server.registry.registry import Registry
    from logitport_session.trust.principals import TrustDomain

logger = logging.getLogger(__name__)

_MAX_PAGE_SIZE = 1000
_PAGE_TOKEN = re.compile(r"[0-9]{1,18}")
# Bounds of the lists in a reply, so that it fits into a message.
_MAX_WORKERS = 256
_MAX_PROCESSORS_OF_WORKER = 8
_MAX_QUARANTINES = 256
_MAX_REASON_LENGTH = 500


class AdminService(admin_pb2_grpc.AdminServicer):
    """The calls of Admin.

    Args:
        sessions: the open sessions.
        leave: makes health checks answer NOT_SERVING, and states to all sessions that they should move.
        threads: run the calls that may wait.
    """

    def __init__(
        self,
        sessions: SessionsOfProcesses,
        leave: Callable[[], Awaitable[None]],
        status: StatusReporter,
        registry: Registry,
        threads: FairThreads,
    ) -> None:
        self._sessions = sessions
        self._leave = leave
        self._status = status
        self._registry = registry
        self._threads = threads

    async def GetStatus(self, request: admin_pb2.GetStatusRequest, context: Context) -> admin_pb2.GetStatusResponse:
        _, workers = await asyncio.gather(self._sessions.refresh(), self._status.workers.workers())
        return await on_thread(self._threads, partial(self._status.describe, workers))

    async def ListSessions(
        self, request: admin_pb2.ListSessionsRequest, context: Context
    ) -> admin_pb2.ListSessionsResponse:
        if request.page_size < 0:
            raise InvalidArgument(f"page_size is {request.page_size}; send 0 or more")
        if request.page_token and not _PAGE_TOKEN.fullmatch(request.page_token):
            raise InvalidArgument(
                f"page_token is {request.page_token[:100]!r}; send next_page_token of the page before, or leave it out"
            )
        size = min(request.page_size or _MAX_PAGE_SIZE, _MAX_PAGE_SIZE)
        return await self._sessions.page(int(request.page_token or 0), size)

    async def Drain(self, request: admin_pb2.DrainRequest, context: Context) -> admin_pb2.DrainResponse:
        sessions = self._sessions
        if not sessions.is_draining:
            caller = current_call.get().principal
            fields = {"event": "drain_begun", "principal": caller.name}
            logger.info("%s drains this server", caller.display_name, extra=fields)
            await self._leave()
        await sessions.refresh()
        return admin_pb2.DrainResponse(sessions=sessions.sessions, movable_sessions=sessions.movable_sessions)

    async def Unquarantine(
        self, request: admin_pb2.UnquarantineRequest, context: Context
    ) -> admin_pb2.UnquarantineResponse:
        unquarantine = partial(self._registry.unquarantine, request.processor, current_call.get().principal)
        return await on_thread(self._threads, unquarantine)


@dataclass
class StatusReporter:
    """Describes a server. Thread-safe.

    Attributes:
        device: returns torch's name of the device for logits.
        workers: starts the workers.
    """

    config: ServerConfig
    device: Callable[[], str]
    workers: WorkerService
    registry: Registry
    metrics: Metrics
    sessions: SessionsOfProcesses

    def __post_init__(self) -> None:
        self._started_at = time.monotonic()

    def describe(self, workers: Sequence[WorkerReport]) -> admin_pb2.GetStatusResponse:
        """Describe the server now, with these workers. Reads a file for each, so it may take milliseconds."""
        config, quarantine = self.config, self.workers.quarantine
        sessions, requests = self.metrics.load()
        quarantines = quarantine.entries()
        return admin_pb2.GetStatusResponse(
            version=VERSION,
            python_version=platform.python_version(),
            device=self.device(),
            uptime_seconds=time.monotonic() - self._started_at,
            draining=self.sessions.is_draining,
            sessions=sessions,
            movable_sessions=self.sessions.movable_sessions,
            max_sessions=config.max_sessions,
            requests=requests,
            pending_requests=self.metrics.num_pending,
            steps=self.metrics.num_steps,
            accepts_code=config.enable_custom_logit_processor,
            accepts_programs=config.programs,
            isolation=config.isolation,
            requires_authentication=config.requires_authentication,
            requires_signatures=config.trusted_keys is not None,
            registered_processors=self.registry.num_registered,
            max_registered_processors=self.config.max_registered_processors,
            installed_processors=self.registry.num_installed,
            loader_hits=self.metrics.loader_hits,
            loader_misses=self.metrics.loader_misses,
            worker_count=len(workers),
            max_workers=config.max_workers if config.has_workers else 0,
            workers_lost=quarantine.failures,
            workers=map(_describe_worker, workers[:_MAX_WORKERS]),
            quarantine_count=len(quarantines),
            quarantines=(self._describe_quarantine(*entry) for entry in quarantines[:_MAX_QUARANTINES]),
            time_bounds_seconds=self.metrics.processors.bounds,
            processor_times=(
                admin_pb2.ProcessorTimes(
                    processor=name, counts=times.buckets, total_seconds=times.seconds, rows=times.rows
                )
                for name, times in sorted(self.metrics.processors.snapshot().items())
            ),
        )

    def _describe_quarantine(self, domain: TrustDomain | None, digest: str, reason: str) -> admin_pb2.QuarantineInfo:
        info = admin_pb2.QuarantineInfo(digest=digest, reason=reason[:_MAX_REASON_LENGTH])
        if domain is not None:
            info.owner, info.principal, info.tenant = domain.owner, domain.party.principal, domain.party.tenant
            info.names.extend(self.registry.names_of(digest, domain.owner))
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
