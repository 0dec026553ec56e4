"""An engine of the soak test, in its own process: `python -m tests.soak.engine TARGET SEED`.

Until SIGTERM it opens sessions, and adds and removes requests in them. It compares every processed row with the
reference. A wrong row ends the engine with status 1. At the end it prints its counts.
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

from logitport import Client, LogitportError, NotFound, ProcessorFailed, Request, ServerUnavailable, StateLost
from tests.soak.chains import ChainEntry, random_chain

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport.session import Session

T = TypeVar("T")

# Errors of requests after their worker was killed. ProcessorFailed is a ProcessorFailed.
_WORKER_ERRORS = (ProcessorFailed, StateLost)
_RETRY_SECONDS = 60.0


@dataclass(eq=False)
class Running:
    """A running request, as the engine tracks it."""

    handle: Any
    chain: list[ChainEntry]
    history: list[int]
    new: list[int] = field(default_factory=list)
    name: str = ""

    def expected(self, row: torch.Tensor) -> torch.Tensor:
        for entry in self.chain:
            entry.expect(row, self.history, entry.params, entry.state)
        return row


class Engine:
    """Runs random requests. Raises AssertionError if a row is wrong."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._random = Random(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self._seed = seed
        self._names = 0
        self.stopping = False
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        while not self.stopping:
            vocab_size = self._random.choice([50, 333, 1000, 4096])
            transport = self._random.choice(["grpc", "local"])
            with self._with_retries(
                lambda vocab_size=vocab_size, transport=transport: self._client.session(
                    vocab_size=vocab_size, dtype=torch.float32, transport=transport, reconnect_seconds=_RETRY_SECONDS
                )
            ) as session:
                self._generate(session, vocab_size)
                self.counts["reconnects"] += session.reconnects
            self.counts["sessions"] += 1

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
        """Add a request. Returns an empty list if the worker that loads its processors was killed."""
        chain = random_chain(self._random, vocab_size)
        prompt = [self._random.randrange(vocab_size) for _ in range(self._random.randint(0, 40))]
        processors = [(entry.processor, entry.params) for entry in chain]
        name = ""
        try:
            if chain[0].shipped and self._random.random() < 0.3:
                self._names += 1
                name = f"soak/e{self._seed}-{self._names}"
                self._with_retries(lambda: self._client.register(chain[0].processor, name=name))
                processors[0] = (name, chain[0].params)
                self.counts["registered"] += 1
            handle = session.add(Request(prompt, processors=processors, tenant=f"t{self._random.randrange(3)}"))
        except _WORKER_ERRORS as error:
            self._fail(error, chain)
            return []
        self.counts["requests"] += 1
        return [Running(handle, chain, prompt, name=name)]

    def _step(self, session: Session, running: list[Running], vocab_size: int) -> None:
        selected = self._random.sample(running, self._random.randint(1, len(running)))
        for one in selected:
            one.history += one.new
        pending = session.step({one.handle: one.new for one in selected})
        for one in selected:
            one.new = []
        rows = torch.randn(len(selected), vocab_size, generator=self._generator)
        logits = rows.clone()
        if self._random.random() < 0.5:
            logits = session.logits_buffer(len(rows))
            logits.copy_(rows)
        result = pending.apply(logits, check=False)
        assert not result.skipped
        for one, row, row_after in zip(selected, rows, logits, strict=True):
            error = result.failures.get(one.handle)
            if error is not None:
                self._fail(error, one.chain)
                running.remove(one)
                self._end(session, one)
                continue
            expected = one.expected(row)
            assert torch.equal(row_after, expected), f"{one.handle}: {[entry.processor for entry in one.chain]}"
            self.counts["rows"] += 1
            one.new = [self._random.randrange(vocab_size)]
        self.counts["steps"] += 1

    def _end(self, session: Session, one: Running) -> None:
        session.remove(one.handle)
        self._forget_name(one)

    def _forget_name(self, one: Running) -> None:
        if one.name:
            with suppress(NotFound):  # a restarted server has no names
                self._with_retries(lambda: self._client.delete(one.name))
            one.name = ""

    @staticmethod
    def _with_retries(call: Callable[[], T]) -> T:
        """Retry the call while the server restarts. Sessions reconnect by themselves; other calls do not."""
        deadline = time.monotonic() + _RETRY_SECONDS
        while True:
            try:
                return call()
            except ServerUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _fail(self, error: LogitportError, chain: list[ChainEntry]) -> None:
        """Count an error. Only shipped processors may fail, and only with the errors of a killed worker."""
        assert isinstance(error, _WORKER_ERRORS), repr(error)
        assert any(entry.shipped for entry in chain), repr(error)
        self.counts[type(error).__name__] += 1


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
        print(json.dumps(engine.counts), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
