"""How an engine's hook finds the service: by the environment, for engines start their hooks without arguments."""

from __future__ import annotations

import functools
import logging
import os
from typing import TYPE_CHECKING

from logitport.calls import DEFAULT_TIMEOUT
from logitport.client import Client
from logitport.connection import Tls
from logitport.errors import InvalidArgument
from logitport.integrations.asked import read_chain
from logitport.variables import OF_THE_SDK, unread

if TYPE_CHECKING:
    from logitport.integrations.batch import Chain

logger = logging.getLogger(__name__)

TARGET, CA, CERT, KEY = "LOGITPORT_TARGET", "LOGITPORT_TLS_CA", "LOGITPORT_TLS_CERT", "LOGITPORT_TLS_KEY"
DEFAULT_PROCESSORS = "LOGITPORT_DEFAULT_PROCESSORS"


def client(timeout: float = DEFAULT_TIMEOUT) -> Client:
    """A client of the server that LOGITPORT_TARGET names.

    LOGITPORT_TOKEN says who calls; LOGITPORT_TLS_CA, or LOGITPORT_TLS_CERT and LOGITPORT_TLS_KEY, make the connection
    an encrypted one.

    Args:
        timeout: as of `Client`.

    Raises:
        InvalidArgument: LOGITPORT_TARGET is not set, or what is wrong with the others.
    """
    warn_of_misspelt()
    target = os.environ.get(TARGET)
    if not target:
        raise InvalidArgument(f"{TARGET} is not set; set it to the server's address, such as 127.0.0.1:50051")
    files = [os.environ.get(name) or None for name in (CA, CERT, KEY)]
    return Client(target, tls=Tls(*files) if any(files) else None, timeout=timeout)


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
