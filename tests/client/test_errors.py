"""The tree of exceptions, and the table that maps it to error codes."""

from __future__ import annotations

import inspect
import re

import grpc
import pytest

import logitport
from logitport import errors
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
    assert errors.status_name(errors.LogitportError("no")) == "INTERNAL"


def test_an_error_that_is_never_sent_becomes_internal() -> None:
    error = errors.NotInstalled("no hypothesis")
    assert errors.to_proto(error).code == common_pb2.ERROR_CODE_INTERNAL
    assert errors.status_name(error) == "INTERNAL"


def test_an_unknown_code_becomes_a_plain_error() -> None:
    back = errors.from_proto(common_pb2.Error(code=4711, message="new"))  # type: ignore[arg-type]
    assert type(back) is errors.LogitportError
    assert back.message == "new"


def test_str_shows_the_remote_traceback() -> None:
    assert str(errors.ProcessorFailed("it raised")) == "it raised"
    shown = str(errors.ProcessorFailed("it raised", remote_traceback='  File "x.py", line 3\nNameError: y\n'))
    assert shown.startswith("it raised\n\nRemote traceback:\n")
    assert shown.endswith("NameError: y")


def test_requests_failed_names_each() -> None:
    failed = errors.RequestsFailed({3: errors.InvalidArgument("no token_ids"), 5: errors.StateLost("gone")}, "result")
    assert str(failed).startswith("2 requests failed; the others got their result:")
    assert "3: InvalidArgument: no token_ids" in str(failed)
    assert "5: StateLost: gone" in str(failed)
    assert failed.result == "result"
    assert isinstance(failed.failures[3], ValueError)


def test_requests_failed_with_one_request() -> None:
    failed = errors.RequestsFailed({0: errors.InvalidArgument("no token_ids")}, None)
    assert str(failed).startswith("1 request failed; the others, if any, got their result:\n  0: Inv")
