"""The client of engines, and of programs that operate servers."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, cast
from weakref import WeakKeyDictionary

from logitport.admin import ProcessorOutput
from logitport.client.call_sender import Call, CallSender, delete_call, get_call, list_call, register_call
from logitport.client.embedded_server import EmbeddedSender, is_embedded
from logitport.client.server_client import ServerClient
from logitport.core import tensors
from logitport.core.history import listed_ids
from logitport.errors import ServerUnavailable
from logitport.session.failover.registrations import Registrations
from logitport.shipping import calls
from logitport.system.frame_limits import DEFAULT_MAX_MESSAGE_BYTES
from logitport_proto import processing_pb2, registry_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from logitport.core.history import TokenIds
    from logitport.payload.signing import PathLike
    from logitport.servers.channels import ServerChannel
    from logitport.servers.connection import Tls
    from logitport.servers.targets import Target
    from logitport.session.failover.server_choice import ServerChoice
    from logitport.session.requests.program_trust import Mode
    from logitport.session.session import Session
    from logitport.shipping.calls import ApplyResult, LogitsT
    from logitport.shipping.request import ProcessorLike, ProcessorRef, Request
    from logitport_recording.record_options import Record


class Client:
    """A client of one server or several. Safe to use from several threads; close it, or use it in a `with` statement.

    With several servers, a session is on the less loaded of two random ones, and moves to another one if it loses its
    server. Other calls go to any server that has not just failed; one that may be made twice (`processor`,
    `processors`, `apply`), or that was not sent, is tried on others for up to 3 s. `servers` returns an object for each
    server, for calls to this one alone.

    Args:
        target: one address (HOST:PORT, unix:PATH, or another name that gRPC understands); several, as a sequence or
            separated by commas; dns:///HOST:PORT for all addresses of a name; a JSON document of addresses, in the form
            of Prometheus' file_sd and http_sd (file:/PATH, a path object, or an http or https URL); or a function that
            returns addresses. A list that can change is read again when a server is lost or a session is opened, at
            most every 3 s. "embedded" is no server: see `embedded`.
        token: bearer token that authenticates the caller, where the server requires one; by default the value of
            LOGITPORT_TOKEN. It is sent over TLS, or to this machine's loopback or a Unix socket, and nowhere else: any
            other address is refused.
        tls: settings of an encrypted connection; None for an unencrypted one.
        timeout: longest duration of one call, or of one reply in a session, in seconds. If a reply takes longer than
            the server's own deadlines, which may be earlier, the session reconnects instead.
        max_message_bytes: the largest message in either direction; the server has a limit of its own.

    Raises:
        InvalidArgument: an argument or a document is invalid; the message names it and the reason.
        ServerUnavailable: a URL cannot be read, a name cannot be resolved, or the function has raised.
    """

    def __init__(
        self,
        target: Target,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        timeout: float = calls.DEFAULT_TIMEOUT,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        self._sender: CallSender | EmbeddedSender
        if is_embedded(target):
            self._sender = EmbeddedSender(cast("str", target), timeout, max_message_bytes)
        else:
            self._sender = CallSender(target, token, tls, timeout, max_message_bytes)
        self._sessions: WeakKeyDictionary[Session, ServerChoice | None] = WeakKeyDictionary()
        self._lock = threading.Lock()  # of the sessions
        self._registrations = Registrations()
        self.target = self._sender.servers.text

    @classmethod
    def embedded(cls, programs: PathLike | None = None) -> Self:
        """Make a client without a server: its sessions run in this process.

        They have the built-ins, and what installed packages provide as entry points of the group
        "logitport.processors". They accept no code: `register`, and requests with shipped classes, raise PayloadError.

        Args:
            programs: folder with programs: `team/name.json` is the payload of the program `team/name`.

        Raises:
            InvalidArgument: an installed processor cannot be used, or a file of the folder is no program.
        """
        return cls("embedded" if programs is None else f"embedded:{os.fspath(programs)}")

    @property
    def timeout(self) -> float:
        """See the argument. A value that is set later applies to later calls and sessions."""
        return self._sender.timeout

    @timeout.setter
    def timeout(self, timeout: float) -> None:
        self._sender.timeout = calls.seconds(timeout, "timeout")

    def register(
        self,
        processor: ProcessorLike,
        *,
        name: str = "",
        replace: bool = False,
        shared: bool = False,
        signing_key: PathLike | None = None,
        lift: bool | None = None,
    ) -> ProcessorRef:
        """Register a processor of any dialect, a program, or a serialized string, with the server.

        A `TensorProcessor` is registered as a program, and so is a class of another dialect that only does tensor work;
        `ProcessorRef.not_lifted` is the reason if another one is not. For that its code is run here, on tensors without
        values.

        A `ProcessorWarning` names each line that has no effect, and, in code that is not a program, each one that
        draws random numbers without a seed, or changes a global or a class attribute.

        The client remembers the processor: a session that reconnects to another server registers it there, too.

        Args:
            processor: the processor to ship; in an `InDialect`, where its base class or its arguments do not show its
                dialect. See `logitport.dialects`.
            name: a name to bind, namespace/name[:tag], or "".
            replace: bind the name even if it is bound to another digest.
            shared: allow every caller to use it, not only callers with this client's token or certificate. Applies to
                the processor under all its names; registering it again without `shared` ends the sharing.
            signing_key: PEM file of a private key (`logitport payload keygen`) to sign it with, for this name and 30
                days; needs the extra `signing`.
            lift: False registers the processor as code in any case. By default True.

        Raises:
            NotCapturable: a `TensorProcessor` cannot be captured; the message has the line, and what to write instead.
            InvalidArgument: the server refuses a program.
            PayloadError: the class cannot be serialized; the message says what to do.
            PayloadError: the server refuses it.
            InvalidArgument, NameTaken: the name cannot be bound.
            LimitExceeded: the registry is full, or the payload too large.
        """
        call = register_call(processor, name, replace=replace, shared=shared, signing_key=signing_key, lift=lift)
        reply = self._sender.reply(call)
        registered = call.decode(reply)
        self._registrations.remember(call.message, registered, reply.registry_id)
        # The servers of open sessions may have registries of their own.
        for server in self._session_servers():
            with suppress(ServerUnavailable):  # the session registers it when it has a server again
                registry_id = self._sender.send(server, call).registry_id
                self._registrations.registered_in(registry_id, registered.digest, name)
        return registered

    def processor(self, name: str) -> ProcessorRef:
        """Look up a built-in's name, a registered name or a digest. Raises NotFound."""
        return self._sender.result(get_call(name))

    def processors(self) -> list[ProcessorRef]:
        """List all built-ins, then all registered processors, by name."""
        return self._sender.result(list_call())

    def logs(self, processor: str | ProcessorRef) -> list[ProcessorOutput]:
        """Return what a processor has printed and logged for requests of this client's principal, oldest first.

        Only shipped processors that run in workers have output; programs and built-ins print nothing. The server keeps
        the last 65,536 characters, 4,096 of a call, and 16,384 a second. It returns the output for the requests of
        other principals to these alone, not to the author. Without authentication, all callers are one principal.

        Args:
            processor: a registered name, a digest, or the result of `register`.

        Raises:
            NotFound: no such processor exists, or this client may not use it.
        """
        name = processor if isinstance(processor, str) else processor.digest
        message = calls.message(registry_pb2.GetOutputRequest, processor=name)
        call = Call("registry", "GetOutput", message, lambda reply: list(ProcessorOutput.all_from_proto(reply.outputs)))
        servers = self._session_servers()
        if not servers:
            return self._sender.result(call)
        # Each server keeps the output of its own workers.
        found: list[ProcessorOutput] = []
        for server in servers:
            with suppress(ServerUnavailable):
                found += call.decode(self._sender.send(server, call))
        return sorted(found, key=attrgetter("time"))

    def delete(self, name: str) -> tuple[str, ...]:
        """Delete a registered name, or a digest with all its names; returns those names. Raises NotFound."""
        names = self._sender.result(delete_call(name))
        self._registrations.forget(name)
        return names

    def apply(
        self, logits: LogitsT, requests: Sequence[Request], *, num_tokens_in_batch: int = 1, check: bool = True
    ) -> ApplyResult[LogitsT]:
        """Process logits in one call, without a session. The argument stays unchanged; the result is a new array.

        Args:
            logits: float32, float16 or bfloat16 [rows, vocab_size], a torch tensor on any device or a numpy array.
            requests: request i owns rows [i * num_tokens_in_batch, (i + 1) * num_tokens_in_batch).
            num_tokens_in_batch: rows per request.
            check: raise if a request failed; with False, look at `failures` of the result.

        Raises:
            RequestsFailed: requests with on_error="abort" failed; its `result` holds the rows of the others.
            InvalidArgument or a subclass: the call as a whole is invalid, and nothing was processed; also if the logits
                require gradients and grad mode is on, because the result has none.
        """
        message = calls.apply_request(logits, requests, num_tokens_in_batch)
        decode = partial(calls.apply_result, logits=logits, check=check)
        return self._sender.result(Call("processing", "Apply", message, decode))

    def session(
        self,
        *,
        vocab_size: int,
        dtype: Any = "float32",
        device: str = "cpu",
        model_name: str = "",
        tokenizer_id: str = "",
        eos_token_ids: TokenIds = (),
        max_requests: int = 0,
        max_draft_tokens: int = 0,
        engine: str = "",
        transport: Literal["auto", "grpc", "local"] = "auto",
        reconnect_seconds: float | None = None,
        programs: Mode | None = None,
        record: Record = None,
    ) -> Session:
        """Open a session: one engine's persistent batch.

        Args:
            vocab_size: width of the logits.
            dtype: of the logits: a torch or numpy dtype, or its name.
            device: where the engine's logits are, such as "cuda:0".
            model_name: the model, for logs and metrics.
            tokenizer_id: for processors that need the tokenizer.
            eos_token_ids: end-of-sequence ids.
            max_requests: the most requests that the session will hold at once; 0 for the server's limit.
            max_draft_tokens: the most draft tokens of a request in one step; 0 without speculation.
            engine: the engine and its version, for logs and metrics.
            transport: how frames are sent. "local" is a Unix socket and shared memory, for an engine on the server's
                host that calls a loopback address or a Unix socket of a server that runs as root or as its own user;
                "grpc" works everywhere; "auto" is "local" where that is possible.
            reconnect_seconds: how long a call tries to reconnect after the connection was lost; with 0 it tries once.
                By default the client's timeout. Also for a connection that is lost while the session is opened. If no
                server is reached at first, opening does not wait for one.
            programs: which programs this process runs on the logits itself, after it has verified them: "all"; with
                "trusted" those signed with a key in the folder LOGITPORT_PROGRAM_KEYS, the installed built-ins, and
                those that this client has registered; with "off" none. The server runs the others, on logits that are
                sent to it. By default LOGITPORT_PROGRAMS, or else "all".
            record: the path of a file, or `RecordOptions`: records the session's requests there. The file then holds
                their prompts and outputs. By default LOGITPORT_RECORD, or else nothing; False records nothing. A full
                or slow disk ends or thins out the recording, and has no effect on the session.

        Raises:
            InvalidArgument: an argument is invalid, or the file of `record` cannot be opened.
            ServerUnavailable: there is no server, or transport is "local" and its local transport cannot be reached.
        """
        # Commands need no session: their start must not wait for it.
        from logitport.client.session_opening import open_session

        opening = calls.message(
            processing_pb2.OpenSession,
            vocab_size=vocab_size,
            datatype=tensors.datatype_of(dtype),
            device=device,
            model_name=model_name,
            tokenizer_id=tokenizer_id,
            eos_token_ids=listed_ids(eos_token_ids, "eos_token_ids"),
            max_requests=max_requests,
            max_draft_tokens=max_draft_tokens,
            engine=engine,
        )
        session, choice = open_session(
            self._sender,
            self._registrations,
            opening,
            with_torch=tensors.is_torch(dtype),
            transport=transport,
            reconnect_seconds=reconnect_seconds,
            programs=programs,
            record=record,
        )
        with self._lock:
            self._sessions[session] = choice
        return session

    def servers(self) -> list[ServerClient]:
        """Return the servers that the target names now, in its order; none for "embedded". Calls none of them.

        Raises:
            ServerUnavailable: the client is closed.
        """
        sender = self._sender
        if isinstance(sender, EmbeddedSender):
            return []
        sender.servers.refresh()
        return [ServerClient(sender, server, self._registrations) for server in sender.servers.all()]

    def close(self) -> None:
        """Close the connection, and with it every session."""
        self._sender.closed = True  # first: from now on, no session opens or reconnects
        with self._lock:
            sessions = list(self._sessions)
        for session in sessions:
            session.close()
        self._sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _session_servers(self) -> set[ServerChannel]:
        """Return the servers of open sessions, if there are several servers."""
        if self._sender.servers.single:
            return set()
        with self._lock:
            choices = list(self._sessions.values())
        return {choice.server for choice in choices if choice is not None and choice.server is not None}
