"""The span of a call, by the semantic conventions for RPC.

Source: https://opentelemetry.io/docs/specs/semconv/rpc/grpc/.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from logitport.errors import LogitportError, status_name
from logitport_session.telemetry import tracing
from logitport_session.telemetry.scope import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport_server.access.grpc_errors import Context
    from logitport_session.trust.principals import Principal

_STATUS = "rpc.response.status_code"


def rpc_attributes(method: str) -> dict[str, str]:
    """Attributes of a call, or of a frame of a session.

    Args:
        method: as gRPC names it, "/package.Service/Method".
    """
    return {"rpc.system.name": "grpc", "rpc.method": method.removeprefix("/")}


@contextmanager
def call_span(method: str, context: Context, principal: Principal) -> Iterator[None]:
    """Context with the span of a unary call. It continues the caller's trace."""
    parent = tracing.of_metadata(context.invocation_metadata())
    attributes = rpc_attributes(method)
    with (
        Scope({"principal": principal.name}),
        tracing.span(attributes["rpc.method"], attributes, parent=parent, is_call=True) as span,
    ):
        try:
            yield
        except LogitportError as error:
            span.set(_STATUS, status_name(error))
            raise
        span.set(_STATUS, "OK")
