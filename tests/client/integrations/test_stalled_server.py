"""Each hook with a server that opens sessions and then does not answer: the engine must not block again and again."""

from __future__ import annotations

import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, Qwen2ForCausalLM

from logitport import Client, EditProcessor, LogitportError
from logitport.integrations import llama_cpp, mlx_lm, transformers
from logitport.integrations.common import trials
from logitport.integrations.common.engine_step import EngineStep
from logitport.integrations.common.ranks import Ranks
from logitport.integrations.sglang.hook import Hook
from logitport.integrations.transformers.continuous import RemoteLogitsProcessor as ContinuousProcessor
from logitport.integrations.vllm import request_trials
from logitport.integrations.vllm.remote_batch import RemoteBatch, RemoteRequest
from logitport.shipping.request import Request
from tests.client.integrations.conftest import VOCAB_SIZE
from tests.client.integrations.sglang.test_hook import Req, params_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.clock import Clock
    from tests.conftest import RunningServer

    Call = Callable[[], str]

TIMEOUT = 1.0
# More than a pause, and less than twice that.
A_PAUSE = 1.6 * TIMEOUT


class Stalls(EditProcessor):
    """Blocks in `edit` or in `start` while a file exists."""

    def start(self, request):
        self._wait(request.params, "start")

    def edit(self, request, edits):
        self._wait(request.params, "edit")

    @staticmethod
    def _wait(params, where):
        import time
        from pathlib import Path

        while params["in"] == where and Path(params["file"]).exists():
            time.sleep(0.01)


class Stalling:
    """A server with steps that stall, and a client of it.

    Attributes:
        client: has a timeout of TIMEOUT seconds.
        file: steps stall while it exists.
        sessions: the number of sessions requested.
    """

    def __init__(self, client: Client, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client = client
        self.file = file
        self.sessions = 0
        self.monkeypatch = monkeypatch

        def session(**options: Any) -> Any:
            self.sessions += 1
            return opened(**options)

        opened = client.session
        monkeypatch.setattr(client, "session", session)

    def chain(self, where: str = "edit") -> list[Any]:
        return [["tests/stalls", {"in": where, "file": str(self.file)}]]


@pytest.fixture(scope="module")
def target(serving: Callable[..., AbstractContextManager[RunningServer]]) -> Iterator[str]:
    """A server with the stalling processor registered."""
    with serving("--enable-custom-logit-processor", "--isolation", "none") as running:
        with Client(running.target) as client:
            client.register(Stalls, name="tests/stalls")
        yield running.target


@pytest.fixture
def stalling(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stalling]:
    file = tmp_path / "stall"
    with Client(target, timeout=TIMEOUT) as client:
        yield Stalling(client, file, monkeypatch)
    file.unlink(missing_ok=True)


@contextmanager
def vllm(stalling: Stalling, _model: Any) -> Iterator[Call]:
    stalling.monkeypatch.setattr("logitport.integrations.common.environment.client", lambda: stalling.client)
    batch = RemoteBatch({"vocab_size": VOCAB_SIZE}, Ranks())

    def run() -> str:
        request, step = RemoteRequest("r", 2, ending_id=1), EngineStep()
        batch.admit(request, lambda: Request([5, 6], processors=stalling.chain()))
        step.add(request, [], 0)
        batch.begin(step)
        batch.finish(step, torch.zeros(1, VOCAB_SIZE))
        batch.release(request)
        return repr(request.error or "")

    yield run


@contextmanager
def vllm_admission(stalling: Stalling, _model: Any) -> Iterator[Call]:
    stalling.monkeypatch.setattr(request_trials, "sampling_params", lambda params: {})
    stalling.monkeypatch.setattr(trials, "_VALID_SECONDS", 0.0)
    stalling.monkeypatch.setattr("logitport.integrations.common.environment.client", lambda: stalling.client)
    stalling.monkeypatch.setattr(request_trials, "trials", trials.Trials())
    params = SimpleNamespace(extra_args={"logitport": stalling.chain("start")}, stop_token_ids=[])
    yield lambda: error_of(lambda: request_trials.check(params))


@contextmanager
def sglang(stalling: Stalling, _model: Any) -> Iterator[Call]:
    ended: list[LogitportError] = []
    for name, stub in {
        "end": lambda req, error: ended.append(error),
        "published_names": dict,
        "max_draft_tokens": int,
        "is_disaggregated": bool,
    }.items():
        stalling.monkeypatch.setattr(f"logitport.integrations.sglang.hook.{name}", stub)
    hook = Hook(lambda: stalling.client, tuple, Ranks(), "")

    def run() -> str:
        ended.clear()
        req = Req([2])
        hook.process(torch.zeros(1, VOCAB_SIZE), [params_of(req, *stalling.chain())])
        req.ended = True
        return repr(ended[0]) if ended else repr("")

    yield run


@contextmanager
def of_transformers(stalling: Stalling, _model: Any) -> Iterator[Call]:
    remote = transformers.RemoteLogitsProcessor(stalling.chain(), client=stalling.client)
    yield lambda: error_of(lambda: remote(torch.tensor([[5, 6]]), torch.zeros(1, VOCAB_SIZE)))


@contextmanager
def continuous(stalling: Stalling, model: Qwen2ForCausalLM) -> Iterator[Call]:
    remote = ContinuousProcessor(client=stalling.client)
    generation = GenerationConfig(max_new_tokens=1, do_sample=False, eos_token_id=-1)
    batching = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=48)
    manager = remote.attach(model.init_continuous_batching(generation, batching))
    manager.start()

    def run() -> str:
        manager.add_request([5, 6], max_new_tokens=1, logitport=stalling.chain())
        return repr(manager.get_result(timeout=60).error or "")

    yield run
    manager.stop()
    manager.destroy()


