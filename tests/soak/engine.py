"""One engine, a process of its own: `python -m tests.soak.engine TARGET SEED`.

Until SIGTERM it opens sessions, and in each lets requests come and go. Every row that the server has processed is
compared with what it must be; a single wrong one ends the engine with status 1. At the end it prints what it has done.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from logitport import (
    Client,
    LogitportError,
    ProcessorFailed,
    Request,
    ServerUnavailable,
    StateLost,
    UnknownProcessor,
)
from tests.soak.chains import ChainEntry, random_chain

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport import Session

T = TypeVar("T")

# What a request may end with whose worker was killed. ProcessorTimedOut is a ProcessorFailed.
_OF_WORKERS = (ProcessorFailed, StateLost)
_PATIENCE_SECONDS = 60.0


@dataclass(eq=False)
class Running:
    """A request, and what the engine knows of it."""

    handle: Any
    chain: list[ChainEntry]
    history: list[int]
    new: list[int] = field(default_factory=list)
    name: str = ""

    def expected(self, row: torch.Tensor) -> torch.Tensor:
        for link in self.chain:
            link.expect(row, self.history, link.params, link.kept)
        return row


class Engine:
    """Says what it does to nobody, and ends with an AssertionError when the server is wrong."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._random = Random(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self._seed = seed
        self._names = 0
        self.stopping = False
        self.done: Counter[str] = Counter()

    def run(self) -> None:
        while not self.stopping:
            vocab_size = self._random.choice([50, 333, 1000, 4096])
            transport = self._random.choice(["grpc", "local"])
            with self._patiently(
                lambda vocab_size=vocab_size, transport=transport: self._client.session(
                    vocab_size=vocab_size, dtype=torch.float32, transport=transport, reconnect_seconds=_PATIENCE_SECONDS
                )
            ) as session:
                self._generate(session, vocab_size)
                self.done["reconnects"] += session.reconnects
            self.done["sessions"] += 1

    def _generate(self, session: Session, vocab_size: int) -> None:
        running: list[Running] = []
        for _ in range(self._random.randint(5, 60)):
            if self.stopping:
                break
            while len(running) < 12 and self._random.random() < 0.4:
                running += self._begin(session, vocab_size)
            if running:
                self._step(session, running, vocab_size)
            for one in [one for one in running if self._random.random() < 0.05]:
                running.remove(one)
                self._end(session, one)
        for one in running:
            self._forget_name(one)

    def _begin(self, session: Session, vocab_size: int) -> list[Running]:
        """A request, unless a worker was killed that had to load what it ships."""
        chain = random_chain(self._random, vocab_size)
        prompt = [self._random.randrange(vocab_size) for _ in range(self._random.randint(0, 40))]
        processors = [(link.processor, link.params) for link in chain]
        name = ""
        try:
            if chain[0].shipped and self._random.random() < 0.3:
                self._names += 1
                name = f"soak/e{self._seed}-{self._names}"
                self._patiently(lambda: self._client.register(chain[0].processor, name=name))
                processors[0] = (name, chain[0].params)
                self.done["registered"] += 1
            handle = session.add(Request(prompt, processors=processors, tenant=f"t{self._random.randrange(3)}"))
        except _OF_WORKERS as error:
            self._fail(error, chain)
            return []
        self.done["requests"] += 1
        return [Running(handle, chain, prompt, name=name)]

    def _step(self, session: Session, running: list[Running], vocab_size: int) -> None:
        taking_part = self._random.sample(running, self._random.randint(1, len(running)))
        for one in taking_part:
            one.history += one.new
        pending = session.step({one.handle: one.new for one in taking_part})
        for one in taking_part:
            one.new = []
        rows = torch.randn(len(taking_part), vocab_size, generator=self._generator)
        logits = rows.clone()
        if self._random.random() < 0.5:
            logits = session.logits_buffer(len(rows))
            logits.copy_(rows)
        result = pending.apply(logits, check=False)
        assert not result.skipped
        for one, row, came in zip(taking_part, rows, logits, strict=True):
            error = result.failures.get(one.handle)
            if error is not None:
                self._fail(error, one.chain)
                running.remove(one)
                self._end(session, one)
                continue
            expected = one.expected(row)
            assert torch.equal(came, expected), f"{one.handle}: {[link.processor for link in one.chain]}"
            self.done["rows"] += 1
            one.new = [self._random.randrange(vocab_size)]
        self.done["steps"] += 1

    def _end(self, session: Session, one: Running) -> None:
        session.remove(one.handle)
        self._forget_name(one)

    def _forget_name(self, one: Running) -> None:
        if one.name:
            with suppress(UnknownProcessor):  # a server that was started again has none
                self._patiently(lambda: self._client.delete(one.name))
            one.name = ""

    @staticmethod
    def _patiently(call: Callable[[], T]) -> T:
        """Sessions outlive their server by themselves; other calls are tried again until there is another."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return call()
            except ServerUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _fail(self, error: LogitportError, chain: list[ChainEntry]) -> None:
        """Only what was shipped may fail, and only as it does whose worker was killed."""
        assert isinstance(error, _OF_WORKERS), repr(error)
        assert any(link.shipped for link in chain), repr(error)
        self.done[type(error).__name__] += 1


def main() -> None:
    target, seed = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    with Client(target) as client:
        engine = Engine(client, seed)

        def stop(*_: object) -> None:
            engine.stopping = True

        signal.signal(signal.SIGTERM, stop)
        print("running", flush=True)  # noqa: T201
        engine.run()
        print(json.dumps(engine.done), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
