"""Who has the scope `cuda`, as a real server sees it; and, where there is a GPU, which way rows of it go to workers."""

from __future__ import annotations

import re
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import Client, CustomLogitProcessor, NotPermitted, Request
from logitport_server.access import new_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import RunningServer

VOCAB = 50_000
EVERYONE = "has all scopes: apply, register, admin, cuda"
WHO = {"granted": ["register", "cuda"], "not granted": ["register"], "engine": ["apply"], "only": ["cuda"]}
MADE = {name: new_token(name.replace(" ", "-"), scopes) for name, scopes in WHO.items()}
on_a_gpu = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
]


class Double(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits.mul_(2)


class OnCuda(CustomLogitProcessor):
    """Adds 2 if the logits are on a GPU, and else 1; in a new tensor."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits + (2 if logits.is_cuda else 1)


class Late(CustomLogitProcessor):
    """Doubles about a second after it has returned."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        torch.cuda._sleep(2_000_000_000)
        return logits.mul_(2)


class BreaksCuda(CustomLogitProcessor):
    """As a kernel does that reads where it may not."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits[torch.full((len(logits),), 1 << 40, device=logits.device)]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("access") / "tokens"
    path.write_text("\n".join(grant.line for _, grant in MADE.values()))
    return path


def test_where_nobody_is_asked_everyone_has_it_and_is_told(server: RunningServer) -> None:
    assert f"any client that can reach 127.0.0.1:0 {EVERYONE}" in server.log.read_text()


def test_where_somebody_is_asked_it_is_the_operators_to_grant(
    start_server: Callable[..., RunningServer], tokens: Path
) -> None:
    running = start_server("--tokens", str(tokens))
    assert EVERYONE not in running.log.read_text()
    with Client(running.target, token=MADE["only"][0]) as client, pytest.raises(NotPermitted, match="may not call"):
        client.processors()
    with Client(running.target, token=MADE["granted"][0]) as client:
        assert client.processors()


@pytest.fixture(scope="module")
def cuda_server(serving: Callable[..., Any], tokens: Path) -> Iterator[Any]:
    pytest.importorskip("cuda.bindings", reason="GPU memory is shared by cuda-bindings")
    patience = ("--processor-timeout-seconds", "30", "--load-timeout-seconds", "60")
    options = ("--device", "cuda", "--enable-custom-logit-processor", "--metrics-listen", "127.0.0.1:0", *patience)
    with serving("--tokens", str(tokens), *options) as running:
        yield running


def counted(running: RunningServer) -> dict[str, float]:
    """Calls of workers by where their rows were, and workers that could not use the GPU."""
    page = urllib.request.urlopen(running.metrics_url).read().decode()
    ways = re.findall(r'logitport_worker_logits{memory="(\w+)"} (\S+)', page)
    refused = re.findall(r"logitport_worker_gpus_refused (\S+)", page)[0]
    return {way: float(number) for way, number in ways} | {"refused": float(refused)}


def register(running: RunningServer, author: str, *processors: type[CustomLogitProcessor]) -> list[Any]:
    with Client(running.target, token=MADE[author][0]) as client:
        return [client.register(processor, shared=True) for processor in processors]


@contextmanager
def open_session(running: RunningServer) -> Iterator[Any]:
    with (
        Client(running.target, token=MADE["engine"][0]) as client,
        client.session(vocab_size=VOCAB, device="cuda") as session,
    ):
        yield session


def step(session: Any, handles: list[Any], logits: torch.Tensor) -> Any:
    return session.step(dict.fromkeys(handles, ())).apply(logits)


class TestOnAGpu:
    """Not yet run: there was no machine with a GPU to run it on."""

    pytestmark = on_a_gpu

    @pytest.mark.parametrize(("author", "way"), [("granted", "device"), ("not granted", "host")])
    @pytest.mark.parametrize("in_buffer", [True, False])
    def test_the_scope_is_the_way(self, cuda_server: Any, author: str, way: str, in_buffer: bool) -> None:
        double, tells = register(cuda_server, author, Double, OnCuda)
        before = counted(cuda_server)
        with open_session(cuda_server) as session:
            asked = ((double,), (), (double, tells), (tells,))
            handles = [session.add(Request(processors=[(one, {}) for one in chain])) for chain in asked]
            for _ in range(3):
                values = torch.randn(len(handles), VOCAB, device="cuda")
                logits = session.logits_buffer(len(handles)) if in_buffer else torch.empty_like(values)
                logits.copy_(values)
                step(session, handles, logits)
                told = 2.0 if author == "granted" else 1.0
                expected = torch.stack([values[0] * 2, values[1], values[2] * 2 + told, values[3] + told])
                assert torch.equal(logits, expected)
        after = counted(cuda_server)
        assert after[way] > before[way]
        assert {name: after[name] for name in after if name != way} == {
            name: before[name] for name in before if name != way
        }

    def test_the_engine_gets_what_a_kernel_of_the_worker_wrote_last(self, cuda_server: Any) -> None:
        (late,) = register(cuda_server, "granted", Late)
        with open_session(cuda_server) as session:
            handles = [session.add(Request(processors=[(late, {})]))]
            logits = session.logits_buffer(1)
            logits.fill_(5.0)
            step(session, handles, logits)
            assert (logits == 10.0).all()

    def test_the_worker_gets_what_a_kernel_of_the_engine_wrote_last(self, cuda_server: Any) -> None:
        (double,) = register(cuda_server, "granted", Double)
        with open_session(cuda_server) as session:
            handles = [session.add(Request(processors=[(double, {})]))]
            logits = session.logits_buffer(1)
            torch.cuda._sleep(2_000_000_000)
            logits.fill_(5.0)
            step(session, handles, logits)
            assert (logits == 10.0).all()

    def test_who_breaks_cuda_costs_its_own_worker(self, cuda_server: Any) -> None:
        breaks, double = register(cuda_server, "granted", BreaksCuda, Double)
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

    def test_on_a_server_that_asks_nobody(self, start_server: Callable[..., Any]) -> None:
        pytest.importorskip("cuda.bindings")
        options = ("--enable-custom-logit-processor", "--metrics-listen", "127.0.0.1:0")
        running = start_server("--device", "cuda", *options)
        assert "processes of all authors (authentication is off) hold cuda" in running.log.read_text()
        with Client(running.target) as client, client.session(vocab_size=VOCAB, device="cuda") as session:
            handles = [session.add(Request(processors=[(Double, {})]))]
            logits = session.logits_buffer(1)
            logits.fill_(3.0)
            step(session, handles, logits)
            assert (logits == 6.0).all()
        assert counted(running)["device"] == 1
