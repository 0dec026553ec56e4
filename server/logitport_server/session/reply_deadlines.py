"""The deadlines that a server states when it opens a session: a client can tell a stopped server from a slow one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from logitport_server.session.step_time import longest_wait

if TYPE_CHECKING:
    from logitport_server.config import ServerConfig


class ReplyDeadlines(NamedTuple):
    """Longest times that processors may take, in seconds; 0 if there is no limit.

    Attributes:
        step: for the calls of one step, in all its frames together.
        add: for admitting one request.
    """

    step: float
    add: float

    @classmethod
    def of(cls, config: ServerConfig, *, only_builtins: bool) -> ReplyDeadlines:
        """Return the deadlines of a server.

        Args:
            config: the options of the server.
            only_builtins: whether all installed processors are built-ins.
        """
        runs_shipped_code = config.enable_custom_logit_processor and not config.has_workers
        if runs_shipped_code or not only_builtins:
            return cls(0.0, 0.0)  # such code runs in this process, where nothing limits its time
        return cls(longest_wait(config.processor_timeout_seconds), config.load_timeout_seconds)
