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
ON_THE_WIRE = [cls for cls in CLASSES if any(cls is row[0] for row in errors._TABLE)]


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
    assert {cls.__name__ for cls in CLASSES} <= set(logitport.__all__)


def test_every_code_has_one_exception_and_a_status() -> None:
    codes = [code for _, code, _ in errors._TABLE]
    assert sorted(codes) == sorted(set(common_pb2.ErrorCode.values()) - {common_pb2.ERROR_CODE_UNSPECIFIED})
    assert len(ON_THE_WIRE) == len(codes)
    assert all(hasattr(grpc.StatusCode, status) for _, _, status in errors._TABLE)


def test_only_errors_that_are_never_sent_lack_a_code() -> None:
    without_code = {cls.__name__ for cls in CLASSES if cls not in ON_THE_WIRE}
    assert without_code == {
        *("LogitportError", "AccessError", "RegistryError", "PayloadError", "SessionError"),  # branches of the tree
        *(
            "NotCapturable",
            "PayloadNotPortable",
            "ServerUnavailable",
            "DeadlineExceeded",
            "RequestsFailed",
            "NotInstalled",
            "LawBroken",
            "InvalidRecording",
        ),  # raised by the client
    }


@pytest.mark.parametrize("cls", ON_THE_WIRE)
def test_round_trip(cls: type[errors.LogitportError]) -> None:
    error = cls("what, where, what to do", processor="demo/x", remote_traceback="Traceback: ...")
    back = errors.from_proto(common_pb2.Error.FromString(errors.to_proto(error).SerializeToString()))
    assert type(back) is cls
    assert (back.message, back.processor, back.remote_traceback) == (
        "what, where, what to do",
        "demo/x",
        "Traceback: ...",
    )


def test_a_subclass_is_sent_as_its_nearest_ancestor() -> None:
    class Narrower(errors.InvalidParams):
        pass

    assert errors.to_proto(Narrower("no")).code == common_pb2.ERROR_CODE_INVALID_PARAMS
    assert errors.status_name(Narrower("no")) == "INVALID_ARGUMENT"
    assert errors.status_name(errors.LogitportError("no")) == "INTERNAL"


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
    failed = errors.RequestsFailed({3: errors.InvalidParams("no token_ids"), 5: errors.StateLost("gone")}, "result")
    assert str(failed).startswith("2 requests failed; the others got their result:")
    assert "3: InvalidParams: no token_ids" in str(failed)
    assert "5: StateLost: gone" in str(failed)
    assert failed.result == "result"
    assert isinstance(failed.failures[3], ValueError)


def test_requests_failed_with_one_request() -> None:
    failed = errors.RequestsFailed({0: errors.InvalidParams("no token_ids")}, None)
    assert str(failed).startswith("1 request failed; the others, if any, got their result:\n  0: Inv")
