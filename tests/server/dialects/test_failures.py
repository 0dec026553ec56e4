"""Conversion of a processor's exceptions to logitport's errors."""

from __future__ import annotations

import errno
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer

from logitport import (
    AccessDenied,
    EditProcessor,
    EditRequest,
    InvalidArgument,
    LimitExceeded,
    PayloadError,
    ProcessorFailed,
    RowEdits,
)
from logitport_builtins import BUILTINS
from logitport_runner.local_registry import LocalRegistry
from logitport_server.registry.policy import PayloadPolicy
from logitport_session.dialects.failures import of_processor, of_sandboxed

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport import LogitportError


class Careless(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny(["x"])


def converted(call: Callable[[], Any]) -> LogitportError:
    """The error that a server reports if this call raises; its traceback begins in the call."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever it is
        call()
    frames = raised.value.__traceback__
    assert frames is not None
    return of_processor(raised.value.with_traceback(frames.tb_next), "its name")


def test_a_logitport_error_caused_by_a_processor_has_a_traceback() -> None:
    error = converted(partial(Careless().edit_batch, [None], [RowEdits()]))  # type: ignore[list-item]
    assert isinstance(error, InvalidArgument)
    assert error.processor == "its name"
    assert error.remote_traceback.startswith("Traceback")
    assert 'edits.deny(["x"])' in error.remote_traceback
    assert "edit_batch" not in error.remote_traceback, "nothing above the processor"


@pytest.mark.parametrize(
    "call",
    [
        partial(
            LocalRegistry(PayloadPolicy(allow_shipped=False, max_bytes=1), max_registered=1, max_owned=1).describe,
            "unknown",
        ),
        partial(BUILTINS["disallowed_tokens"].validate_params, {}),
    ],
)
def test_a_logitport_error_raised_by_logitport_has_no_traceback(call: Callable[[], Any]) -> None:
    assert converted(call).remote_traceback == ""


@pytest.mark.parametrize("refusal", [LimitExceeded, AccessDenied, PayloadError])
def test_errors_of_admission_keep_type_and_message(refusal: type[LogitportError]) -> None:
    error = of_processor(refusal("why"), "its name")
    assert type(error) is refusal
    assert str(error) == "why"


def test_an_invalid_id_names_the_processor() -> None:
    edits = RowEdits()
    edits.deny([9])
    error = converted(partial(edits.check, 8))
    assert error.message == "processor its name: DENY of token id 9: ids must lie in [0, 8)"
    assert of_processor(error, "its name").message == error.message, "once"


def test_the_traceback_of_an_installed_processor_is_logged_and_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("mine")
    except ValueError as error:
        with caplog.at_level("INFO"):
            failure = of_processor(error, "our_team:Ban", shipped=False)
    assert "mine" in failure.message
    assert not failure.remote_traceback
    assert "raise ValueError" in caplog.text


@pytest.mark.parametrize("code", [12, 13, 5, "x", None])
def test_the_code_of_another_exception_is_not_an_error_code(code: object) -> None:
    assert of_processor(SystemExit(code), "its name").code == ProcessorFailed.FAILED


def test_an_error_of_a_processor_has_only_codes_of_its_class() -> None:
    assert of_processor(ProcessorFailed("x", code=PayloadError.NOT_ALLOWED), "its name").code == ProcessorFailed.FAILED
    denied = of_processor(AccessDenied("x", code=AccessDenied.NOT_AUTHENTICATED), "its name")
    assert denied.code == AccessDenied.NOT_PERMITTED


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def cyclic() -> Exception:
    error = caused(ValueError("x"), KeyError("y"))
    error.__cause__.__context__ = error  # type: ignore[union-attr]
    return error


def raised_by(call: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever it is
        call()
    return raised.value


NO_FILE = FileNotFoundError(errno.ENOENT, "No such file")
NO_MODULE = ModuleNotFoundError("No module named 'no_such_module'")
SANDBOX, INSTALL = "it runs in a sandbox without network and files", "install it on the server"


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (NO_FILE, SANDBOX),
        (caused(ValueError("no vocabulary"), NO_FILE), SANDBOX),
        (caused(PayloadError("creating a Ban raised FileNotFoundError"), NO_FILE), SANDBOX),
        (raised_by(partial(Tokenizer.from_file, "/no/such/file")), SANDBOX),
        (raised_by(partial(socket.getaddrinfo, "unknown.invalid", 1, 0, 0, 0, socket.AI_NUMERICHOST)), SANDBOX),
        (NO_MODULE, INSTALL),
        (caused(PayloadError(f"creating a Ban raised ModuleNotFoundError: {NO_MODULE}"), NO_MODULE), INSTALL),
        (ValueError("x"), ""),
        (OSError("of its own"), ""),
        (TimeoutError(110, "late"), ""),
        (cyclic(), ""),
    ],
)
def test_the_hint_for_an_exception_in_a_worker(error: Exception, hint: str) -> None:
    message = of_sandboxed(error, "its name").message
    assert {one for one in (SANDBOX, INSTALL) if one in message} == ({hint} if hint else set())
    error.message = message  # type: ignore[attr-defined] # as of an error that has the hint already
    if isinstance(error, PayloadError) and hint == INSTALL:
        assert of_sandboxed(error, "its name").message.count("install") == 1


def test_a_shortage_of_descriptors_is_the_servers_and_in_a_worker_the_processors() -> None:
    shortage = OSError(errno.EMFILE, "Too many open files")
    assert type(of_processor(shortage, "its name")) is LimitExceeded
    assert type(of_sandboxed(shortage, "its name")) is ProcessorFailed
