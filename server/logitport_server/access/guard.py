"""The gate before every call: who calls, whether they may, and how much; only then is a message read."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from logitport.errors import InvalidArgument, LimitExceeded, LogitportError, NotAuthenticated, NotPermitted
from logitport_server.access.grpc_errors import statuses
from logitport_server.principals import ADMIN, APPLY, REGISTER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from logitport_server.access.authentication import Authenticator
    from logitport_server.access.grpc_errors import Context
    from logitport_server.access.quotas import Quotas
    from logitport_server.metrics import Metrics
    from logitport_server.principals import Principal

logger = logging.getLogger(__name__)

_SESSION = "/logitport.v1.LogitProcessing/Session"

# The scopes of which a call takes one. Reflection takes no scope, but a caller who is known.
_SCOPES = {
    "/logitport.v1.LogitProcessing/Apply": (APPLY,),
    _SESSION: (APPLY,),
    "/logitport.v1.ProcessorRegistry/Register": (REGISTER,),
    "/logitport.v1.ProcessorRegistry/Get": (APPLY, REGISTER, ADMIN),
    "/logitport.v1.ProcessorRegistry/List": (APPLY, REGISTER, ADMIN),
    "/logitport.v1.ProcessorRegistry/Delete": (REGISTER, ADMIN),
    "/logitport.v1.ProcessorRegistry/Unquarantine": (ADMIN,),
}
_ANY_SCOPE = "/grpc.reflection."
# Load balancers and orchestrators ask for it, and have no token.
_OPEN = "/grpc.health."

_REFRESH_SECONDS = 1.0


@dataclass(eq=False)
class Call:
    """A call that was admitted.

    Attributes:
        principal: who calls.
        end: gives back its share of the quotas.
        work: what runs for it on a thread, and goes on where the call itself is given up.
    """

    principal: Principal
    end: Callable[[], None]
    work: Future[Any] | None = None


# The call that the running coroutine serves.
current_call: ContextVar[Call] = ContextVar("current_call")


class Guard(grpc.aio.ServerInterceptor):
    """Admits calls, and ends those whose caller is known no more.

    Args:
        authenticator: knows the callers.
        quotas: what each may ask for.
        stall_seconds: how long a client may take to send a message, or to take one.
        metrics: is told of what is refused.
    """

    def __init__(self, authenticator: Authenticator, quotas: Quotas, stall_seconds: float, metrics: Metrics) -> None:
        self._authenticator = authenticator
        self._quotas = quotas
        self._stall_seconds = stall_seconds
        self._metrics = metrics
        self._running: dict[asyncio.Task[Any], tuple[Principal, Callable[[], Principal]]] = {}
        self._ending: dict[asyncio.Task[Any], LogitportError] = {}

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler: Any = await continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None or method.startswith(_OPEN):
            return handler

        # On the wire a call of one message is a stream of one, and what is a stream is read when it is asked for.
        async def admitted(messages: object, context: Context) -> None:
            async with statuses(context):
                await self._serve(handler, method, messages, context)

        return grpc.stream_stream_rpc_method_handler(
            admitted, handler.request_deserializer, handler.response_serializer
        )

    async def watch(self) -> None:
        """Refresh once a second, for ever."""
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            self.refresh()

    def refresh(self) -> None:
        """End the calls of those who are known no more, or may do other things now: a session can last for days."""
        if not self._authenticator.refresh():
            return
        for task, (principal, authenticate) in list(self._running.items()):
            try:
                if authenticate() == principal:
                    continue
                changed: LogitportError = NotAuthenticated(
                    f"what {principal.display_name} may do has changed; call again"
                )
            except LogitportError as error:
                changed = error
            self._ending[task] = changed
            task.cancel()

    async def _serve(self, handler: Any, method: str, messages: object, context: Context) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine always runs in one
        call = await self._admit(task, method, context)
        current_call.set(call)
        try:
            await self._answer(handler, messages, context)
        except asyncio.CancelledError:
            if task in self._ending:
                raise self._ending[task] from None
            raise
        finally:
            self._running.pop(task)
            self._ending.pop(task, None)
            if call.work is None:
                call.end()
            else:
                call.work.add_done_callback(lambda _: call.end())

    async def _admit(self, task: asyncio.Task[Any], method: str, context: Context) -> Call:
        """A call that may go on. Raises NotAuthenticated, NotPermitted, LimitExceeded."""
        authenticate = partial(self._authenticate, method, context)
        try:
            principal = authenticate()
            await self._quotas.check_rate(principal)
            begin = self._quotas.begin_session if method == _SESSION else self._quotas.begin_call
            # Asked once more: who is known may have changed while this waited, and from here on `refresh` looks.
            call = Call(authenticate(), begin(principal))
        except LogitportError as error:
            self._metrics.call_refused(error)
            logger.info("%s from %s was refused: %s", method, context.peer(), error)
            raise
        self._running[task] = (call.principal, authenticate)
        return call

    def _authenticate(self, method: str, context: Context) -> Principal:
        metadata: Any = context.invocation_metadata() or ()
        principal = self._authenticator.authenticate(metadata, context.auth_context())
        scopes = _SCOPES.get(method, ())
        if not method.startswith(_ANY_SCOPE) and principal.scopes.isdisjoint(scopes):
            raise NotPermitted(
                f"{principal.display_name} may not call {method.rpartition('/')[2]}, which takes the scope "
                f"{' or '.join(map(repr, scopes))}; the server's operator grants scopes"
            )
        return principal

    async def _answer(self, handler: Any, messages: object, context: Context) -> None:
        if handler.stream_stream is not None:
            await _stream(handler.stream_stream, messages, context)
            return
        with stalling(self._stall_seconds, "the call's message did not arrive"):
            message = await context.read()
        if message is grpc.aio.EOF:
            raise InvalidArgument("the call brought no message")
        reply = await handler.unary_unary(message, context)
        with stalling(self._stall_seconds, "the reply was not taken"):
            await context.write(reply)


async def _stream(behaviour: Callable[..., Any], messages: object, context: Context) -> None:
    """Run a handler that writes its replies, or one that yields them."""
    answering = behaviour(messages, context)
    if hasattr(answering, "__aiter__"):
        async for reply in answering:
            await context.write(reply)
    else:
        await answering


@contextmanager
def stalling(seconds: float, what: str) -> Iterator[None]:
    """Raises LimitExceeded, in the task that runs it, where what is awaited inside takes longer."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine always runs in one
    stalled = False

    def stall() -> None:
        nonlocal stalled
        stalled = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(seconds, stall)
    try:
        yield
    except asyncio.CancelledError:
        if not stalled:
            raise
        raise LimitExceeded(f"{what} within {seconds:g} s; send less at once, or raise --stall-seconds") from None
    finally:
        timer.cancel()
