"""The gRPC service Admin."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from logitport_proto import admin_pb2, admin_pb2_grpc
from logitport_server.access import current_call

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from logitport_server.access.grpc_errors import Context
    from logitport_server.transports.departures import Departures

logger = logging.getLogger(__name__)


class AdminService(admin_pb2_grpc.AdminServicer):
    """The calls of Admin.

    Args:
        departures: the server's sessions.
        leave: makes health checks answer NOT_SERVING, and asks all sessions to move.
    """

    def __init__(self, departures: Departures, leave: Callable[[], Awaitable[None]]) -> None:
        self._departures = departures
        self._leave = leave

    async def Drain(self, request: admin_pb2.DrainRequest, context: Context) -> admin_pb2.DrainResponse:
        if not self._departures.is_draining:
            caller = current_call.get().principal.display_name
            logger.info("%s drains this server", caller, extra={"event": "drain_begun", "principal": caller})
            await self._leave()
        return admin_pb2.DrainResponse(
            sessions=self._departures.sessions, movable_sessions=self._departures.movable_sessions
        )
