"""Random steps of a batch: processors with state by slot equal a naive model of each row."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport.core import tensors
from logitport.core.drafts import Drafts
from logitport_proto import processing_pb2
from logitport_session.engine_session import session_steps
from logitport_session.stubs.vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor
from tests.slot_processors import derive, naive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.server.conftest import Engine, EngineRequest

VOCAB = 24
REQUESTS = 8
INF = float("inf")
CLASSES = derive(LogitsProcessor)
V2 = ("Biases", "BadWords", "Counts")


class Modelled:
    """A request, and the facts from which its expected rows follow.

    Attributes:
        steps: how many steps it had rows in since it was last added to its processors.
        seen: length of its history in the last of these steps.
    """

    def __init__(self, known: EngineRequest, chain: list[tuple[str, dict[str, Any]]]) -> None:
        self.known = known
        self.chain = chain
        self.steps = self.seen = 0

    def row(self, before: list[float], drafts: list[int]) -> list[float]:
        """The expected row after the chain."""
        prompt = list(self.known.request.prompt_token_ids)
        output = self.known.history[len(prompt) :] + drafts
        for name, params in self.chain:
            if name == "DenyHistory":
                before = [-INF if token_id in {*prompt, *output} else value for token_id, value in enumerate(before)]
            elif name == "AddOutputs":
                before = [value + len(output) for value in before]
            else:
                before = naive(name, before, prompt, output, params, self.steps)
        return before


class RandomEngine:
    """An engine that adds, removes, reorders and rewinds requests, and drafts trees."""

    def __init__(self, engine: Engine, rng: random.Random) -> None:
        self.engine, self.rng = engine, rng
        self.requests: dict[int, Modelled] = {}
        self.generation = 0

    def step(self) -> None:
        """Add and remove some requests; then run one step with some of them."""
        rng = self.rng
        for slot in [slot for slot in self.requests if rng.random() < 0.1]:
            self.engine.remove(self.requests.pop(slot).known)
        for slot in [slot for slot in range(REQUESTS) if slot not in self.requests and rng.random() < 0.4]:
            self.requests[slot] = self._new(slot)
        for request in self.requests.values():
            if rng.random() < 0.05:
                self._cut_back(request)
        chosen = rng.sample(list(self.requests.values()), rng.randint(0, len(self.requests)))
        new_ids = {request.known: self._ids(3) for request in chosen}
        drafts = {request.known: self._drafts() for request in chosen} if rng.random() < 0.7 else {}
        rows = list(self._rows(chosen, drafts))
        reply = self.engine.step(
            new_ids,
            drafts,
            row_requests=int32(chosen.index(request) for request, _ in rows),
            row_draft_offsets=int32(offset for _, offset in rows),
            draft_parents=int32(parent for request in chosen for parent in drafts.get(request.known, Drafts()).parents),
        )
        assert not reply.failures
        for request in {request for request, _ in rows}:
            request.steps += 1
            request.seen = len(request.known.history)
        self._process(rows, drafts, reply)

    def _process(self, rows: list[tuple[Modelled, int]], drafts: dict[EngineRequest, Drafts], reply: Any) -> None:
        requested = memoryview(reply.logits_rows).cast("i").tolist() if reply.logits_rows else []
        assert requested == list(range(len(rows)))
        if not rows:
            return
        logits = torch.randn(len(rows), VOCAB)
        expected = [
            request.row(row, drafts.get(request.known, Drafts()).path(offset))
            for row, (request, offset) in zip(logits.tolist(), rows, strict=True)
        ]
        message, edited = processing_pb2.StepLogits(), processing_pb2.StepLogitsEdited()
        tensors.write(message.logits, logits)
        session_steps.edit_logits(self.engine.session, message, edited)
        assert not edited.failures
        torch.testing.assert_close(tensors.to_torch(edited.logits), torch.tensor(expected))

    def _rows(self, chosen: list[Modelled], drafts: dict[EngineRequest, Drafts]) -> Iterator[tuple[Modelled, int]]:
        """All rows, by request; sometimes some are missing, or the order is random."""
        every = [(request, offset) for request in chosen for offset in range(1 + len(drafts.get(request.known, ())))]
        if every and self.rng.random() < 0.2:
            every = self.rng.sample(every, self.rng.randint(1, len(every)))
        return iter(every)

    def _new(self, slot: int) -> Modelled:
        self.generation += 1
        names = self.rng.sample([*V2, *V2, "DenyHistory", "AddOutputs"], self.rng.randint(0, 3))
        chain = [(name, self._params(name)) for name in (*names, self.rng.choice(V2))]
        known = self.engine.add(slot, chain, self._ids(5), self.generation)
        return Modelled(known, chain)

    def _params(self, name: str) -> dict[str, Any]:
        if self.rng.random() < 0.2:
            return {}
        if name == "Biases":
            return {"bias": {"3": 1.5, str(self._id()): -4.0}, "min_tokens": self.rng.randint(0, 6), "stop": [2, 5]}
        return {"bad_words": [self._ids(3) or [1] for _ in range(3)]} if name == "BadWords" else {}

    def _cut_back(self, request: Modelled) -> None:
        """Cut sampled ids, as an engine may, and send the shorter history to the session before the next step."""
        history, prompt = request.known.history, len(request.known.request.prompt_token_ids)
        if len(history) > prompt:
            del history[self.rng.randint(prompt, len(history) - 1) :]
            self.engine.step({request.known: []})
            if len(history) < request.seen:
                request.steps = request.seen = 0

    def _id(self) -> int:
        return self.rng.randrange(VOCAB)

    def _drafts(self) -> Drafts:
        token_ids = self._ids(3)
        return Drafts(token_ids, [self.rng.randint(-1, at - 1) for at in range(len(token_ids))])

    def _ids(self, most: int) -> list[int]:
        return [self._id() for _ in range(self.rng.randint(0, most))]


def int32(values: Iterator[int]) -> bytes:
    return b"".join(value.to_bytes(4, "little", signed=True) for value in values)


@pytest.mark.parametrize("seed", range(20))
def test_random_steps_of_a_batch(open_engine: Any, seed: int) -> None:
    from tests.server.conftest import AddOutputs, DenyHistory

    classes = (CLASSES.Biases, CLASSES.BadWords, CLASSES.Counts, DenyHistory, AddOutputs)
    engine = open_engine(VOCAB, *classes, max_requests_per_session=REQUESTS, max_draft_tokens=3)
    random_engine = RandomEngine(engine, random.Random(seed))
    for _ in range(60):
        random_engine.step()
