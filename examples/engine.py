"""A complete engine: continuous batching, overlap, speculative decoding, and logits processors that run elsewhere.

Read `Engine` to write an engine of your own; docs/engines/your-own.md explains it. The model below it is a toy with
random weights, in place of yours. `python examples/engine.py` runs both, with its own server.
"""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from logitport import Client, LogitportError, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from logitport.session import Handle, Session


@dataclass(eq=False)
class Generation:
    """One request, from submission to its end. Its `sampling_params` set max_tokens and stop_token_ids."""

    request: Request
    output: list[int] = field(default_factory=list)
    error: LogitportError | None = None
    handle: Handle = field(init=False)  # the session's name for the request
    slot: int = field(init=False)  # its index in the model's cache
    cached: int = 0  # number of ids in the cache
    new: list[int] = field(default_factory=list)  # ids that were sampled last; not yet sent to the service
    drafts: list[int] = field(default_factory=list)  # ids that may follow

    @property
    def token_ids(self) -> list[int]:
        return [*self.request.prompt_token_ids, *self.output]


class Engine:
    """Decodes greedily, and has the service process the logits of every step.

    Args:
        session: with the service, as wide as the model's vocabulary.
        model: see `Model.forward`.
        slots: how many requests run at once; the others wait.
        draft: guesses the next ids; without it there is no speculation.
    """

    def __init__(
        self, session: Session, model: Model, *, slots: int = 4, draft: Callable[[list[int]], list[int]] | None = None
    ) -> None:
        self.session, self.model, self.draft = session, model, draft or (lambda _: [])
        self.waiting: deque[Generation] = deque()
        self.running: list[Generation] = []
        self.free_slots = list(range(slots))
        self.steps = self.drafted = self.accepted = 0

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """Run all requests to their end."""
        generations = [self.submit(request) for request in requests]
        while self.waiting or self.running:
            self.step()
        return generations

    def submit(self, request: Request) -> Generation:
        """Queue a request, at any time; it runs when a slot is free."""
        self.waiting.append(Generation(request))
        return self.waiting[-1]

    def step(self) -> None:
        """Run one forward pass for all running requests."""
        self.admit()
        if not self.running:
            return
        for one in self.running:
            one.drafts = self.draft(one.token_ids)
        # Send the ids that were sampled last. Returns at once: the service finds its edits while the model computes.
        pending = self.session.step(
            {one.handle: one.new for one in self.running}, drafts={one.handle: one.drafts for one in self.running}
        )
        logits = self.forward()
        result = pending.apply(logits, check=False)
        sampled = iter(logits.argmax(axis=1).tolist())
        for one in list(self.running):
            token_ids = [next(sampled) for _ in range(1 + len(one.drafts))]
            one.error = result.failures.get(one.handle)
            if one.error or self.verify(one, token_ids):
                self.leave(one)
        self.steps += 1

    def admit(self) -> None:
        """Give free slots to waiting requests. A request that the service refuses ends here."""
        while self.waiting and self.free_slots:
            one = self.waiting.popleft()
            try:
                one.handle = self.session.add(one.request)
            except LogitportError as error:
                one.error = error
            else:
                one.slot = self.free_slots.pop()
                self.running.append(one)

    def forward(self) -> NDArray[np.float32]:
        """Run the model on new ids: one row for each request's last id, and one for each draft."""
        rows = [
            self.model.forward(one.slot, one.cached, one.token_ids[one.cached :] + one.drafts)[-1 - len(one.drafts) :]
            for one in self.running
        ]
        # The buffer is memory shared with the server: processors that read logits find them there, and none are sent.
        return np.concatenate(rows, out=self.session.logits_buffer(sum(map(len, rows))))

    def verify(self, one: Generation, sampled: list[int]) -> bool:
        """Accept right drafts and the id sampled after them. Returns whether the request is finished."""
        right = next((n for n, draft in enumerate(one.drafts) if draft != sampled[n]), len(one.drafts))
        self.drafted, self.accepted = self.drafted + len(one.drafts), self.accepted + right
        one.cached = len(one.token_ids) + right  # the next pass overwrites the wrong drafts in the cache,
        one.new = sampled[: right + 1]  # and the next step sends the accepted ids: the service drops the wrong drafts
        for token_id in one.new:
            one.output.append(token_id)
            params = one.request.sampling_params
            if token_id in params.get("stop_token_ids", ()) or len(one.output) == params.get("max_tokens", 64):
                return True
        return False

    def leave(self, one: Generation) -> None:
        """Remove a running request, finished or not. The session drops the state of its processors."""
        self.session.remove(one.handle)
        self.running.remove(one)
        self.free_slots.append(one.slot)


