"""Engines for tests with several servers: sessions whose edits are compared with the processor in this process."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import grpc
import numpy as np

from logitport import Request
from logitport_proto import processing_pb2, processing_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from logitport import Client
    from logitport.session import Handle, StepResult
    from tests.conftest import RunningServer

VOCAB = 64
NGRAMS = ("no_repeat_ngram", {"ngram_size": 2})
_WAIT_SECONDS = 120.0


class Engine:
    """A session with two requests.

    Attributes:
        wrong: number of rows with other edits than those of the whole history.
        steps: number of steps.
        longest_step: seconds of the longest one, in which all requests wait.
    """

    def __init__(self, client: Client, seed: int, transport: Literal["auto", "grpc"] = "auto") -> None:
        self.session = client.session(vocab_size=VOCAB, dtype="float32", max_requests=4, transport=transport)
        self.random = random.Random(seed)
        prompts = [[self.random.randrange(VOCAB) for _ in range(20)] for _ in range(2)]
        self.handles = [self.session.add(Request(prompt, processors=[NGRAMS])) for prompt in prompts]
        self.histories = prompts
        self.new: list[list[int]] = [[], []]
        self.wrong = 0
        self.steps = 0
        self.longest_step = 0.0

    @staticmethod
    def denied(history: list[int]) -> set[int]:
        """Ids that would repeat a bigram."""
        return {after for before, after in pairwise(history) if before == history[-1]}

    def step(self) -> None:
        logits, _ = self.timed_step(dict(zip(self.handles, self.new, strict=True)))
        self.sample(logits)

    def timed_step(self, new_ids: dict[Handle, list[int]]) -> tuple[np.ndarray, StepResult]:
        """Process zeros: float32[requests, VOCAB]."""
        logits = np.zeros((len(new_ids), VOCAB), np.float32)
        began = time.monotonic()
        result = self.session.step(new_ids).apply(logits, check=False)
        self.longest_step = max(self.longest_step, time.monotonic() - began)
        self.steps += 1
        assert not set(result.failures) & set(self.handles), result.failures
        return logits, result

    def sample(self, logits: np.ndarray) -> None:
        """Check the rows of the two requests, and sample a token for each."""
        for place, history in enumerate(self.histories):
            self.wrong += set(np.flatnonzero(np.isinf(logits[place])).tolist()) != self.denied(history)
            allowed = np.flatnonzero(~np.isinf(logits[place])).tolist()
            # A long run uses every bigram of an id. Then all ids are denied, and any of them continues the run.
            token = self.random.choice(allowed or range(VOCAB))
            history.append(token)
            self.new[place] = [token]


def run(engines: Sequence[Engine], steps: int, then: Callable[[], object]) -> None:
    """Run all engines at the same time, and do something when each is in the middle of its steps."""
    half = threading.Barrier(len(engines) + 1)

    def generate(engine: Engine) -> None:
        for number in range(steps):
            if number == steps // 2:
                half.wait(_WAIT_SECONDS)
            engine.step()

    with ThreadPoolExecutor(len(engines)) as threads:
        running = [threads.submit(generate, engine) for engine in engines]
        half.wait(_WAIT_SECONDS)
        then()
        for one in running:
            one.result()


@contextmanager
def generating(engines: Sequence[Engine], pause_seconds: float) -> Iterator[None]:
    """Run all engines while the context lasts, with a pause after each step. Raises the first error of an engine."""
    ending = threading.Event()

    def generate(engine: Engine) -> None:
        while not ending.wait(pause_seconds):
            engine.step()

    with ThreadPoolExecutor(len(engines)) as threads:
        running = [threads.submit(generate, engine) for engine in engines]
        try:
            yield
        finally:
            ending.set()
        for one in running:
            one.result()


def start_together(start_server: Callable[..., RunningServer], options: Sequence[Sequence[str]]) -> list[RunningServer]:
    """Start a server with each of these options, all at the same time: each takes seconds of CPU."""
    with ThreadPoolExecutor(len(options)) as threads:
        return list(threads.map(lambda of_one: start_server(*of_one), options))


def targets(cluster: Sequence[RunningServer]) -> list[str]:
    return [server.target for server in cluster]


def kill(server: RunningServer) -> None:
    server.process.kill()
    server.process.wait()


def sessions_of(server: RunningServer) -> list[int]:
    """The number of sessions of a server, and of their requests."""
    with grpc.insecure_channel(server.target) as channel:
        stub = processing_pb2_grpc.LogitProcessingStub(channel)
        load = stub.GetLoad(processing_pb2.GetLoadRequest(), timeout=200)
        return [load.sessions, load.requests]


def busiest(cluster: Sequence[RunningServer]) -> RunningServer:
    """The server with the most sessions."""
    return max(cluster, key=lambda server: sessions_of(server)[0])
