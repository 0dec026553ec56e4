"""The tree of exceptions, the table that maps it to error codes, and how errors and output are shown."""

from __future__ import annotations

import inspect
import re

import grpc
import pytest

import logitport
from logitport import errors
from logitport.admin import ProcessorOutput
from logitport_proto import common_pb2

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.LogitportError)]


def drawn_tree() -> dict[str, set[str]]:
    """Parents of each class, from the drawing at the top of errors.py."""
    parents: dict[str, set[str]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if drawn := re.match(r"    ((?:[│ ]   )*)(├── |└── )?([A-Z]\w+)(?: \((\w+)\))?", line):
            depth = len(drawn[1]) // 4 + bool(drawn[2])
            path[depth:] = [drawn[3]]
            parents[drawn[3]] = {path[depth - 1] if depth else "Exception", *filter(None, [drawn[4]])}
    return parents


def test_the_drawing_matches_the_classes() -> None:
    assert drawn_tree() == {cls.__name__: {base.__name__ for base in cls.__bases__} for cls in CLASSES}


def test_every_exception_is_public() -> None:
    assert {cls.__name__ for cls in CLASSES} - {"NotInstalled"} <= set(logitport.__all__)


def test_every_code_has_one_exception_and_a_status() -> None:
    codes = [code for code, _, _ in errors._TABLE]
    assert sorted(codes) == sorted(set(common_pb2.ErrorCode.values()) - {common_pb2.ERROR_CODE_UNSPECIFIED})
    assert all(hasattr(grpc.StatusCode, status) for _, _, status in errors._TABLE)


def test_every_code_of_a_class_is_in_its_rows_of_the_table() -> None:
    for cls in CLASSES:
        own = {value for name, value in vars(cls).items() if isinstance(value, int) and not name.startswith("_")}
        if own - {common_pb2.ERROR_CODE_UNSPECIFIED}:
            assert own == {code for code, error, _ in errors._TABLE if error is cls}


def test_only_errors_that_are_never_sent_lack_a_code() -> None:
    assert {cls.__name__ for cls in CLASSES if not cls.code} == {"ServerUnavailable", "RequestsFailed", "NotInstalled"}


@pytest.mark.parametrize(("code", "cls"), [row[:2] for row in errors._TABLE])
def test_round_trip(code: int, cls: type[errors.LogitportError]) -> None:
    error = cls("what, where, what to do", code=code, processor="demo/x", remote_traceback="Traceback: ...", output="x")
    back = errors.from_proto(common_pb2.Error.FromString(errors.to_proto(error).SerializeToString()))
    assert type(back) is cls
    assert vars(back) == vars(error)


def test_a_subclass_is_sent_as_its_nearest_ancestor() -> None:
    class Narrower(errors.InvalidArgument):
        pass

    assert errors.to_proto(Narrower("no")).code == common_pb2.ERROR_CODE_INVALID_ARGUMENT
    assert errors.status_name(Narrower("no")) == "INVALID_ARGUMENT"
    assert errors.status_name(errors.LogitportError("no")) == errors.status_name(errors.NotInstalled("x")) == "INTERNAL"
    assert errors.to_proto(errors.NotInstalled("never sent")).code == common_pb2.ERROR_CODE_INTERNAL


def test_an_unknown_code_becomes_a_plain_error() -> None:
    back = errors.from_proto(common_pb2.Error(code=4711, message="new"))  # type: ignore[arg-type]
    assert type(back) is errors.LogitportError
    assert back.message == "new"


def test_requests_failed_names_each() -> None:
    failed = errors.RequestsFailed({3: errors.InvalidArgument("no token_ids"), 5: errors.StateLost("gone")}, "result")
    assert str(failed).startswith("2 requests failed; the others got their result:")
    assert "3: InvalidArgument: no token_ids" in str(failed)
    assert "5: StateLost: gone" in str(failed)
    assert failed.result == "result"
    assert isinstance(failed.failures[3], ValueError)
    alone = errors.RequestsFailed({0: errors.InvalidArgument("no token_ids")}, None)
    assert str(alone).startswith("1 request failed; the others, if any, got their result:\n  0: Inv")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc é 漢", "a\tb\nc é 漢"),
        ("\x1b[2J\r\x00\x7f", "\\x1b[2J\\r\\x00\\x7f"),
        ("\u202eevil\u2028", "\\u202eevil\\u2028"),  # reverses the direction of the text; separates lines
    ],
)
def test_characters_that_cannot_be_printed_are_escaped(text: str, shown: str) -> None:
    assert errors.escaped(text) == shown


def test_output_is_shown_escaped_and_kept_as_it_is() -> None:
    printed = ProcessorOutput("d" * 64, "Ban (sha256:dddddddddddd)", "a\x1b[2J\n", 0.5)

    assert str(printed).endswith(" Ban (sha256:dddddddddddd)\na\\x1b[2J")
    assert printed.text == "a\x1b[2J\n"


def test_error_is_shown_escaped_and_kept_as_it_is() -> None:
    """Another principal may have shipped the processor that raises it."""
    error = errors.LogitportError("raised \x1b[2J", remote_traceback="a\x1b]0;b\x07\n")

    assert str(error) == "raised \\x1b[2J\n\nRemote traceback:\na\\x1b]0;b\\x07"
    assert error.message == "raised \x1b[2J"
    assert error.remote_traceback == "a\x1b]0;b\x07\n"


def test_error_keeps_its_output_on_the_wire() -> None:
    error = errors.LogitportError("it failed", remote_traceback="a traceback\n", output="a\x1b[2J\n")
    received = errors.from_proto(errors.to_proto(error))

    assert received.output == "a\x1b[2J\n"
    assert str(received) == ("it failed\n\nRemote traceback:\na traceback\n\nOutput of the processor:\na\\x1b[2J")
