"""The local transport: its buffers, and when it is used. tests/attacks has invalid tokens, frames and regions."""

from __future__ import annotations

import gc
import socket
import threading
import weakref
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch

from logitport import Client, InvalidArgument, LimitExceeded, Request
from tests.descriptors import descriptors
from tests.toy_processors import HalveInPlace
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.conftest import RunningServer

VOCAB = 1000


def test_a_client_on_this_host_uses_it_by_default(client: Client) -> None:
    with client.session(vocab_size=VOCAB) as session:
        assert session.transport == "local"
    with client.session(vocab_size=VOCAB, transport="grpc") as session:
        assert session.transport == "grpc"


def test_logits_in_the_buffer_are_edited_in_place(client: Client) -> None:
    with client.session(vocab_size=VOCAB, dtype=torch.float32, transport="local") as session:
        handles = [session.add(Request(processors=[(HalveInPlace, {})])) for _ in range(3)]
        logits = session.logits_buffer(3)
        logits.fill_(8.0)
        address = logits.data_ptr()
        session.step({handle: [] for handle in handles}).apply(logits)
        assert (logits == 4.0).all()
        assert session.logits_buffer(2).data_ptr() == address
        session.step({handles[2]: [], handles[0]: []}).apply(session.logits_buffer(2))
        assert logits[:, 0].tolist() == [2.0, 2.0, 4.0]


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("transport", ["local", "grpc"])
def test_only_the_rows_that_are_read_are_copied(client: Client, kind: str, transport: Any) -> None:
    with client.session(vocab_size=VOCAB, dtype=torch.float32, transport=transport) as session:
        reads = [session.add(Request(processors=[(HalveInPlace, {})])) for _ in range(2)]
        plain = [session.add(Request()) for _ in range(2)]
        before = torch.randn(4, VOCAB)
        logits: Any = before.clone() if kind == "torch" else before.numpy().copy()
        session.step({plain[0]: [], reads[0]: [], plain[1]: [], reads[1]: []}).apply(logits)
        after = torch.as_tensor(logits)
        assert torch.equal(after[::2], before[::2])
        assert torch.equal(after[1::2], before[1::2] / 2)


def test_without_torch_the_buffer_is_an_array(client: Client) -> None:
    with client.session(vocab_size=VOCAB, dtype="float16", transport="local") as session:
        handle = session.add(Request(processors=[("disallowed_tokens", {"token_ids": [7]})]))
        logits = session.logits_buffer(1)
        assert isinstance(logits, np.ndarray)
        session.step({handle: []}).apply(logits)
        assert np.isneginf(logits[0, 7])
        assert np.isfinite(np.delete(logits[0], 7)).all()


@pytest.mark.parametrize("transport", ["local", "grpc"])
@pytest.mark.parametrize("placed", ["in the buffer", "elsewhere"])
def test_arrays_of_bfloat16(client: Client, transport: Any, placed: str) -> None:
    with client.session(vocab_size=VOCAB, dtype=ml_dtypes.bfloat16, transport=transport) as session:
        read = session.add(Request(processors=[(HalveInPlace, {})]))
        free = session.add(Request(processors=[("disallowed_tokens", {"token_ids": [7]})]))
        logits = session.logits_buffer(2)
        assert logits.dtype == ml_dtypes.bfloat16
        logits = logits if placed == "in the buffer" else logits.copy()
        logits[...] = 3
        session.step({read: [], free: []}).apply(logits)
        assert (logits[0] == 1.5).all()
        assert np.isneginf(logits[1, 7])
        assert (np.delete(logits[1], 7) == 3).all()


def test_more_memory_than_allowed(start_server: Any) -> None:
    server = start_server("--max-region-bytes", str(VOCAB * 4 * 2))
    with Client(server.target) as client, client.session(vocab_size=VOCAB, dtype=torch.float32) as session:
        handle = session.add(Request(processors=[("disallowed_tokens", {"token_ids": [7]})]))
        with pytest.raises(LimitExceeded, match="max_region_bytes"):
            session.logits_buffer(3)
        logits = session.logits_buffer(2)[:1]
        session.step({handle: []}).apply(logits)
        assert logits[0, 7] == -torch.inf


