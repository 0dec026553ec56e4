"""Configures a hook from environment variables, because engines create hooks without arguments."""

from __future__ import annotations

import functools
import logging
import math
import os
import weakref
from typing import TYPE_CHECKING

from logitport import ops
from logitport.client.client import Client
from logitport.client.embedded_server import TARGET as EMBEDDED
from logitport.client.embedded_server import is_embedded, programs_folder
from logitport.errors import InvalidArgument
from logitport.integrations.common.chains import permitted_kinds, read_chain
from logitport.integrations.common.request_keys import permitted_keys
from logitport.integrations.common.tenants import tenant_function
from logitport.servers.connection import Tls
from logitport.system.variables import OF_THE_SDK, unread

if TYPE_CHECKING:
    from logitport.integrations.common.chains import Chain

logger = logging.getLogger(__name__)

TARGET, TLS, SERVER_NAME = "LOGITPORT_TARGET", "LOGITPORT_TLS", "LOGITPORT_TLS_SERVER_NAME"
DEFAULT_PROCESSORS = "LOGITPORT_DEFAULT_PROCESSORS"
STEP_TIMEOUT = "LOGITPORT_STEP_TIMEOUT_SECONDS"
REPORT = "LOGITPORT_REPORT"

# Names of the files in a Kubernetes secret of type kubernetes.io/tls, as cert-manager writes it.
_TLS_FILES = ("ca.crt", "tls.crt", "tls.key")

# All requests of an engine wait for a step. The default exceeds the time that a server allows a chain to load (twice
# 10 s by default), so that a slow chain fails only its own request. A shorter timeout would lose the whole session.
_STEP_SECONDS = 25.0
_MIN_STEP_SECONDS = 0.001

# How long a step waits for a service that restarts, unless the operator sets how long a step may wait. All requests of
# the engine wait with it, so the default is little more than a restart takes.
_RECONNECT_SECONDS = 15.0


def client() -> Client:
    """Return a client of the servers at LOGITPORT_TARGET, which has any form of `Client`'s target that is text.

    Without LOGITPORT_TARGET, or if it is "embedded", its sessions run in this process; see `Client.embedded`.
    LOGITPORT_TOKEN authenticates it. LOGITPORT_TLS or LOGITPORT_TLS_SERVER_NAME enables TLS. The timeout is
    LOGITPORT_STEP_TIMEOUT_SECONDS, by default 25 s.

    Raises:
        InvalidArgument: a variable is invalid.
        PayloadError: a plugin of ops cannot be imported.
        ServerUnavailable: a document or a name in LOGITPORT_TARGET cannot be read now.
    """
    warn_about_misspelled()
    permitted_kinds()
    permitted_keys()
    ops.check_variable()
    tenant_function()
    target = os.environ.get(TARGET) or EMBEDDED
    if is_embedded(target):
        _log_embedded(target, chosen=TARGET in os.environ)
    return Client(target, tls=_tls(), timeout=_step_seconds(_STEP_SECONDS))


def check_target() -> None:
    """Raise InvalidArgument if LOGITPORT_TARGET misspells "embedded", or names a folder that does not exist."""
    target = os.environ.get(TARGET) or EMBEDDED
    folder = programs_folder(target) if is_embedded(target) else None
    if folder is not None and not folder.is_dir():
        raise InvalidArgument(f"{TARGET}: {folder} is no folder; name one with programs, or leave it out")


def client_of(hook: object, given: Client | None) -> Client:
    """Return the client of a hook: the given one, or one from the variables, which is closed with the hook.

    Raises the errors of `client`.
    """
    if given is not None:
        return given
    made = client()
    weakref.finalize(hook, made.close)
    return made


@functools.cache
def _log_embedded(target: str, *, chosen: bool) -> None:
    """Log, once per process, that there is no server: as a warning, which engines show, if that was not chosen."""
    logger.log(
        logging.INFO if chosen else logging.WARNING,
        "logitport is embedded (target %r): built-ins, programs and installed classes run in this process%s",
        target,
        "" if chosen else f", because {TARGET} is not set; set it to a server's address to use one, or to {EMBEDDED!r}",
    )


@functools.cache
def warn_about_misspelled() -> None:
    """Log, once per process, each variable with a name close to one that the SDK reads."""
    for one in unread(OF_THE_SDK):
        if one.nearest:  # without a similar name it may be a server's variable: both can share one environment
            logger.warning("%s", one)


def default_chain() -> Chain:
    """Return the default chain: LOGITPORT_DEFAULT_PROCESSORS, a JSON list of [processor, parameters].

    Raises:
        InvalidArgument: the variable holds no such list.
    """
    return read_chain(os.environ.get(DEFAULT_PROCESSORS) or "[]", DEFAULT_PROCESSORS)


def reconnect_seconds() -> float:
    """Return how long a step waits for a lost service: LOGITPORT_STEP_TIMEOUT_SECONDS, by default 15 s.

    Raises:
        InvalidArgument: the variable is not a number from 0.001 to 3600.
    """
    return _step_seconds(_RECONNECT_SECONDS)


def reports() -> str:
    """Return what an engine's responses show of the reports of requests: LOGITPORT_REPORT.

    Returns:
        "on", the default, for all but the parameters of processors; "full" for all; "" for nothing, which is "off".

    Raises:
        InvalidArgument: the variable has another value.
    """
    value = os.environ.get(REPORT) or "on"
    if value not in {"on", "full", "off"}:
        raise InvalidArgument(f"{REPORT} is {value!r}; set it to on, full or off")
    return "" if value == "off" else value


def _tls() -> Tls | None:
    """Read LOGITPORT_TLS: the file of the authority, or a folder with the files of a Kubernetes secret for TLS."""
    path, server_name = os.environ.get(TLS), os.environ.get(SERVER_NAME) or ""
    if not path:
        return Tls(server_name=server_name) if server_name else None
    if not os.path.isdir(path):
        return Tls(path, server_name=server_name)
    files = [os.path.join(path, name) for name in _TLS_FILES]
    ca, cert, key = (file if os.path.exists(file) else None for file in files)
    if not (ca or cert or key):
        raise InvalidArgument(f"{TLS}: the folder {path} has none of {', '.join(_TLS_FILES)}; add ca.crt")
    return Tls(ca, cert, key, server_name)


def _step_seconds(default: float) -> float:
    value = os.environ.get(STEP_TIMEOUT) or default
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not _MIN_STEP_SECONDS <= seconds <= 3600.0:
        raise InvalidArgument(
            f"{STEP_TIMEOUT} is {value!r}; set it to seconds, {_MIN_STEP_SECONDS:g} to 3600, such as {default:g}"
        )
    return seconds
