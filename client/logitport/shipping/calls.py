"""Messages, replies and errors of a client's calls."""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union, cast

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message

from logitport import shipping
from logitport.core import tensors
from logitport.errors import (
    DRAINING,
    METADATA_KEY,
    AccessDenied,
    InvalidArgument,
    LimitExceeded,
    LogitportError,
    PayloadError,
    RequestsFailed,
    ServerUnavailable,
    from_proto,
    warn_all_denied,
)
from logitport.payload.signing import read_private_key, sign
from logitport.shipping import reserialize
from logitport.shipping.request import ProcessorLike, Request, message_of
from logitport_proto import common_pb2, processing_pb2, registry_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from numpy.typing import NDArray

    from logitport.payload.signing import PathLike
    from logitport.shipping import Shipped

_Message = TypeVar("_Message", bound=Message)
# The kind of logits that a call got, and returns: a torch tensor or a numpy array.
LogitsT = TypeVar("LogitsT", bound=Union["torch.Tensor", "NDArray[Any]"])

DEFAULT_TIMEOUT = 30.0
_MAX_QUOTED_LENGTH = 80  # characters of an argument that an error message quotes

# gRPC's details of the status UNAVAILABLE if no server was reached. There is no other sign of it.
_NOT_CONNECTED = re.compile("failed to connect|DNS|name resol|address", re.IGNORECASE)

# Advice for a failed connection, by whether the channel is encrypted. gRPC reports the same status for all causes.
_CONNECTION_ADVICE = {
    False: "is `logitport serve` running there? If it uses TLS, pass tls=Tls(ca=...), with cert and key if it requires "
    "client certificates",
    True: "is `logitport serve` running there, with TLS? If no public authority signed its certificate, pass "
    "tls=Tls(ca=...); if it requires client certificates, pass tls=Tls(ca=..., cert=..., key=...)",
}

# Parts of gRPC's text for a refused certificate, what they mean, and advice.
_CERTIFICATE_PROBLEMS = (
    ("certificate has expired", "has expired", "renew it on the server, or correct this machine's clock"),
    (
        "Hostname Verification Check failed",
        "names another host",
        "connect by a name in it, set Tls(server_name=...) to one, or issue a certificate with this host as a subject "
        "alternative name",
    ),
    *(
        (
            part,
            "is not trusted",
            "pass tls=Tls(ca='FILE') with the certificate of the authority that signed it; a self-signed certificate "
            "is its own authority",
        )
        for part in ("CERTIFICATE_VERIFY_FAILED", "BAD_SIGNATURE")
    ),
)


@dataclass(frozen=True)
class ApplyResult(Generic[LogitsT]):
    """Result of `Client.apply`, which returns the kind of logits that it got.

    Attributes:
        logits: the processed logits, float[rows, vocab_size], of the kind, dtype and device that were passed.
        failures: the error of each failed request, by its index. Its rows of `logits` are unspecified.
        skipped: the error of each failed request with on_error="skip", by its index. Its rows are unchanged.
        rows_applied: number of rows by processor: a built-in's name, or the `ProcessorRef.display_name` of a shipped
            one (its class and the beginning of its digest).
        all_denied_rows: rows where edits left no id allowed.
    """

    logits: LogitsT
    failures: dict[int, LogitportError]
    skipped: dict[int, LogitportError]
    rows_applied: dict[str, int]
    all_denied_rows: tuple[int, ...]


def message(kind: type[_Message], **fields: Any) -> _Message:
    """Make a message of these fields. Raises InvalidArgument, which names the field that cannot be sent."""
    try:
        return kind(**fields)
    except (TypeError, ValueError):
        for name, value in fields.items():
            try:
                kind(**{name: value})
            except (TypeError, ValueError) as error:
                raise InvalidArgument(f"{name} is {value!r}, which cannot be sent ({error})") from error
        raise


