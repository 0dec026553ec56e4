"""Authorization of calls: authenticates the caller, and checks scopes and quotas, before a message is read."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import nullcontext
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from logitport.errors import AccessDenied, LogitportError
from logitport_server.access import message_parsing
from logitport_server.access.byte_budgets import ByteBudgets
from logitport_server.access.grpc_errors import statuses
from logitport_server.access.open_calls import OpenCalls, read_message
from logitport_server.access.spans import call_span
from logitport_server.access.stalls import stall_limit
from logitport_session.resources.log_limit import LogLimit
from logitport_session.trust.principals import ADMIN, APPLY, REGISTER

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from logitport_server.access.authentication import Authenticator
    from logitport_server.access.grpc_errors import Context
    from logitport_server.access.quotas import Quotas
    from logitport_server.metrics import Metrics
    from logitport_session.trust.principals import Principal

logger = logging.getLogger(__name__)

_SESSION = "/logitport.v1.LogitProcessing/Session"

# A call needs one of the scopes of its method. Reflection needs authentication, but no scope.
_SCOPES = {
    "/logitport.v1.LogitProcessing/Apply": (APPLY,),
    "/logitport.v1.LogitProcessing/GetLoad": (APPLY,),
    _SESSION: (APPLY,),
    "/logitport.v1.ProcessorRegistry/Register": (REGISTER,),
    "/logitport.v1.ProcessorRegistry/Get": (APPLY, REGISTER, ADMIN),
    "/logitport.v1.ProcessorRegistry/List": (APPLY, REGISTER, ADMIN),
    "/logitport.v1.ProcessorRegistry/Delete": (REGISTER, ADMIN),
    "/logitport.v1.ProcessorRegistry/GetOutput": (APPLY, REGISTER),
    "/logitport.v1.Admin/GetStatus": (ADMIN,),
    "/logitport.v1.Admin/ListSessions": (ADMIN,),
    "/logitport.v1.Admin/Drain": (ADMIN,),
    "/logitport.v1.Admin/Unquarantine": (ADMIN,),
}
_ANY_SCOPE = "/grpc.reflection."

# Messages of the maximum size of one principal that the server reads at the same time.
_MAX_LARGEST_CALLS = 4


class AuthorizedCall:
    """An authorized call. It counts for the quotas until the last of its resources has ended. Thread-safe.

    Args:
        principal: the caller.
        end: releases the call's share of the quotas.

    Attributes:
        principal: as the argument.
        work: the call's work on a thread, or None. It continues if the call is cancelled.
    """

    def __init__(self, principal: Principal, end: Callable[[], None]) -> None:
        self.principal = principal
        self.work: Future[Any] | None = None
        self._end = end
        self._lock = threading.Lock()
        self._resources = 0

    def hold(self) -> Callable[..., None]:
        """Count a resource that may outlive the call's coroutine, such as a thread. Not after the last one has ended.

        Returns:
            A function to call once, on any thread, when the resource has ended. It ignores arguments, as a callback.
        """
        with self._lock:
            self._resources += 1
        return self._release

    def _release(self, *_: object) -> None:
        with self._lock:
            self._resources -= 1
            is_last = not self._resources
        if is_last:
            self._end()


# The call that the running coroutine serves.
current_call: ContextVar[AuthorizedCall] = ContextVar("current_call")


class Guard(grpc.aio.ServerInterceptor):
    """Authorizes calls, and ends running calls when their caller's access is revoked or changed.

    Args:
        authenticator: authenticates the callers.
        quotas: limits of each principal.
        metrics: counts refused calls.
        max_message_bytes: the size limit of a message.
    """

    def __init__(self, authenticator: Authenticator, quotas: Quotas, metrics: Metrics, max_message_bytes: int) -> None:
        self._authenticator = authenticator
        self._quotas = quotas
        self._metrics = metrics
        self._open_calls = OpenCalls()
        self._max_message_bytes = max_message_bytes
        self._large_calls = ByteBudgets(_MAX_LARGEST_CALLS * max_message_bytes)
        # All callers that have not authenticated share one line a second: their number has no limit.
        self._log_limit = LogLimit()
        self._running: dict[asyncio.Task[Any], tuple[Principal, Callable[[], Principal]]] = {}
        self._ending: dict[asyncio.Task[Any], LogitportError] = {}

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler: Any = await continuation(handler_call_details)
        method: str = handler_call_details.method
        is_open = method == message_parsing.OPEN
        if handler is None or (method.startswith(message_parsing.HEALTH) and not is_open):
            return None  # the status is UNIMPLEMENTED
        serve = self._serve_open if is_open else self._serve

        # Unary calls are handled as streams of one message, because gRPC reads a stream's messages only on request.
        # For a unary handler, gRPC would read the message before this interceptor could refuse the call.
        async def authorized(requests: object, context: Context) -> None:
            async with statuses(context):
                await serve(handler, method, requests, context)

        transport = "grpc" if method == _SESSION else "unary"
        return grpc.stream_stream_rpc_method_handler(
            authorized,
            message_parsing.deserializer(method, handler.request_deserializer, self._metrics.received[transport]),
            message_parsing.serializer(handler.response_serializer, self._metrics.sent[transport]),
        )

    def refresh(self) -> None:
        """End the running calls of callers if their access has been revoked or changed: a session can last for days."""
        if not self._authenticator.refresh():
            return
        for task, (principal, authenticate) in list(self._running.items()):
            try:
                if authenticate() == principal:
                    continue
                changed: LogitportError = AccessDenied(
                    f"the scopes or the name of {principal.display_name} have changed; call again",
                    code=AccessDenied.NOT_AUTHENTICATED,
                )
            except LogitportError as error:
                changed = error
            self._ending[task] = changed
            task.cancel()

    async def _serve_open(self, handler: Any, method: str, requests: object, context: Context) -> None:  # noqa: ARG002
        try:
            await self._open_calls.answer(handler, context)
        except LogitportError as error:
            self._metrics.refusals.call(error)  # not logged: callers without a token could fill the log
            raise

    async def _serve(self, handler: Any, method: str, requests: object, context: Context) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine always runs in one
        call = await self._authorize(task, method, context)
        release = call.hold()
        current_call.set(call)
        # A span is exported when it ends. A session may last for days, so `SessionStream` makes spans of its parts.
        span = nullcontext() if method == _SESSION else call_span(method, context, call.principal)
        try:
            with span:
                await self._answer(handler, method, requests, context)
        except asyncio.CancelledError:
            if task in self._ending:
                raise self._ending[task] from None
            raise
        finally:
            self._running.pop(task)
            self._ending.pop(task, None)
            work, call.work = call.work, None
            if work is None:
                release()
            else:
                work.add_done_callback(release)

    async def _authorize(self, task: asyncio.Task[Any], method: str, context: Context) -> AuthorizedCall:
        """Authenticate the caller and check its quotas. Raises AccessDenied, LimitExceeded."""
        authenticate = partial(self._authenticate, method, context)
        fields = {"event": "call_refused", "method": method}
        try:
            principal = authenticate()
            await self._quotas.check_rate(principal)
            begin = self._quotas.begin_session if method == _SESSION else self._quotas.begin_call
            # Authenticate again: access may have changed during the await. From here on `refresh` covers this call.
            call = AuthorizedCall(authenticate(), begin(principal))
        except LogitportError as error:
            name = self._name_of(context)
            self._metrics.refusals.call(error, name)
            unlogged = self._log_limit.take(name)
            if unlogged is not None:
                before = f"; {unlogged} before that were not logged" if unlogged else ""
                peer = context.peer()
                extra = {**fields, "error": type(error).__name__, "calls": 1 + unlogged}
                if name:
                    extra["principal"] = name
                logger.info("refused %s from %s: %s%s", method, peer, error, before, extra=extra)
            raise
        self._running[task] = (call.principal, authenticate)
        return call

    def _authenticate(self, method: str, context: Context) -> Principal:
        metadata: Any = context.invocation_metadata() or ()
        principal = self._authenticator.authenticate(metadata, context.auth_context())
        scopes = _SCOPES.get(method, ())
        if not method.startswith(_ANY_SCOPE) and principal.scopes.isdisjoint(scopes):
            raise AccessDenied(
                f"{principal.display_name} may not call {method.rpartition('/')[2]}, which needs the scope "
                f"{' or '.join(map(repr, scopes))}; ask the server's operator for it"
            )
        return principal

    def _name_of(self, context: Context) -> str:
        """The name of a caller that was refused; "" if it is not authenticated."""
        try:
            return self._authenticator.authenticate(context.invocation_metadata() or (), context.auth_context()).name
        except LogitportError:
            return ""

    async def _answer(self, handler: Any, method: str, requests: object, context: Context) -> None:
        if handler.stream_stream is not None:
            await _stream(handler.stream_stream, requests, context)
            return
        with self._large_calls.room(current_call.get().principal.name) as room:
            # The size is known only after the message was read.
            if method in message_parsing.LARGE and (waiter := room.take(self._max_message_bytes)) is not None:
                await waiter
            message = await read_message(context)
            if isinstance(message, message_parsing.Unparsed):
                room.keep(len(message.data))
            reply = await handler.unary_unary(message, context)
            del message
            with stall_limit("the reply was not received"):
                await context.write(reply)


async def _stream(behaviour: Callable[..., Any], requests: object, context: Context) -> None:
    """Run the handler of a stream: an async generator of replies, or a coroutine that writes them."""
    replies = behaviour(requests, context)
    if hasattr(replies, "__aiter__"):
        async for reply in replies:
            await context.write(reply)
    else:
        await replies
