"""One server with its parts. `running` runs it until a signal."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from logitport.system.fair_threads import FairThreads
from logitport_proto import (
    admin_pb2,
    admin_pb2_grpc,
    processing_pb2,
    processing_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
)
from logitport_server import tracing
from logitport_server.access import Authenticator, Guard, Quotas, TokenFile
from logitport_server.front_door import cpu_regime, machine
from logitport_server.front_door.admin_service import AdminService, StatusReporter
from logitport_server.front_door.launched import launch
from logitport_server.front_door.memory_shares import MemoryShares
from logitport_server.front_door.processes import Processes
from logitport_server.front_door.registry_service import RegistryService
from logitport_server.front_door.reports import Reports
from logitport_server.front_door.resolving import Resolving
from logitport_server.front_door.service import FrontDoorService
from logitport_server.front_door.session_pages import SessionsOfProcesses
from logitport_server.front_door.session_zygote import SessionZygote
from logitport_server.front_door.worker_service import worker_service_of
from logitport_server.http_pages import status_pages
from logitport_server.http_pages.status_pages import Health, Heartbeat, StatusPages
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.lifecycle.stop_signals import signals_deferred
from logitport_server.metrics import Metrics
from logitport_server.metrics.family import counter, gauge
from logitport_server.principal_process.process_messages import Leave, UseKeys
from logitport_server.registry.policy import PayloadPolicy
from logitport_server.registry.poller import Poller
from logitport_server.registry.registry import Registry
from logitport_server.registry.stores.opening import open_store
from logitport_server.registry.trusted_keys import TrustedKeys
from logitport_server.transports import endpoint
from logitport_server.transports.binding import binding
from logitport_server.transports.local_socket import LOCAL_TRANSPORT_AVAILABLE, open_local_socket
from logitport_server.transports.readiness import ReadyServer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logitport_server.config import ServerConfig
    from logitport_server.front_door.launched import Launched
    from logitport_server.front_door.running_process import RunningProcess

logger = logging.getLogger(__name__)

# A call may run slow code of a processor. The pool is large so that such calls do not delay the others.
_MAX_CALL_THREADS = 256
# Between two looks at the files of tokens and trusted keys.
_REFRESH_SECONDS = 1.0
# Between two looks at the sessions that are to move.
_POLL_SECONDS = 0.05
# Reserved at the end of `stop_seconds` for in-flight calls. They never get more: sessions that cannot move have ended
# then, and their engines wait.
_DRAIN_SECONDS = 5.0
# For the last reports of processes before the metrics are shown.
_REPORT_SECONDS = 0.5
# For processes to end, after their sessions.
_PROCESS_SECONDS = 2.0
# For the export of the last spans.
_EXPORT_SECONDS = 3.0
_SERVICES = (
    registry_pb2.DESCRIPTOR.services_by_name["ProcessorRegistry"].full_name,
    processing_pb2.DESCRIPTOR.services_by_name["LogitProcessing"].full_name,
    admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name,
)


class Server:
    """A server with all its parts: a front door. Sessions run in the processes of their principals.

    Args:
        config: the operator's configuration.
        processors: trusted processors that requests can name, in addition to the config's; see `installed`.
        launched: the result of `launch`, if it was called already.

    Raises:
        StartupError: the options cannot be used on this machine.
    """

    def __init__(
        self, config: ServerConfig, processors: Iterable[object] = (), launched: Launched | None = None
    ) -> None:
        with ExitStack() as when_failed:
            launched = launched or launch(config, processors)
            when_failed.callback(launched.close)
            self._prepare(config, launched, when_failed)
            when_failed.pop_all()

    def _prepare(self, config: ServerConfig, launched: Launched, when_failed: ExitStack) -> None:
        """Create all parts. What `when_failed` holds is called if one cannot be created."""
        endpoint.check_exposure(config)
        self._config = config
        tokens = TokenFile(config.tokens) if config.tokens is not None else None
        authenticator = Authenticator(tokens, certificates=config.tls_client_ca is not None)
        self._workers = worker_service_of(config, launched.workers, authenticator.grants)
        when_failed.callback(self._workers.close)
        self._metrics = Metrics()
        if config.has_workers:
            self._metrics.watch_workers(self._workers, hold_gpu=bool(self._workers.settings.nodes))
        self._store, seal = open_store(config)
        when_failed.callback(self._store.close)
        self._trusted_keys = TrustedKeys(config.trusted_keys) if config.trusted_keys is not None else None
        policy = PayloadPolicy(
            allow_shipped=config.enable_custom_logit_processor,
            allow_programs=config.programs,
            max_bytes=config.max_payload_bytes,
            trusted_keys=self._trusted_keys,
        )
        self._registry = Registry(
            policy,
            max_registered=config.max_registered_processors,
            max_owned=config.max_processors_per_principal,
            quarantine=self._workers.quarantine,
            store=self._store,
            seal=seal,
            on_removed=self._forget_processor,
        )
        self._poller = Poller(self._registry.poll) if config.store is not None else None
        quotas = Quotas(config)
        self._guard = Guard(authenticator, quotas, self._metrics, config.max_message_bytes)
        self._local_socket = None
        if config.local_transport and LOCAL_TRANSPORT_AVAILABLE:
            with signals_deferred():
                self._local_socket = open_local_socket(config.max_message_bytes)
                when_failed.callback(self._local_socket.close, 0.0)
        self._threads = FairThreads(_MAX_CALL_THREADS, "logitport-call")
        self._reports = Reports(self._metrics, lambda: self._processes)
        resolving = Resolving(self._registry)
        shares = MemoryShares(config.max_principal_memory, lambda: self._processes)
        handlers = {**resolving.handlers, **self._workers.handlers, **self._reports.handlers, **shares.handlers}
        for need in machine.needs(config):
            if need.warning is not None:
                logger.warning("%s", need.warning)
        with signals_deferred():
            self._cpu_regime = cpu_regime.begin()
            if self._cpu_regime.cgroups is not None:
                when_failed.callback(self._cpu_regime.cgroups.close)
        self._zygote = SessionZygote(launched.setup, launched.sessions, self._workers.settings, handlers)
        self._processes = Processes(self._zygote, self._begin_process)
        self._sessions = SessionsOfProcesses(self._metrics, self._reports, lambda: self._processes)
        self._processing = FrontDoorService(
            self._processes,
            self._local_socket,
            self._metrics.load,
            partial(self._reports.refresh_soon, _REPORT_SECONDS),
            quotas.accepts_session,
            lambda: self._sessions.is_draining,
            config.max_message_bytes,
        )
        status = StatusReporter(
            config, lambda: self._zygote.device, self._workers, self._registry, self._metrics, self._sessions
        )
        self._admin = AdminService(self._sessions, self.leave, status, self._registry, self._threads)
        self._health = health.aio.HealthServicer()
        self._grpc: grpc.aio.Server | None = None
        self._status_pages: StatusPages | None = None
        self._watching: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._heartbeat = Heartbeat(self._metrics.registry)
        self._is_ready = False
        self._add_metrics()

    def _add_metrics(self) -> None:
        """Add the metrics of parts that do not count themselves."""
        for family in (
            gauge(
                "logitport_ready",
                "Whether the server accepts sessions: 1, or 0 at its start and end",
                lambda: self._present_health() is Health.SERVING,
            ),
            gauge(
                "logitport_calls_waiting",
                "Calls and admissions that wait for a thread",
                lambda: self._threads.waiting + self._metrics.waiting_calls,
            ),
            gauge("logitport_processors_registered", "Registered processors", lambda: self._registry.num_registered),
            gauge(
                "logitport_store_up",
                "Whether the store of registered processors can be read: 1 or 0",
                lambda: self._registry.has_store,
            ),
            gauge("logitport_processes", "Processes of principals that run", lambda: len(self._processes)),
            counter(
                "logitport_processes_lost",
                "Processes of principals that have ended by themselves, or were killed",
                lambda: self._processes.lost,
            ),
        ):
            self._metrics.add(family)

    @property
    def device(self) -> str:
        """Torch's name of the device for logits, once the server has started."""
        return self._zygote.device

    def take_freed(self) -> bool:
        """Whether much memory of the front door may have become free since the last call."""
        return self._processing.take_freed()

    @property
    def announcement(self) -> str:
        """How shipped processors are run, for the log."""
        return self._workers.announcement

    def _forget_processor(self, display_name: str) -> None:
        """Drop the metrics of a processor whose last registration is gone. Runs on a thread."""
        self._reports.wait(_REPORT_SECONDS)  # a later report would bring them back
        self._metrics.processors.forget(display_name)

    def _begin_process(self, process: RunningProcess) -> None:
        """Prepare a principal's new process, before its first stream."""
        if self._cpu_regime.cgroups is not None:
            self._cpu_regime.cgroups.begin(process)
        self._workers.start_of(process)
        if self._trusted_keys is not None:
            process.post(UseKeys(keys=self._trusted_keys.raw))
        if self._sessions.is_draining:
            process.post(Leave())

    def _present_health(self) -> Health:
        if not self._heartbeat.is_responsive():
            return Health.SILENT
        return Health.SERVING if self._is_ready and not self._sessions.is_draining else Health.NOT_SERVING

    async def start(self) -> ReadyServer:
        """Start to serve. Returns its address and ports.

        Raises:
            StartupError: an address cannot be bound, or processes cannot be started; all parts are closed then.
        """
        try:
            return await self._start()
        except BaseException:
            await self._close(0.0)
            raise

    async def _start(self) -> ReadyServer:
        try:
            await asyncio.gather(self._zygote.start(), asyncio.to_thread(self._workers.ready))
        except RuntimeError as error:
            raise StartupError(f"cannot run shipped processors: {error}") from error
        self._registry.set_installed(self._zygote.installed)
        self._metrics.processors.set_installed(self._zygote.installed)
        self._reports.begin()
        self._grpc = grpc.aio.server(interceptors=[self._guard], options=endpoint.options(self._config))
        registry_pb2_grpc.add_ProcessorRegistryServicer_to_server(
            RegistryService(
                self._registry, partial(self._processing.exchange, "check"), self._threads, self._workers.output
            ),
            self._grpc,
        )
        processing_pb2_grpc.add_LogitProcessingServicer_to_server(self._processing, self._grpc)
        admin_pb2_grpc.add_AdminServicer_to_server(self._admin, self._grpc)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        reflection.enable_server_reflection((*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), self._grpc)
        address = endpoint.listen(self._grpc, self._config)
        try:
            tracing.configure(address)
        except ValueError as error:
            raise StartupError(str(error)) from error
        metrics_port = None
        if self._config.metrics_listen is not None:
            with binding("--metrics-listen", self._config.metrics_listen):
                self._status_pages = status_pages.listen(
                    self._config.metrics_listen,
                    self._metrics.registry,
                    health=self._present_health,
                    is_alive=self._heartbeat.is_alive,
                    refresh=partial(self._reports.wait, _REPORT_SECONDS),
                )
                metrics_port = self._status_pages.port
        if self._poller is not None:
            self._workers.quarantine.track_changes(self._poller.wake)
            self._poller.start()
        await self._grpc.start()
        self._watching = asyncio.create_task(self._watch_files())
        self._beating = asyncio.create_task(self._heartbeat.beat())
        for service in ("", *_SERVICES):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        self._is_ready = True
        return ReadyServer(address, metrics_port)

    def refresh(self, *, force: bool = False) -> None:
        """Reload the tokens and the trusted keys if their files have changed; the keys in any case with `force`."""
        self._guard.refresh()
        if self._trusted_keys is not None and self._trusted_keys.refresh(force=force):
            for process in self._processes:
                process.post(UseKeys(keys=self._trusted_keys.raw))

    async def _watch_files(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            try:
                self.refresh()
            except Exception:
                logger.exception("cannot reload the tokens and keys; the previous ones stay in use")

    async def leave(self) -> None:
        """Drain: open no more sessions, set `should_move` for all, and answer health checks with NOT_SERVING."""
        self._sessions.begin()
        await self._health.enter_graceful_shutdown()

    async def stop(self) -> int:
        """Let sessions move to other servers. Then accept no more calls, let the steps in flight finish, and end.

        Returns:
            The number of steps and admissions that are still running after their time.
        """
        deadline = time.monotonic() + self._config.stop_seconds
        await self.leave()
        moved = deadline - _DRAIN_SECONDS
        await self._sessions.refresh()
        while self._sessions.movable_sessions and time.monotonic() < moved:  # noqa: ASYNC110 - they end in processes
            await asyncio.sleep(_POLL_SECONDS)
        return await self._close(min(_DRAIN_SECONDS, max(0.0, deadline - time.monotonic())))

    async def _close(self, seconds: float) -> int:
        """Close all parts, also after a start that has failed.

        Args:
            seconds: how long steps in flight may take.

        Returns:
            The number of steps and admissions that are still running.
        """
        deadline = time.monotonic() + seconds
        if self._watching is not None:
            self._watching.cancel()
        self._processing.drain()
        if self._grpc is not None:
            if self._watching is None:
                await self._grpc.start()  # without a start, its `stop` leaves the ports bound
            await self._grpc.stop(seconds)
        if self._status_pages is not None:
            await asyncio.to_thread(self._status_pages.close)
        if self._beating is not None:
            self._beating.cancel()  # after the pages: a server that drains is alive
        running = await self._processing.wait(deadline - time.monotonic())
        if self._local_socket is not None:
            await asyncio.to_thread(self._local_socket.close, max(0.0, deadline - time.monotonic()))
        await self._reports.refresh(_REPORT_SECONDS)  # the last metrics and spans
        await self._processes.close(_PROCESS_SECONDS)
        if self._cpu_regime.cgroups is not None:
            await asyncio.to_thread(self._cpu_regime.cgroups.close)
        self._zygote.close()
        running += self._threads.close()
        self._workers.close()
        if self._poller is not None:
            # After the calls, because they may have quarantined a processor.
            await asyncio.to_thread(self._poller.close)
        self._store.close()
        await asyncio.to_thread(tracing.shut_down, _EXPORT_SECONDS)
        return running
