"""The synchronous client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

import grpc

from logitport import calls
from logitport.connection import Connection
from logitport.core import tensors
from logitport.session.registrations import Registrations
from logitport.session.session import Session
from logitport.session.transports.stream import GrpcStream
from logitport_proto import processing_pb2_grpc, registry_pb2, registry_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from logitport.calls import ApplyResult
    from logitport.connection import Tls
    from logitport.payload.signing import PathLike
    from logitport.request import ProcessorLike, ProcessorRef, Request
    from logitport.session.transports.base import Transport


class Client:
    """A connection to one server. Safe to use from several threads; close it, or use it in a `with` statement.

    Args:
        target: HOST:PORT, unix:PATH, or any other name that gRPC understands.
        token: who calls, where the server asks for it; by default what LOGITPORT_TOKEN says. It is sent over TLS, or
            to this machine's loopback or a Unix socket, and nowhere else.
        tls: an encrypted connection.
        timeout: the longest that one call, or one step of a session, may take; seconds.
        max_message_bytes: the largest message either way; the server has a limit of its own.

    Raises:
        InvalidArgument: what is wrong with an argument.
    """

    def __init__(
        self,
        target: str,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        timeout: float = calls.DEFAULT_TIMEOUT,
        max_message_bytes: int = calls.DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        self.target = target
        self.timeout = calls.seconds(timeout, "timeout")
        self._max_message_bytes = calls.count(max_message_bytes, "max_message_bytes", 1)
        self._closed = False
        self._sessions: WeakSet[Session] = WeakSet()
        self._connection = Connection.prepare(target, token, tls)
        self._channel = self._connection.channel(max_message_bytes)
        self._registry = registry_pb2_grpc.ProcessorRegistryStub(self._channel)
        self._processing = processing_pb2_grpc.LogitProcessingStub(self._channel)
        self._registrations = Registrations(self._registry, self._call)

    def register(
        self,
        processor: ProcessorLike,
        *,
        name: str = "",
        replace: bool = False,
        shared: bool = False,
        signing_key: PathLike | None = None,
        dialect: str | None = None,
    ) -> ProcessorRef:
        """Ship a processor of any dialect, or a serialized string, and let the server keep it.

        The client remembers it: a session that finds another server after a lost connection registers it there, too.

        Args:
            processor: what to ship; see `logitport.dialects`.
            name: a name to bind, namespace/name[:tag]; "" for none.
            replace: bind the name even if it is bound to another digest.
            shared: let everyone use it, not those alone who show this client's token or certificate; holds for
                the processor, whatever its names: to register it again without is to take it back.
            signing_key: PEM file of a private key (`logitport keygen`) to sign it with, for this name and 30 days;
                needs logitport[signing].
            dialect: how it is called, where that cannot be told from its base class or its arguments.

        Raises:
            PayloadNotPortable: the class cannot travel; the message says what to do.
            PayloadNotAllowed, MalformedPayload, SignatureRefused, PythonMismatch: the server refuses it.
            InvalidName, NameTaken, LimitExceeded: the name, or the size of the registry.
        """
        message = calls.register_request(
            processor, name, replace=replace, shared=shared, signing_key=signing_key, dialect=dialect
        )
        info = self._call(self._registry.Register, message).processor
        self._registrations.remember(message, info)
        return calls.refs([info])[0]

    def processor(self, name: str) -> ProcessorRef:
        """Look up a built-in's name, a registered name or a digest. Raises UnknownProcessor."""
        return calls.refs(
            [self._call(self._registry.Get, calls.message(registry_pb2.GetRequest, processor=name)).processor]
        )[0]

    def processors(self) -> list[ProcessorRef]:
        """All built-ins, then all registered processors, by name."""
        return calls.refs(self._call(self._registry.List, registry_pb2.ListRequest()).processors)

    def delete(self, name: str) -> tuple[str, ...]:
        """Forget a registered name, or a digest with all its names; returns those names. Raises UnknownProcessor."""
        names = self._call(self._registry.Delete, calls.message(registry_pb2.DeleteRequest, processor=name)).names
        self._registrations.forget(name)
        return tuple(names)

    def unquarantine(self, name: str) -> ProcessorRef:
        """Have a registered name, or a digest, called again that is quarantined: it failed too often.

        Raises:
            NotPermitted: the caller lacks the scope "admin".
            UnknownProcessor: there is none.
        """
        message = calls.message(registry_pb2.UnquarantineRequest, processor=name)
        return calls.refs([self._call(self._registry.Unquarantine, message).processor])[0]

    def apply(
        self, logits: Any, requests: Sequence[Request], *, num_tokens_in_batch: int = 1, check: bool = True
    ) -> ApplyResult:
        """One step without a session: process logits, which stay as they are, and return the result.

        Args:
            logits: float32, float16 or bfloat16 [rows, vocab_size], a torch tensor on any device or a numpy array.
            requests: request i owns rows [i * num_tokens_in_batch, (i + 1) * num_tokens_in_batch).
            num_tokens_in_batch: rows a request.
            check: raise if a request failed; with False, look at `failures` of the result.

        Raises:
            RequestsFailed: requests with on_error="abort" failed; its `result` holds what the others got.
            InvalidArgument and its kind: the call as a whole is wrong, and nothing was processed.
        """
        message = calls.apply_request(logits, requests, num_tokens_in_batch)
        return calls.apply_result(self._call(self._processing.Apply, message), logits, check=check)

    def session(
        self,
        *,
        vocab_size: int,
        dtype: Any = "float32",
        device: str = "cpu",
        model_name: str = "",
        tokenizer_id: str = "",
        eos_token_ids: Sequence[int] = (),
        max_requests: int = 0,
        max_draft_tokens: int = 0,
        engine: str = "",
        transport: Literal["auto", "grpc", "local"] = "auto",
        reconnect_seconds: float | None = None,
    ) -> Session:
        """Open a session: one engine's persistent batch.

        Args:
            vocab_size: width of the logits.
            dtype: of the logits: a torch or numpy dtype, or its name.
            device: where the engine's logits are, such as "cuda:0".
            model_name: the model, for people.
            tokenizer_id: for processors that need the tokenizer.
            eos_token_ids: end-of-sequence ids.
            max_requests: the most requests that the session will hold at once; 0 for the server's limit.
            max_draft_tokens: the most draft tokens a request in one step; 0 without speculation.
            engine: the engine and its version, for people.
            transport: how frames travel. "local" is a Unix socket and shared memory, for an engine on the server's
                host; "grpc" works everywhere; "auto" is "local" where that is possible.
            reconnect_seconds: how long a call waits for a server after the connection broke; with 0 it tries once.
                By default the client's timeout.

        Raises:
            InvalidArgument, InvalidLogits: what the engine says about itself is wrong.
            ServerUnavailable: there is no server, or transport is "local" and it offers no local transport from here.
        """
        opening = calls.open_session(
            vocab_size, dtype, device, model_name, tokenizer_id, eos_token_ids, max_requests, max_draft_tokens, engine
        )

        def connect(wait_seconds: float) -> Transport:
            if self._closed:
                raise calls.client_closed(self.target)
            return GrpcStream(
                self._processing,
                self.target,
                self.timeout,
                metadata=self._connection.metadata,
                encrypted=self._connection.encrypted,
                max_message_bytes=self._max_message_bytes,
                wait_seconds=wait_seconds,
            )

        session = Session(
            connect,
            opening,
            restore=self._registrations.restore,
            with_torch=tensors.is_torch(dtype),
            local=transport,
            timeout=self.timeout,
            reconnect_seconds=self.timeout if reconnect_seconds is None else reconnect_seconds,
        )
        self._sessions.add(session)
        return session

    def close(self) -> None:
        """Close the connection, and with it every session."""
        self._closed = True
        for session in list(self._sessions):
            session.close()
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, method: Any, message: Any) -> Any:
        if self._closed:
            raise calls.client_closed(self.target)
        try:
            return method(message, timeout=self.timeout, metadata=self._connection.metadata)
        except grpc.RpcError as error:
            raise calls.translate(error, self.target, encrypted=self._connection.encrypted) from None