def count(value: object, name: str, least: int) -> int:
    """Return `value` as an int of at least `least`. Raises InvalidArgument, which names the argument."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if number < least:
        raise InvalidArgument(f"{name} is {value!r}; pass a whole number, {least} or more")
    return number


def seconds(value: object, name: str) -> float:
    """Return `value` if it is a number of seconds above 0. Raises InvalidArgument, which names the argument."""
    if not (isinstance(value, int | float) and value > 0):
        raise InvalidArgument(f"{name} is {value!r}; pass seconds, more than 0")
    return value


def register_request(
    processor: ProcessorLike,
    name: str,
    *,
    replace: bool,
    shared: bool = False,
    signing_key: PathLike | None = None,
    lift: bool | None = None,
) -> tuple[registry_pb2.RegisterRequest, Shipped]:
    """Make the message for `Client.register`, and what it ships.

    Raises:
        NotCapturable, PayloadError, InvalidArgument: as `Client.register`.
    """
    if isinstance(processor, str) and not processor.lstrip().startswith("{"):
        quoted = repr(processor if len(processor) <= _MAX_QUOTED_LENGTH else f"{processor[:_MAX_QUOTED_LENGTH]}...")
        raise PayloadError(f"{quoted} is not a serialized processor: pass a class, or a string made by to_str()")
    shipped = reserialize(processor, lift=shipping.LIFTS if lift is None else lift)
    serialized = shipped.serialized
    if signing_key is not None:
        serialized = sign(serialized, read_private_key(signing_key), name=name)
    request = message(registry_pb2.RegisterRequest, payload=serialized, name=name, replace=replace, shared=shared)
    return request, shipped


def apply_request(logits: Any, requests: Sequence[Request], num_tokens_in_batch: int) -> processing_pb2.ApplyRequest:
    """Make the message for `Client.apply`.

    Raises:
        InvalidArgument: `num_tokens_in_batch` is not an integer, or there are not that many rows for each request, or
            `requests` is not a sequence of requests.
        InvalidArgument, PayloadError: an argument is invalid.
    """
    rows, _ = tensors.check_matrix(logits)
    tensors.check_gradient(logits)
    if not isinstance(requests, Sequence):
        raise InvalidArgument(f"requests is of type {type(requests).__name__}; pass a sequence of logitport.Request")
    rows_per_request = count(num_tokens_in_batch, "num_tokens_in_batch", 1)
    if rows != len(requests) * rows_per_request:
        raise InvalidArgument(
            f"{rows} rows of logits for {len(requests)} requests with num_tokens_in_batch={rows_per_request}; "
            "pass that many rows for each request, request by request"
        )
    call = processing_pb2.ApplyRequest(
        requests=[message_of(request) for request in requests], num_tokens_in_batch=rows_per_request
    )
    tensors.write(call.logits, logits)
    return call


def apply_result(response: processing_pb2.ApplyResponse, logits: LogitsT, *, check: bool) -> ApplyResult[LogitsT]:
    """Make the result of `Client.apply`. Raises RequestsFailed if `check` is set and a request failed."""
    failures, skipped = split_failures(response.failures)
    result = ApplyResult(
        tensors.like(response.logits, logits),
        failures,
        skipped,
        rows_applied(response.applied),
        tuple(unpack_int32(response.all_denied_rows).tolist()),
    )
    if failures and check:
        raise RequestsFailed(failures, result)
    if check:
        warn_all_denied(result.all_denied_rows, stacklevel=4)  # above the client's method
    return result


def split_failures(
    failures: Iterable[common_pb2.Failure],
) -> tuple[dict[int, LogitportError], dict[int, LogitportError]]:
    """Split failures into two maps, slot to error: requests that failed, and requests that were skipped."""
    failed: dict[int, LogitportError] = {}
    skipped: dict[int, LogitportError] = {}
    for failure in failures:
        (skipped if failure.skipped else failed)[failure.slot] = from_proto(failure.error)
    return failed, skipped


def rows_applied(applied: Iterable[common_pb2.RowsApplied]) -> dict[str, int]:
    """Count rows by processor: by display name, or by digest where the payload has no class name."""
    rows: dict[str, int] = {}
    for entry in applied:
        name = entry.display_name or entry.processor
        rows[name] = rows.get(name, 0) + entry.rows
    return rows


def pack_int32(values: Sequence[int]) -> bytes:
    """Make a column, int32[n]. Raises struct.error for a value that is not an integer of 32 bits."""
    return struct.pack(f"<{len(values)}i", *values)


def unpack_int32(column: bytes) -> NDArray[np.int32]:
    """Read int32[n] from a column. Raises InvalidArgument if its length is not a multiple of 4 bytes."""
    if len(column) % 4:
        raise InvalidArgument(f"a column of int32 has {len(column)} bytes; send a multiple of 4 bytes")
    return np.frombuffer(column, "<i4")


def translate(error: grpc.RpcError, target: str, *, encrypted: bool) -> LogitportError:
    """Make the exception for a failed call: the server's own error if it sent one, else one for the gRPC status."""
    if (sent := _sent_error(error)) is not None:
        if sent.code == AccessDenied.NOT_AUTHENTICATED:  # of several servers, one may have another file of tokens
            return AccessDenied(f"{target}: {sent.message}", code=sent.code)
        return sent
    status, details = error.code(), error.details()
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServerUnavailable(
            f"{target} did not answer in time; raise timeout, or look at the server's load", timed_out=True
        )
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return LimitExceeded(
            f"{details}; raise max_message_bytes on the client (Client(..., max_message_bytes=)) and on the "
            "server (--max-message-bytes), or send fewer rows at once"
        )
    if status is grpc.StatusCode.UNAVAILABLE:
        for part, problem, advice in _CERTIFICATE_PROBLEMS:
            if part in (details or ""):
                return ServerUnavailable(
                    f"no connection to {target}: the server's certificate {problem}: {details}; {advice}"
                )
        if details == DRAINING:
            return ServerUnavailable(f"{target}: {details}", was_connected=True)
    # A proxy that has lost the server resets the stream, which gRPC reports as INTERNAL.
    was_reset = status is grpc.StatusCode.INTERNAL and "RST_STREAM" in (details or "")
    if status is grpc.StatusCode.UNAVAILABLE or was_reset:
        return ServerUnavailable(
            f"no connection to {target}, or it was lost: {details}; {_CONNECTION_ADVICE[encrypted]}",
            was_connected=_NOT_CONNECTED.search(details or "") is None,
        )
    if status is grpc.StatusCode.CANCELLED:
        return ServerUnavailable(f"the connection to {target} was lost: {details}", was_connected=True)
    if status is grpc.StatusCode.UNAUTHENTICATED:  # from a proxy: a server sends an error of its own
        return AccessDenied(f"{target}: {details}", code=AccessDenied.NOT_AUTHENTICATED)
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return LogitportError(
            f"{target} does not have this call ({status.name}: {details}): it is another service, or its version of "
            "logitport differs; correct the address, or install the same version"
        )
    return LogitportError(f"{target}: {status.name}: {details}")


def _sent_error(error: grpc.RpcError) -> LogitportError | None:
    for key, value in cast("Sequence[tuple[str, bytes]]", error.trailing_metadata() or ()):
        if key == METADATA_KEY:
            with suppress(DecodeError):  # sent by something else: then the status describes the error
                return from_proto(common_pb2.Error.FromString(value))
    return None


def client_closed(target: str) -> ServerUnavailable:
    """Make the error for a call on a closed client."""
    return ServerUnavailable(f"the client of {target} is closed; create another client")
