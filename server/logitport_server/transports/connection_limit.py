"""The number of connections that the limit of open files can hold, in addition to those of sessions and workers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from logitport_server.shared_memory.regions import DESCRIPTORS_PER_REGION, MAX_REGIONS
from logitport_server.transports.local_socket import MAX_HANDSHAKES

if TYPE_CHECKING:
    from logitport_server.config import ServerConfig

logger = logging.getLogger(__name__)

# Listening sockets, event loops, the log, the store, the metrics and libraries.
_OWN = 128
# A worker's connection and pidfd, and memory that it shares with the server.
_PER_WORKER = 2 + DESCRIPTORS_PER_REGION
# A session's local connection and regions.
_PER_SESSION = 1 + MAX_REGIONS * DESCRIPTORS_PER_REGION
# Connections have no owner before a call, so they cannot be limited by principal. An engine has one connection; the
# others are for engines that wait for a session, for commands and for health checks. Each takes memory.
_CONNECTIONS_PER_SESSION = 4
# A lower number of sessions must not let a few idle connections keep all others out.
_MIN_CONNECTIONS = 1024


def connection_limit(config: ServerConfig, descriptors: int) -> int:
    """The number of connections to accept.

    Args:
        config: the server's options.
        descriptors: the number of descriptors that the process may have open.

    Returns:
        `_CONNECTIONS_PER_SESSION` for each session, at least `_MIN_CONNECTIONS`. Less if they would leave too few
        descriptors for sessions and workers; then a warning is logged. At least a quarter of the descriptors is for
        connections.
    """
    reserve = _OWN
    if config.local_transport:
        reserve += MAX_HANDSHAKES + config.max_sessions * _PER_SESSION
    if config.has_workers:
        reserve += config.max_workers * _PER_WORKER
    most = max(_MIN_CONNECTIONS, _CONNECTIONS_PER_SESSION * config.max_sessions)
    if most + reserve <= descriptors:
        return most
    accepted = max(1, min(most, max(descriptors - reserve, descriptors // 4)))
    logger.warning(
        "the limit of %d open files is too low for %d connections and the %d files that --max-sessions-per-principal "
        "and --max-workers may need: %d connections are accepted; raise the limit to %d (ulimit -n, or LimitNOFILE= "
        "of systemd), or lower these options",
        descriptors,
        most,
        reserve,
        accepted,
        most + reserve,
    )
    return accepted
