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


def test_a_server_without_descriptors_is_not_a_failure_of_the_processor() -> None:
    error = of_processor(OSError(errno.EMFILE, "Too many open files"), "its name")
    assert type(error) is LimitExceeded
    assert error.message.startswith("the server is out of file descriptors")


def test_a_worker_without_descriptors_is_a_failure_of_the_processor() -> None:
    """A worker has a limit of its own, which only its code can reach."""
    error = of_sandboxed(OSError(errno.EMFILE, "Too many open files"), "its name")
    assert type(error) is ProcessorFailed


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


def test_any_other_exception_has_its_traceback() -> None:
    error = converted(partial(int, "no number"))
    assert isinstance(error, ProcessorFailed)
    assert "ValueError: invalid literal" in error.remote_traceback


def test_the_traceback_of_an_installed_processor_is_logged_and_not_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    try:
        raise ValueError("mine")
    except ValueError as error:
        with caplog.at_level("INFO"):
            failure = of_processor(error, "our_team:Ban", shipped=False)
    assert "mine" in failure.message
    assert not failure.remote_traceback
    assert "raise ValueError" in caplog.text


def refused_by_a_file() -> None:
    open("/no/such/file")  # noqa: SIM115


def refused_and_reraised() -> None:
    try:
        refused_by_a_file()
    except OSError as error:
        raise ValueError("no vocabulary") from error


def loaded() -> None:
    try:
        refused_by_a_file()
    except OSError as error:
        raise PayloadError("creating a Ban raised FileNotFoundError") from error


HINT = (
    " (it runs in a sandbox without network and files: put what it needs into the class as a constant, or into a "
    "package installed with the server; see docs/security.md)"
)


@pytest.mark.parametrize(
    "call",
    [
        refused_by_a_file,
        refused_and_reraised,
        loaded,
        partial(Tokenizer.from_file, "/no/such/file"),
        partial(socket.getaddrinfo, "unknown.invalid", 1, 0, 0, 0, socket.AI_NUMERICHOST),
    ],
)
def test_a_failed_system_call_in_a_worker_gets_the_sandbox_hint(call: Callable[[], Any]) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever it is
        call()
    assert of_sandboxed(raised.value, "its name").message == of_processor(raised.value, "its name").message + HINT


@pytest.mark.parametrize(
    "error", [ValueError("x"), OSError("of its own"), FileNotFoundError("too"), TimeoutError(110, "late"), KeyError()]
)
def test_an_exception_without_a_system_call_gets_no_hint(error: Exception) -> None:
    assert HINT not in of_sandboxed(error, "its name").message


def lacks_a_module() -> None:
    import no_such_module  # type: ignore[import-not-found]  # noqa: F401


def lacks_a_module_while_loading() -> None:
    try:
        lacks_a_module()
    except ImportError as error:
        raise PayloadError(f"creating a Ban raised ModuleNotFoundError: {error}") from error


@pytest.mark.parametrize("call", [lacks_a_module, lacks_a_module_while_loading])
def test_a_missing_module_in_a_worker_gets_an_installation_hint(call: Callable[[], Any]) -> None:
    with pytest.raises((ImportError, PayloadError)) as raised:
        call()
    failure = of_sandboxed(raised.value, "its name").message
    assert failure.endswith("No module named 'no_such_module'; install it on the server, in logitport's environment")


def test_the_installation_hint_appears_once() -> None:
    with pytest.raises(PayloadError) as raised:
        lacks_a_module_while_loading()
    raised.value.message += "; install it on the server"
    assert of_sandboxed(raised.value, "its name").message.count("install") == 1


def test_a_cyclic_chain_of_errors() -> None:
    error = ValueError("x")
    error.__context__ = KeyError("y")
    error.__context__.__context__ = error
    assert HINT not in of_sandboxed(error, "its name").message


@pytest.mark.parametrize("code", [12, 13, 5, "x", None])
def test_the_code_of_another_exception_is_not_an_error_code(code: object) -> None:
    assert of_processor(SystemExit(code), "its name").code == ProcessorFailed.FAILED


def test_an_error_of_a_processor_has_only_codes_of_its_class() -> None:
    assert of_processor(ProcessorFailed("x", code=PayloadError.NOT_ALLOWED), "its name").code == ProcessorFailed.FAILED
    denied = of_processor(AccessDenied("x", code=AccessDenied.NOT_AUTHENTICATED), "its name")
    assert denied.code == AccessDenied.NOT_PERMITTED