class Model:
    """One layer of attention with random weights and a cache per slot, so that logits depend on every earlier id."""

    def __init__(self, vocab_size: int = 128, *, slots: int = 4, max_length: int = 1024, seed: int = 0) -> None:
        random, width = np.random.default_rng(seed), 32
        self.embeddings = random.standard_normal((vocab_size, width))
        self.attention, self.values = random.standard_normal((2, width, width)) / width**0.5
        self.cache = np.zeros((slots, max_length, width))

    def forward(self, slot: int, start: int, token_ids: list[int]) -> NDArray[np.float32]:
        """Return the logits after each of these ids, float[len(token_ids), vocab_size].

        Args:
            slot: the cache to read and extend.
            start: how many ids of the request are in the cache; later entries are overwritten.
            token_ids: the ids that follow.
        """
        end = start + len(token_ids)
        self.cache[slot, start:end] = self.embeddings[token_ids]
        seen = self.cache[slot, :end]
        distance = np.arange(start, end)[:, None] - np.arange(end)
        scores = np.where(distance >= 0, seen[start:] @ self.attention @ seen.T - 0.5 * distance, -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        mixed = weights / weights.sum(axis=1, keepdims=True) @ seen @ self.values
        return (mixed @ self.embeddings.T).astype(np.float32)


def prompt_lookup(token_ids: list[int], most: int = 3) -> list[int]:
    """Return as drafts the ids after the last id's previous occurrence (Saxena, 2023, prompt lookup decoding)."""
    before = next((at for at in range(len(token_ids) - 2, -1, -1) if token_ids[at] == token_ids[-1]), None)
    return [] if before is None else token_ids[before + 1 : before + 1 + most]


@contextmanager
def serving() -> Iterator[str]:
    """Run a server while the context is open; yields its HOST:PORT."""
    command = [str(Path(sys.executable).with_name("logitport")), "serve", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            ready = server.stdout.readline() if server.stdout else ""
            if not ready:
                raise RuntimeError("the server did not start; run `logitport serve` to see its error")
            yield ready.split()[-1]
        finally:
            server.terminate()


def main() -> None:
    odd = ("disallowed_tokens", {"token_ids": list(range(1, 128, 2))})
    repeats = ("no_repeat_ngram", {"ngram_size": 2})
    chains = {
        "nothing": [],
        "no odd ids": [odd],
        "no pair twice": [repeats],
        "both": [odd, repeats],
        "an unknown processor": [("no_such_thing", {})],
    }
    prompt = [1, 2, 3]
    requests = [
        Request(prompt, processors=chain, request_id=name, sampling_params={"max_tokens": 24})
        for name, chain in chains.items()
    ]
    with serving() as target, Client(target) as client, client.session(vocab_size=128, max_draft_tokens=3) as session:
        engine = Engine(session, Model(128, slots=2), slots=2, draft=prompt_lookup)
        print(f"Five requests with the prompt {prompt} share two slots. The processors of each:\n")
        for one in engine.generate(requests):
            print(f"{one.request.request_id:>20}: {one.error or ' '.join(map(str, one.output))}")
        print(f"\nlogitport at {target} computed the edits during the forward pass.")
        print(f"{4 * 24} ids took {engine.steps} steps of two: {engine.accepted} were accepted draft tokens.")
        print(f"{engine.drafted - engine.accepted} draft tokens were rejected.")


if __name__ == "__main__":
    main()
