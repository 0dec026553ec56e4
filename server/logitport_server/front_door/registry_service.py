"""The gRPC service ProcessorRegistry: passes calls to the registry, together with the calling principal.

What is registered is checked before, in the process of the caller.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from logitport import payload
from logitport.errors import LogitportError
from logitport_proto import common_pb2, registry_pb2, registry_pb2_grpc
from logitport_server.access import Unparsed, current_call
from logitport_server.principal_process.process_messages import Checked
from logitport_server.transports.threads import on_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from logitport.system.fair_threads import FairThreads
    from logitport_server.access.grpc_errors import Context
    from logitport_server.executors.output_log import OutputLog
    from logitport_server.registry.registry import Registry
    from logitport_session.trust.principals import Principal

logger = logging.getLogger(__name__)

# Characters of an error in the log; errors quote what the caller sent.
_MAX_REASON_LENGTH = 500


class RegistryService(registry_pb2_grpc.ProcessorRegistryServicer):
    """The calls of ProcessorRegistry. They run on threads, because the registry may wait for its store.

    Args:
        check: lets the caller's process check a serialized RegisterRequest. Returns a serialized `Checked`.
    """

    def __init__(
        self,
        registry: Registry,
        check: Callable[[bytes, Context], Awaitable[bytes]],
        threads: FairThreads,
        output: OutputLog,
    ) -> None:
        self._registry = registry
        self._check = check
        self._output = output
        self._threads = threads

    async def Register(
        self, request: registry_pb2.RegisterRequest | Unparsed, context: Context
    ) -> registry_pb2.RegisterResponse:
        assert isinstance(request, Unparsed)  # noqa: S101 - see `deserializer`
        principal, message = current_call.get().principal, request.data
        try:
            answer = await self._check(message, context)
            info, name = await on_thread(self._threads, partial(self._register, message, answer, principal))
        except LogitportError as error:
            kind, reason = type(error).__name__, error.message[:_MAX_REASON_LENGTH]
            logger.info(
                "refused a registration by %s: %s: %r",
                principal.display_name,
                kind,
                reason,
                extra={"event": "registration_refused", "principal": principal.name, "error": kind},
            )
            raise
        logger.info(
            "%s registered %s, digest %s, named %s",
            principal.display_name,
            info.class_name or "a processor",
            info.digest,
            name or "nothing",
            extra={
                "event": "processor_registered",
                "principal": principal.name,
                "processor": info.digest,
                "processor_name": name,
            },
        )
        return registry_pb2.RegisterResponse(processor=info, registry_id=self._registry.id)

    def _register(self, message: bytes, answer: bytes, principal: Principal) -> tuple[registry_pb2.ProcessorInfo, str]:
        """Register the payload of a message that the caller's process has checked. Returns its name, too.

        The digest is computed here: it names the payload for all principals.
        """
        try:
            checked = msgspec.msgpack.decode(answer, type=Checked)
            serialized = message[checked.start : checked.end].decode()
        except ValueError as error:  # msgspec's errors are of this class, too
            raise LogitportError(f"the caller's process has answered what cannot be read: {error}") from error
        shipped = payload.labelled(checked.data, checked.labels, is_program=checked.is_program)
        info = self._registry.register_checked(
            shipped, serialized, checked.name, principal, replace=checked.replace, shared=checked.shared
        )
        return info, checked.name

    async def Get(self, request: registry_pb2.GetRequest, context: Context) -> registry_pb2.GetResponse:
        describe = partial(self._registry.describe, request.processor, current_call.get().principal)
        return registry_pb2.GetResponse(processor=await on_thread(self._threads, describe))

    async def List(self, request: registry_pb2.ListRequest, context: Context) -> registry_pb2.ListResponse:
        principal = current_call.get().principal
        describe = partial(self._registry.describe_all, principal)
        if request.digests:
            describe = partial(self._registry.describe_digests, request.digests, principal)
        return registry_pb2.ListResponse(
            processors=await on_thread(self._threads, describe), registry_id=self._registry.id
        )

    async def Delete(self, request: registry_pb2.DeleteRequest, context: Context) -> registry_pb2.DeleteResponse:
        principal = current_call.get().principal
        names = await on_thread(self._threads, partial(self._registry.delete, request.processor, principal))
        logger.info(
            "%s deleted %s",
            principal.display_name,
            request.processor,
            extra={
                "event": "processor_deleted",
                "principal": principal.name,
                "processor": request.processor,
            },
        )
        return registry_pb2.DeleteResponse(names=names)

    async def GetOutput(
        self, request: registry_pb2.GetOutputRequest, context: Context
    ) -> registry_pb2.GetOutputResponse:
        principal, digest = current_call.get().principal, request.processor
        kept = self._output.read(principal.name, digest)  # also of a payload that is not registered
        if kept is None:
            describe = partial(self._registry.describe, request.processor, principal)
            digest = (await on_thread(self._threads, describe)).digest
            kept = self._output.read(principal.name, digest)
        if kept is None:
            return registry_pb2.GetOutputResponse()
        name, printed, dropped = kept
        return registry_pb2.GetOutputResponse(
            outputs=[
                common_pb2.ProcessorOutput(processor=digest, display_name=name, text=text, time=at)
                for text, at in printed
            ],
            dropped_characters=dropped,
        )
