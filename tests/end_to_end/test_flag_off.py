"""Without --enable-custom-logit-processor, shipped processors are neither accepted nor unpickled."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest

from logitport import Client, PayloadError, Request
from logitport_builtins import DisallowedTokens
from logitport_proto import registry_pb2, registry_pb2_grpc
from tests.toy_processors import Unchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.conftest import RunningServer

VOCAB = 8


class Touch:
    """An object whose unpickling creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.fixture(scope="module")
def server(serving: Callable[..., AbstractContextManager[RunningServer]]) -> Iterator[RunningServer]:
    """A server without the flag, with built-ins only: other tests register programs in the one that all share."""
    with serving() as running:
        yield running


@pytest.fixture
def closed(server: RunningServer) -> Iterator[Client]:
    with Client(server.target) as client:
        yield client


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[str]:
    """A payload whose unpickling creates a file."""
    trace = tmp_path / "unpickled"
    data = pickle.dumps(Touch(trace))
    pickle.loads(data)
    assert trace.exists(), "the trap does not work"
    trace.unlink()
    yield json.dumps({"callable": data.hex()})
    assert not trace.exists(), "the server has unpickled a payload that it must not even look at"


def logits(rows: int = 1) -> np.ndarray[Any, Any]:
    return np.zeros((rows, VOCAB), np.float32)


def test_register(closed: Client, trap: str) -> None:
    for processor in (trap, Unchanged):
        with pytest.raises(PayloadError, match="--enable-custom-logit-processor"):
            closed.register(processor, name="team/x")
    assert all(ref.builtin for ref in closed.processors())


@pytest.mark.parametrize("on_error", ["abort", "skip"])
def test_inline_in_apply_fails_only_its_request(closed: Client, trap: str, on_error: Any) -> None:
    requests = [
        Request(processors=[(trap, {})], on_error=on_error),
        Request(processors=[("disallowed_tokens", {"token_ids": [3]})]),
    ]
    result = closed.apply(logits(2), requests, check=False)
    failed = result.failures if on_error == "abort" else result.skipped
    assert {index: type(error) for index, error in failed.items()} == {0: PayloadError}
    assert np.flatnonzero(result.logits == -np.inf).tolist() == [VOCAB + 3]
    assert not result.logits[0].any()


@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_inline_in_a_session(closed: Client, trap: str, transport: Any) -> None:
    with closed.session(vocab_size=VOCAB, transport=transport) as session:
        for processor in (trap, Unchanged):
            with pytest.raises(PayloadError):
                session.add(Request(processors=[(processor, {})]))
        handle = session.add(Request(processors=[("disallowed_tokens", {"token_ids": [3]})]))
        row = logits()
        session.step({handle: []}).apply(row)
        assert np.flatnonzero(row == -np.inf).tolist() == [3]


def test_the_status_is_permission_denied(server: RunningServer, trap: str) -> None:
    with grpc.insecure_channel(server.target) as channel:
        stub = registry_pb2_grpc.ProcessorRegistryStub(channel)
        with pytest.raises(grpc.RpcError) as raised:
            stub.Register(registry_pb2.RegisterRequest(payload=trap), timeout=200)
        assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_built_ins_work_by_name_class_and_reference(closed: Client) -> None:
    reference = closed.processor("disallowed_tokens")
    for processor in ("disallowed_tokens", DisallowedTokens, DisallowedTokens(), reference):
        result = closed.apply(logits(), [Request(processors=[(processor, {"token_ids": [3]})])])
        assert np.flatnonzero(result.logits == -np.inf).tolist() == [3]