def test_a_server_without_local_transport(start_server: Any) -> None:
    server = start_server("--no-local-transport")
    with Client(server.target) as client:
        with client.session(vocab_size=VOCAB) as session:
            assert session.transport == "grpc"
        with pytest.raises(Exception, match="offers none"):
            client.session(vocab_size=VOCAB, transport="local")


def test_without_unix_sockets(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")  # like on Windows
    with client.session(vocab_size=VOCAB) as session:
        assert session.transport == "grpc"


def test_an_unclosed_session_ends_when_it_is_collected(server: Any) -> None:
    threads, before = threading.active_count(), descriptors()
    with Client(server.target) as client:
        session = client.session(vocab_size=VOCAB, transport="local")
        session.step({session.add(Request([1])): []}).apply(np.zeros((1, VOCAB), np.float32))
        ended = weakref.ref(session._channel.transport)
        del session
        gc.collect()
        assert ended() is None
    wait_until(
        lambda: threading.active_count() <= threads and descriptors() <= before,
        threading.enumerate,
    )


def test_wrong_logits_are_refused_before_anything_is_sent(client: Client) -> None:
    with client.session(vocab_size=VOCAB, dtype=torch.float32, transport="local") as session:
        handle = session.add(Request(processors=[(HalveInPlace, {})]))
        pending = session.step({handle: []})
        with pytest.raises(InvalidArgument):
            pending.apply(torch.zeros(1, VOCAB + 1))
        with pytest.raises(InvalidArgument):
            pending.apply(torch.zeros(1, VOCAB, dtype=torch.float16))
        logits = torch.ones(1, VOCAB)
        pending.apply(logits)
        assert (logits == 0.5).all()
        with pytest.raises(InvalidArgument, match="applied already"):
            pending.apply(logits)


WIDE = 4096
REQUESTS, GENERATED = 64, 3000  # edits of 64 * 3000 ids with their values: 1.5 MiB
STEPS = 3
REQUEST = Request(range(8), range(GENERATED), processors=[("frequency_penalty", {"frequency_penalty": 0.5})])


@pytest.fixture(scope="module")
def own_server(serving: Callable[..., AbstractContextManager[RunningServer]]) -> Iterator[RunningServer]:
    """A server of these tests alone: its end would fail the tests of others."""
    with serving() as own_server:
        yield own_server


def penalized(step: int) -> torch.Tensor:
    """The row of a request to which a new id was added in each of so many steps."""
    row = torch.zeros(WIDE)
    row[:GENERATED] = -0.5
    row[GENERATED] = -0.5 * step
    return row


def test_requests_are_removed_after_large_replies(own_server: RunningServer) -> None:
    with Client(own_server.target) as client, client.session(vocab_size=WIDE) as session:
        assert session.transport == "local"
        handles = [session.add(REQUEST) for _ in range(REQUESTS)]
        for step in range(STEPS):
            logits = torch.zeros(REQUESTS, WIDE)
            session.step({handle: [GENERATED] if step else [] for handle in handles}).apply(logits)
            assert torch.equal(logits, penalized(step).expand(REQUESTS, WIDE))
        session.remove(*handles)
        with client.session(vocab_size=WIDE) as other:
            logits = torch.zeros(1, WIDE)
            other.step({other.add(REQUEST): []}).apply(logits)
            assert torch.equal(logits, penalized(0)[None])
    assert own_server.process.poll() is None


@pytest.mark.parametrize("requests", [1, REQUESTS])
def test_a_connection_ends_after_a_large_reply(own_server: RunningServer, requests: int) -> None:
    with Client(own_server.target) as client:
        for _ in range(2):
            with client.session(vocab_size=WIDE) as session:
                handles = [session.add(REQUEST) for _ in range(requests)]
                session.step({handle: [] for handle in handles}).apply(torch.zeros(requests, WIDE))
    assert own_server.process.poll() is None
