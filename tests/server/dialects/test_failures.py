"""What is told of an error inside a processor."""

from __future__ import annotations

import socket
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from logitport import (
    EditProcessor,
    EditRequest,
    InvalidTokenId,
    LimitExceeded,
    LoadFailed,
    NotPermitted,
    PayloadNotAllowed,
    ProcessorFailed,
    RowEdits,
    SignatureRefused,
)
from logitport_builtins import BUILTINS
from logitport_server.dialects.failures import of_processor, of_sandboxed
from logitport_server.registry.policy import PayloadPolicy
from logitport_server.registry.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport import LogitportError


class Careless(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny(["x"])


def told_of(call: Callable[[], Any]) -> LogitportError:
    """What a server would tell that called this; the traceback begins in the call."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever it is
        call()
    frames = raised.value.__traceback__
    assert frames is not None
    return of_processor(raised.value.with_traceback(frames.tb_next), "its name")


def test_an_error_of_ours_that_a_processor_caused_tells_where() -> None:
    error = told_of(partial(Careless().edit_batch, [None], [RowEdits()]))  # type: ignore[list-item]
    assert isinstance(error, InvalidTokenId)
    assert error.processor == "its name"
    assert error.remote_traceback.startswith("Traceback")
    assert 'edits.deny(["x"])' in error.remote_traceback
    assert "edit_batch" not in error.remote_traceback, "nothing above the processor"


@pytest.mark.parametrize(
    "call",
    [
        partial(
            Registry(PayloadPolicy(allow_shipped=False, max_bytes=1), max_registered=1, max_owned=1).describe, "nobody"
        ),
        partial(BUILTINS["disallowed_tokens"].validate_params, {}),
    ],
)
def test_an_error_of_ours_that_we_raise_has_no_traceback(call: Callable[[], Any]) -> None:
    assert told_of(call).remote_traceback == ""


@pytest.mark.parametrize("refusal", [LimitExceeded, NotPermitted, SignatureRefused, PayloadNotAllowed])
def test_why_a_processor_was_not_even_looked_for_stays_what_it_is(refusal: type[LogitportError]) -> None:
    error = of_processor(refusal("why"), "its name")
    assert type(error) is refusal
    assert str(error) == "why"


def test_an_id_that_is_none_names_the_processor_that_said_it() -> None:
    edits = RowEdits()
    edits.deny([9])
    error = told_of(partial(edits.check, 8))
    assert error.message == "processor its name: DENY of token id 9: ids must lie in [0, 8)"
    assert of_processor(error, "its name").message == error.message, "once"


def test_what_else_is_raised_comes_with_its_traceback() -> None:
    error = told_of(partial(int, "no number"))
    assert isinstance(error, ProcessorFailed)
    assert "ValueError: invalid literal" in error.remote_traceback


def test_the_traceback_of_what_nobody_has_shipped_does_not_travel(
    caplog: pytest.LogCaptureFixture,
) -> None:
    try:
        raise ValueError("mine")
    except ValueError as error:
        with caplog.at_level("INFO"):
            told = of_processor(error, "our_team:Ban", shipped=False)
    assert "mine" in told.message
    assert not told.remote_traceback
    assert "raise ValueError" in caplog.text


def refused_by_a_file() -> None:
    open("/no/such/file")  # noqa: SIM115


def refused_and_told_in_other_words() -> None:
    try:
        refused_by_a_file()
    except OSError as error:
        raise ValueError("no vocabulary") from error


def loaded() -> None:
    try:
        refused_by_a_file()
    except OSError as error:
        raise LoadFailed("creating a Ban raised FileNotFoundError") from error


HINT = (
    " (it runs in a sandbox without network and files: put what it needs into the class as a constant, or into a "
    "package installed with the server; see docs/security.md)"
)


@pytest.mark.parametrize(
    "call",
    [
        refused_by_a_file,
        refused_and_told_in_other_words,
        loaded,
        partial(socket.getaddrinfo, "nobody.invalid", 1, 0, 0, 0, socket.AI_NUMERICHOST),
    ],
)
def test_what_the_system_refuses_in_a_worker_tells_of_the_sandbox(call: Callable[[], Any]) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever it is
        call()
    assert of_sandboxed(raised.value, "its name").message == of_processor(raised.value, "its name").message + HINT


@pytest.mark.parametrize(
    "error", [ValueError("x"), OSError("of its own"), FileNotFoundError("too"), TimeoutError(110, "late"), KeyError()]
)
def test_what_a_processor_raises_of_itself_does_not(error: Exception) -> None:
    assert HINT not in of_sandboxed(error, "its name").message


def lacks_a_module() -> None:
    import no_such_module  # type: ignore[import-not-found]  # noqa: F401


def lacks_it_as_it_is_loaded() -> None:
    try:
        lacks_a_module()
    except ImportError as error:
        raise LoadFailed(f"creating a Ban raised ModuleNotFoundError: {error}") from error


@pytest.mark.parametrize("call", [lacks_a_module, lacks_it_as_it_is_loaded])
def test_a_module_that_a_worker_lacks_is_to_be_installed(call: Callable[[], Any]) -> None:
    with pytest.raises((ImportError, LoadFailed)) as raised:
        call()
    told = of_sandboxed(raised.value, "its name").message
    assert told.endswith("No module named 'no_such_module'; install it on the server, in logitport's environment")


def test_what_to_install_is_told_once() -> None:
    with pytest.raises(LoadFailed) as raised:
        lacks_it_as_it_is_loaded()
    raised.value.message += "; install it on the server"
    assert of_sandboxed(raised.value, "its name").message.count("install") == 1


def test_a_chain_of_errors_without_end() -> None:
    error = ValueError("x")
    error.__context__ = KeyError("y")
    error.__context__.__context__ = error
    assert HINT not in of_sandboxed(error, "its name").message
