"""Calls with wrong arguments: each error message names the correct form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import Client, InvalidArgument, PayloadError, Request

if TYPE_CHECKING:
    from collections.abc import Callable

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tls": True}, r"tls is True; pass tls=Tls\(\), or tls=Tls\(ca=.*\) for an authority of your own"),
        ({"tls": "ca.pem"}, r"tls is 'ca\.pem'; pass tls=Tls\(\)"),
        ({"token": b"secret"}, r"the token is of type bytes; pass text"),
        ({"timeout": "30"}, r"timeout is '30'; pass seconds, more than 0"),
        ({"timeout": 0}, r"timeout is 0; pass seconds"),
        ({"max_message_bytes": "1"}, r"max_message_bytes is '1'; pass a whole number"),
    ],
)
def test_wrong_arguments_of_a_client(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as refused:
        Client(**{"target": NOWHERE, **wrong})
    assert "secret" not in str(refused.value)


def test_a_timeout_that_is_set_later() -> None:
    with Client(NOWHERE, timeout=5) as client:
        with pytest.raises(InvalidArgument, match=r"timeout is '30'; pass seconds, more than 0"):
            client.timeout = "30"  # type: ignore[assignment]
        assert client.timeout == 5.0
        client.timeout = 2
        assert client.timeout == 2.0


STEPS = [
    (lambda one: {one: 1}, {}, r"new_token_ids of <Handle 'r' .*> are 1; pass a sequence of ids, such as \[1\]"),
    (lambda one: [one], {}, r"new_token_ids is of type list; pass a dict of a sequence of ids for each handle"),
    (lambda one: one, {}, r"new_token_ids is of type Handle; pass a dict"),
    (lambda one: {one: []}, {"drafts": 1}, r"drafts is of type int; pass a dict"),
    (lambda one: {one: []}, {"drafts": lambda one: {one: 1}}, r"drafts of <Handle 'r' .*> are 1; pass a sequence"),
    (
        lambda one: {one: []},
        {"rows": lambda one: [(one, "0")]},
        r"rows\[0\] is \(<Handle 'r' .*>, '0'\); pass a handle",
    ),
    (lambda one: {one: []}, {"rows": 1}, r"rows is 1; pass a sequence of handles, or of \(handle, draft offset\)"),
    (lambda one: {one: []}, {"rows": [("one",)]}, r"rows\[0\] is \('one',\); pass a handle, or"),
]


@pytest.mark.parametrize(("new_token_ids", "more", "message"), STEPS)
def test_wrong_arguments_of_a_step(
    opened: Any, new_token_ids: Callable[[Any], Any], more: dict[str, Any], message: str
) -> None:
    session, script = opened()
    with session:
        one = session.add(Request([1], request_id="r"))
        with pytest.raises(InvalidArgument, match=message):
            session.step(
                new_token_ids(one), **{name: given(one) if callable(given) else given for name, given in more.items()}
            )
        assert [frame.WhichOneof("frame") for frame in script.frames] == ["open", "add"], "nothing was sent"
        assert session.step({one: [2]}) is not None
        assert one.history.length == 2


def test_an_object_that_is_not_a_request(opened: Any) -> None:
    session, _ = opened()
    with session:
        with pytest.raises(
            InvalidArgument, match=r"an object of type dict is not a request: pass a logitport\.Request"
        ):
            session.add({"prompt_token_ids": [1]})
        with pytest.raises(InvalidArgument, match=r"an object of type type is not a request"):
            session.add(Request)
        assert len(session) == 0


@pytest.mark.parametrize(
    ("given", "quoted"), [("me/b", "'me/b'"), ("", "''"), ("[]", r"'\[\]'"), ("x" * 10**6, rf"'{'x' * 80}\.\.\.'")]
)
def test_a_string_that_is_not_a_serialized_processor(given: str, quoted: str) -> None:
    message = rf"^{quoted} is not a serialized processor: pass a class, or a string made by to_str\(\)$"
    with Client(NOWHERE) as client, pytest.raises(PayloadError, match=message):
        client.register(given, name="me/c")


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        (Request([1]), r"requests is of type Request; pass a sequence of logitport\.Request"),
        ([{"prompt_token_ids": [1]}], r"an object of type dict is not a request: pass a logitport\.Request"),
        (None, r"requests is of type NoneType; pass a sequence"),
    ],
)
def test_wrong_requests_of_apply(requests: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Client(NOWHERE).apply(np.zeros((1, 4), np.float32), requests)
