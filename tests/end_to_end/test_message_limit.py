"""Limits of the message size on either side, and the errors of larger messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import Client, LimitExceeded, Request
from tests.toy_processors import AddOne

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


WIDE = 128 * 1024
SMALL_LIMIT = 1 << 20
ADVICE = r"Client\(\.\.\., max_message_bytes=\)\).*--max-message-bytes.*fewer rows"


@pytest.fixture(scope="module")
def small(serving: Callable[..., Any]) -> Iterator[Any]:
    """A server that accepts messages of up to 1 MiB."""
    with serving("--max-message-bytes", str(SMALL_LIMIT), "--enable-custom-logit-processor") as running:
        yield running


def too_large() -> np.ndarray[Any, Any]:
    return np.zeros((9, WIDE), np.float32)


def small_enough() -> np.ndarray[Any, Any]:
    return np.zeros((1, WIDE), np.float32)


def test_the_limit_is_above_the_default_of_grpc(client: Client) -> None:
    """The default of gRPC is 4 MiB: 8 rows of 128k float32, without any other field."""
    out = client.apply(too_large(), [Request(processors=[(AddOne, {})])] * 9)
    assert (out.logits == 1).all()
    with client.session(vocab_size=WIDE, transport="grpc") as session:
        handles = [session.add(Request(processors=[(AddOne, {})])) for _ in range(9)]
        logits = too_large()
        session.step({handle: [] for handle in handles}).apply(logits)
        assert (logits == 1).all()


@pytest.mark.parametrize("limited", ["server", "client"])
def test_over_the_limit_of_one_side(server: Any, small: Any, limited: str) -> None:
    options = {"max_message_bytes": SMALL_LIMIT} if limited == "client" else {}
    with Client((server if limited == "client" else small).target, **options) as client:
        with pytest.raises(LimitExceeded, match=ADVICE):
            client.apply(too_large(), [Request()] * 9)
        client.apply(small_enough(), [Request()])
        session_goes_on(client, reconnects=int(limited == "server"))


def session_goes_on(client: Client, *, reconnects: int) -> None:
    with client.session(vocab_size=WIDE, transport="grpc") as session:
        free = session.add(Request([5], processors=[("no_repeat_ngram", {"ngram_size": 1})]))
        reads = [session.add(Request(processors=[(AddOne, {})])) for _ in range(9)]
        with pytest.raises(LimitExceeded, match=ADVICE):
            session.step({handle: [] for handle in reads}).apply(too_large())
        for handle in reads:
            session.remove(handle)
        logits = small_enough()
        session.step({free: [6]}).apply(logits)
        assert np.flatnonzero(logits == -np.inf).tolist() == [5, 6]
        assert session.reconnects == reconnects


def test_logits_in_shared_memory_have_no_such_limit(small: Any) -> None:
    with Client(small.target) as client, client.session(vocab_size=WIDE, transport="local") as session:
        handles = [session.add(Request(processors=[(AddOne, {})])) for _ in range(9)]
        logits = too_large()
        session.step({handle: [] for handle in handles}).apply(logits)
        assert (logits == 1).all()


def test_the_client_knows_the_servers_limit_on_a_local_transport(small: Any) -> None:
    with Client(small.target) as client, client.session(vocab_size=WIDE, transport="local") as session:
        with pytest.raises(LimitExceeded, match=ADVICE):
            session.add(Request([1] * SMALL_LIMIT))
        assert session.reconnects == 0


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["grpc", "local", "embedded"])
def test_a_frame_with_too_many_fields_fails_its_own_request(server: Any, transport: Any) -> None:
    ban = ("disallowed_tokens", {"token_ids": [3, 5]})
    options = {} if transport == "embedded" else {"transport": transport}
    with (
        Client.embedded() if transport == "embedded" else Client(server.target) as client,
        client.session(vocab_size=40, **options) as session,
    ):
        handle = session.add(Request([1], processors=[ban]))
        with pytest.raises(LimitExceeded, match="524288 fields"):
            session.add(Request([1], processors=[ban] * 150_000))
        logits = np.zeros((1, 40), np.float32)
        session.step({handle: [2]}).apply(logits)
        assert np.flatnonzero(logits == -np.inf).tolist() == [3, 5]
        assert session.reconnects == 0
