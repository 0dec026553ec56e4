"""Finds the tenant of an engine's request: from a header that a gateway sets, or by a function of the operator."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

VARIABLE = "LOGITPORT_TENANT"
# A gateway overwrites this header, so that clients cannot choose it.
HEADER = "x-logitport-tenant"
# Where hooks pass the tenant on to an engine's workers, among a request's parameters. Clients cannot set it: the
# engine's front end overwrites it.
KEY = "logitport_tenant"


@dataclass(frozen=True)
class EngineRequest:
    """Argument of the operator's function.

    Attributes:
        headers: of HTTP, with lowercase names; empty if the request did not come over HTTP.
        params: the engine's own object: vLLM's `SamplingParams`, SGLang's `GenerateReqInput`.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    params: Any = None


def tenant_of(request: EngineRequest) -> str:
    """Return the request's tenant, by LOGITPORT_TENANT or the header X-Logitport-Tenant, or "".

    Raises:
        InvalidArgument: the operator's function raised, or did not return text.
    """
    function = tenant_function()
    if function is None:
        return request.headers.get(HEADER, "")
    try:
        tenant = function(request)
    except Exception as error:
        raise InvalidArgument(
            f"{os.environ[VARIABLE]} ({VARIABLE}) raised {type(error).__name__}: {error}; it must return a tenant"
        ) from error
    if not isinstance(tenant, str):
        raise InvalidArgument(
            f"{os.environ[VARIABLE]} ({VARIABLE}) returned {type(tenant).__name__}; it must return text"
        )
    return tenant


def headers_of(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers of an ASGI scope, with lowercase names; of repeated ones the last.

    Raises:
        InvalidArgument: the header of the tenant is repeated, so that a gateway may have added one to the client's.
    """
    headers: dict[str, str] = {}
    for raw_name, value in pairs:
        name = raw_name.decode("latin-1").lower()
        if name == HEADER and name in headers:
            raise InvalidArgument(
                f"the header {HEADER} is repeated; configure the gateway to overwrite it, not to add another"
            )
        headers[name] = value.decode("latin-1")
    return headers


def tenant_function() -> Callable[[EngineRequest], str] | None:
    """Return the function that LOGITPORT_TENANT names; None without the variable.

    Raises:
        InvalidArgument: the variable is not module:function, or the function cannot be imported.
    """
    path = os.environ.get(VARIABLE)
    return _import(path) if path else None


@functools.lru_cache(maxsize=8)
def _import(path: str) -> Callable[[EngineRequest], str]:
    module, _, name = path.partition(":")
    if not module or not name:
        raise InvalidArgument(f"{VARIABLE} is {path!r}; write module:function, for example our_team.gateway:tenant_of")
    try:
        function = functools.reduce(getattr, name.split("."), import_module(module))
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(f"{VARIABLE} is {path!r}, which cannot be imported: {error}") from error
    if not callable(function):
        raise InvalidArgument(f"{VARIABLE} is {path!r}, which is not a function")
    return function
