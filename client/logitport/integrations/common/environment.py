"""How an engine's hook finds the service: by the environment, for engines start their hooks without arguments."""

from __future__ import annotations

import functools
import logging
import math
import os
from typing import TYPE_CHECKING

from logitport.client import Client
from logitport.connection import Tls
from logitport.errors import InvalidArgument
from logitport.integrations.common.chains import read_chain
from logitport.variables import OF_THE_SDK, unread

if TYPE_CHECKING:
    from logitport.integrations.common.history_batch import Chain

logger = logging.getLogger(__name__)

TARGET, CA, CERT, KEY = "LOGITPORT_TARGET", "LOGITPORT_TLS_CA", "LOGITPORT_TLS_CERT", "LOGITPORT_TLS_KEY"
DEFAULT_PROCESSORS = "LOGITPORT_DEFAULT_PROCESSORS"
STEP_TIMEOUT = "LOGITPORT_STEP_TIMEOUT_SECONDS"

# All of an engine's requests wait for a step. It is long enough for a chain that takes all of the time that a server
# gives it to load, which is twice 10 s by default: otherwise the session would be lost, and not that request alone.
_STEP_SECONDS = 25.0


def client() -> Client:
    """A client of the server that LOGITPORT_TARGET names.

    LOGITPORT_TOKEN says who calls; LOGITPORT_TLS_CA, or LOGITPORT_TLS_CERT and LOGITPORT_TLS_KEY, make the connection
    an encrypted one. It waits for an answer as long as LOGITPORT_STEP_TIMEOUT_SECONDS says, or 25 s.

    Raises:
        InvalidArgument: LOGITPORT_TARGET is not set, or what is wrong with the others.
    """
    warn_of_misspelt()
    target = os.environ.get(TARGET)
    if not target:
        raise InvalidArgument(f"{TARGET} is not set; set it to the server's address, such as 127.0.0.1:50051")
    files = [os.environ.get(name) or None for name in (CA, CERT, KEY)]
    tls = Tls(*files) if any(files) else None
    return Client(target, tls=tls, timeout=_step_seconds())


@functools.cache
def warn_of_misspelt() -> None:
    """Log, once a process, which variables are named almost as one that is read here, but not quite."""
    for one in unread(OF_THE_SDK):
        if one.nearest:  # what is like none may be a server's, in an environment that both are given
            logger.warning("%s", one)


def default_chain() -> Chain:
    """What requests get that ask for nothing: LOGITPORT_DEFAULT_PROCESSORS, a JSON list of [processor, parameters].

    Raises:
        InvalidParams: it is no such list.
    """
    return read_chain(os.environ.get(DEFAULT_PROCESSORS) or "[]", DEFAULT_PROCESSORS)


def _step_seconds() -> float:
    given = os.environ.get(STEP_TIMEOUT) or _STEP_SECONDS
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0.001 <= seconds <= 3600.0:
        raise InvalidArgument(f"{STEP_TIMEOUT} is {given!r}; set it to seconds, 0.001 to 3600, such as 25")
    return seconds
