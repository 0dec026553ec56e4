"""Which principals have the scope `cuda` on a real server and, on a GPU, how rows are sent to workers."""

from __future__ import annotations

import re
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import AccessDenied, Client, CustomLogitProcessor, Request
from logitport_server.access import new_token
from tests.toy_processors import DoubleInPlace, DoubleLater

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import RunningServer

VOCAB = 50_000
ALL_SCOPES = "has all scopes: apply, register, admin, cuda"
SCOPES_BY_NAME = {"granted": ["register", "cuda"], "not granted": ["register"], "engine": ["apply"], "only": ["cuda"]}
TOKENS = {name: new_token(name.replace(" ", "-"), scopes) for name, scopes in SCOPES_BY_NAME.items()}
GRANTS = [grant for _, grant in TOKENS.values()]
on_a_gpu = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
]


class OnCuda(CustomLogitProcessor):
    """Adds 2 if the logits are on a GPU, else 1. Returns a new tensor."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits + (2 if logits.is_cuda else 1)


class BreaksCuda(CustomLogitProcessor):
    """Breaks the CUDA context by an out-of-bounds read in a kernel."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits[torch.full((len(logits),), 1 << 40, device=logits.device)]


def test_without_authentication_all_clients_have_the_scope_and_it_is_logged(server: RunningServer) -> None:
    assert f"any client that can reach 127.0.0.1:0 {ALL_SCOPES}" in server.log.read_text()


def test_with_authentication_the_scope_must_be_granted(start_server: Callable[..., RunningServer]) -> None:
    running = start_server(grants=GRANTS)
    assert ALL_SCOPES not in running.log.read_text()
    with Client(running.target, token=TOKENS["only"][0]) as client, pytest.raises(AccessDenied, match="may not call"):
        client.processors()
    with Client(running.target, token=TOKENS["granted"][0]) as client:
        assert client.processors()


@pytest.fixture(scope="module")
def cuda_server(serving: Callable[..., Any]) -> Iterator[Any]:
    pytest.importorskip("cuda.bindings", reason="GPU memory is shared by cuda-bindings")
    patience = ("--processor-timeout-seconds", "30", "--load-timeout-seconds", "60")
    options = ("--device", "cuda", "--enable-custom-logit-processor", "--metrics-listen", "127.0.0.1:0", *patience)
    with serving(*options, grants=GRANTS) as running:
        yield running


def worker_calls(running: RunningServer) -> dict[str, float]:
    """Count worker calls by the memory of their rows, and workers that could not use the GPU."""
    page = urllib.request.urlopen(running.metrics_url).read().decode()
    ways = re.findall(r'logitport_worker_logits_total{memory="(\w+)"} (\S+)', page)
    refused = re.findall(r"logitport_worker_gpus_refused_total (\S+)", page)[0]
    return {way: float(number) for way, number in ways} | {"refused": float(refused)}


def register(running: RunningServer, author: str, *processors: type[CustomLogitProcessor]) -> list[Any]:
    with Client(running.target, token=TOKENS[author][0]) as client:
        return [client.register(processor, shared=True) for processor in processors]


@contextmanager
def open_session(running: RunningServer) -> Iterator[Any]:
    with (
        Client(running.target, token=TOKENS["engine"][0]) as client,
        client.session(vocab_size=VOCAB, device="cuda") as session,
    ):
        yield session


def step(session: Any, handles: list[Any], logits: torch.Tensor) -> Any:
    return session.step(dict.fromkeys(handles, ())).apply(logits)


class TestOnAGpu:
    """Not yet run, for lack of a machine with a GPU."""

    pytestmark = on_a_gpu

    @pytest.mark.parametrize(("author", "way"), [("granted", "device"), ("not granted", "host")])
    @pytest.mark.parametrize("in_buffer", [True, False])
    def test_rows_go_to_workers_on_the_gpu_only_with_the_scope(
        self, cuda_server: Any, author: str, way: str, in_buffer: bool
    ) -> None:
        double, on_cuda = register(cuda_server, author, DoubleInPlace, OnCuda)
        before = worker_calls(cuda_server)
        with open_session(cuda_server) as session:
            chains = ((double,), (), (double, on_cuda), (on_cuda,))
            handles = [session.add(Request(processors=[(one, {}) for one in chain])) for chain in chains]
            for _ in range(3):
                values = torch.randn(len(handles), VOCAB, device="cuda")
                logits = session.logits_buffer(len(handles)) if in_buffer else torch.empty_like(values)
                logits.copy_(values)
                step(session, handles, logits)
                added = 2.0 if author == "granted" else 1.0
                expected = torch.stack([values[0] * 2, values[1], values[2] * 2 + added, values[3] + added])
                assert torch.equal(logits, expected)
        after = worker_calls(cuda_server)
        assert after[way] > before[way]
        assert {name: after[name] for name in after if name != way} == {
            name: before[name] for name in before if name != way
        }

    def test_the_engine_reads_what_the_workers_last_kernel_wrote(self, cuda_server: Any) -> None:
        (late,) = register(cuda_server, "granted", DoubleLater)
        with open_session(cuda_server) as session:
            handles = [session.add(Request(processors=[(late, {})]))]
            logits = session.logits_buffer(1)
            logits.fill_(5.0)
            step(session, handles, logits)
            assert (logits == 10.0).all()

    def test_the_worker_reads_what_the_engines_last_kernel_wrote(self, cuda_server: Any) -> None:
        (double,) = register(cuda_server, "granted", DoubleInPlace)
        with open_session(cuda_server) as session:
            handles = [session.add(Request(processors=[(double, {})]))]
            logits = session.logits_buffer(1)
            torch.cuda._sleep(2_000_000_000)
            logits.fill_(5.0)
            step(session, handles, logits)
            assert (logits == 10.0).all()

    def test_a_broken_cuda_context_affects_only_its_own_worker(self, cuda_server: Any) -> None:
        breaks, double = register(cuda_server, "granted", BreaksCuda, DoubleInPlace)
        with open_session(cuda_server) as session:
            bad = session.add(Request(processors=[(breaks, {})], on_error="skip"))
            logits = session.logits_buffer(1)
            logits.fill_(3.0)
            assert list(step(session, [bad], logits).skipped) == [bad]
            assert (logits == 3.0).all()
            session.remove(bad)
            good = session.add(Request(processors=[(double, {})]))
            step(session, [good], logits)
            assert (logits == 6.0).all()

    def test_on_a_server_without_authentication(self, start_server: Callable[..., Any]) -> None:
        pytest.importorskip("cuda.bindings")
        options = ("--enable-custom-logit-processor", "--metrics-listen", "127.0.0.1:0")
        running = start_server("--device", "cuda", *options)
        assert "processes of all authors (authentication is off) hold cuda" in running.log.read_text()
        with Client(running.target) as client, client.session(vocab_size=VOCAB, device="cuda") as session:
            handles = [session.add(Request(processors=[(DoubleInPlace, {})]))]
            logits = session.logits_buffer(1)
            logits.fill_(3.0)
            step(session, handles, logits)
            assert (logits == 6.0).all()
        assert worker_calls(running)["device"] == 1