@contextmanager
def of_llama_cpp(stalling: Stalling, _model: Any) -> Iterator[Call]:
    remote = llama_cpp.RemoteLogitsProcessor(stalling.chain(), client=stalling.client)
    ids, scores = np.array([5, 6], np.intc), np.zeros(VOCAB_SIZE, np.single)
    yield lambda: error_of(lambda: remote(ids, scores))


@contextmanager
def of_mlx_lm(stalling: Stalling, _model: Any) -> Iterator[Call]:
    remote = mlx_lm.RemoteLogitsProcessor(stalling.chain(), client=stalling.client)
    ids, logits = np.array([5, 6]), np.zeros((1, VOCAB_SIZE), np.float32)
    yield lambda: error_of(lambda: remote(ids, logits))


def error_of(call: Callable[[], object]) -> str:
    """Return the repr of the LogitportError that the call raises; of "" if it succeeds."""
    try:
        call()
    except LogitportError as error:
        return repr(error)
    return repr("")


HOOKS = [vllm, vllm_admission, sglang, of_transformers, continuous, of_llama_cpp, of_mlx_lm]


@pytest.mark.usefixtures("mlx")
@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.__name__)
def test_a_stalled_server_is_retried_rarely_and_used_again_once_it_answers(
    hook: Any, stalling: Stalling, clock: Clock, model: Qwen2ForCausalLM
) -> None:
    def calls_service() -> bool:
        """Return whether the hook calls the stalled service; the request fails either way."""
        before = stalling.sessions
        assert "ServerUnavailable" in run()
        return stalling.sessions > before

    with hook(stalling, model) as run:
        stalling.file.touch()
        assert calls_service()
        assert not any(calls_service() for _ in range(3))
        clock.now += A_PAUSE
        assert calls_service()
        clock.now += A_PAUSE
        assert not calls_service()  # pauses grow
        clock.now += A_PAUSE
        assert calls_service()

        stalling.file.unlink()
        served_by = time.monotonic() + 60
        while run() != repr(""):
            assert time.monotonic() < served_by
            clock.now += 100.0

        stalling.file.touch()
        assert "ServerUnavailable" in run()
        assert not calls_service()
        clock.now += A_PAUSE  # and are short again
        assert calls_service()
