"""The gRPC service Admin."""

from __future__ import annotations

import logging
import re
from functools import partial
from typing import TYPE_CHECKING

from logitport.errors import InvalidArgument
from logitport_proto import admin_pb2, admin_pb2_grpc
from logitport_server.access import current_call
from logitport_server.transports.threads import on_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from logitport.core.fair_threads import FairThreads
    from logitport_server.access.grpc_errors import Context
    from logitport_server.registry.registry import Registry
    from logitport_server.transports.departures import Departures

logger = logging.getLogger(__name__)

_MAX_PAGE_SIZE = 1000
_PAGE_TOKEN = re.compile(r"[0-9]{1,18}")


class AdminService(admin_pb2_grpc.AdminServicer):
    """The calls of Admin.

    Args:
        departures: the server's sessions.
        leave: makes health checks answer NOT_SERVING, and states to all sessions that they should move.
        describe: describes the server.
        registry: lifts quarantines.
        threads: run the calls that may wait.
    """

    def __init__(
        self,
        departures: Departures,
        leave: Callable[[], Awaitable[None]],
        describe: Callable[[], admin_pb2.GetStatusResponse],
        registry: Registry,
        threads: FairThreads,
    ) -> None:
        self._departures = departures
        self._leave = leave
        self._describe = describe
        self._registry = registry
        self._threads = threads

    async def GetStatus(self, request: admin_pb2.GetStatusRequest, context: Context) -> admin_pb2.GetStatusResponse:
        return await on_thread(self._threads, self._describe)

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
        return await on_thread(self._threads, partial(self._list_sessions, int(request.page_token or 0), size))

    async def Drain(self, request: admin_pb2.DrainRequest, context: Context) -> admin_pb2.DrainResponse:
        if not self._departures.is_draining:
            caller = current_call.get().principal
            fields = {"event": "drain_begun", "principal": caller.name}
            logger.info("%s drains this server", caller.display_name, extra=fields)
            await self._leave()
        return admin_pb2.DrainResponse(
            sessions=self._departures.sessions, movable_sessions=self._departures.movable_sessions
        )

    async def Unquarantine(
        self, request: admin_pb2.UnquarantineRequest, context: Context
    ) -> admin_pb2.UnquarantineResponse:
        unquarantine = partial(self._registry.unquarantine, request.processor, current_call.get().principal)
        return await on_thread(self._threads, unquarantine)

    def _list_sessions(self, after: int, size: int) -> admin_pb2.ListSessionsResponse:
        """Return the page of sessions after the one with this number."""
        found = self._departures.opened_after(after, size + 1)
        page, reply = found[:size], admin_pb2.ListSessionsResponse()
        descriptions = [session.describe for session in page]  # None for those that end meanwhile
        reply.sessions.extend(describe() for describe in descriptions if describe is not None)
        if len(found) > size:
            reply.next_page_token = str(page[-1].number)
        return reply
