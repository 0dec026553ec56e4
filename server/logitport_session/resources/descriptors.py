"""File descriptors of this process: their limit, and the error when there are no more."""

from __future__ import annotations

import errno
import logging
import resource
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from logitport.errors import LimitExceeded
from logitport_session.resources.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

# No descriptor is free: in the process, and on the whole machine.
_SHORTAGES = (errno.EMFILE, errno.ENFILE)

_MAX_CHAIN_LENGTH = 8
_log_limit = LogLimit()


def limit() -> int:
    """The number of descriptors that the process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> None:
    """Raise the soft limit to the hard limit."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:  # macOS refuses its own hard limit
        logger.warning("the limit of open files stays at %d: %s", before, error)
    else:
        logger.info("the limit of open files was raised from %d to %d", before, limit())


def shortage() -> LimitExceeded:
    """The error of an action that needs a descriptor while none is free. It is not the fault of any caller."""
    _log_limit.warn(
        logger,
        "",
        "no descriptor is free: this process may have %d open (ulimit -n, LimitNOFILE= of systemd), and the machine "
        "has a limit of its own; calls and sessions that need one are refused",
        limit(),
    )
    return LimitExceeded(
        "the server is out of file descriptors; try again later, or have its operator raise the limit of open files "
        "(ulimit -n, or LimitNOFILE= of systemd)"
    )


def is_shortage(error: BaseException | None) -> bool:
    """Whether the error is, or was caused by, a system call that found no free descriptor in this process."""
    for _ in range(_MAX_CHAIN_LENGTH):
        if error is None:
            break
        if isinstance(error, OSError) and error.errno in _SHORTAGES:
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def reported() -> Iterator[None]:
    """Context that raises LimitExceeded if the server has no descriptor for the system calls inside."""
    try:
        yield
    except OSError as error:
        if not is_shortage(error):
            raise
        raise shortage() from error
