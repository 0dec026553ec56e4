"""A checked engine: every row of every step is compared with the reference."""

from __future__ import annotations

import time
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport import Client, LogitportError, NotFound, Request, ServerUnavailable
from tests.storm import chains
from tests.storm.actors import own_process
from tests.storm.actors.base import Actor
from tests.storm.actors.checked import EOS, Comparison, Running, logits, processors
from tests.storm.actors.engine_events import draw
from tests.storm.classes import GOOD
from tests.storm.reference import Context

if TYPE_CHECKING:
    from collections import Counter

    from tests.storm.script import Event

_RECONNECT_SECONDS = 120.0
# Bounds of calls on an idle machine, without code that was shipped.
STEP_SECONDS, ADD_SECONDS, OPEN_SECONDS = 1.0, 2.0, 5.0
_MAX_IDS = 1 << 20  # the default of --max-tokens-per-request
_MAX_REQUESTS, _MAX_WIDE_REQUESTS = 12, 4


class Engine(Actor):
    """An engine with one session at a time."""

    kind = "engine"

    @staticmethod
    def draw(random: Random, seconds: float, **given: Any) -> list[Event]:
        return draw(random, seconds, **given)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._client: Client | None = None
        self._session: Any = None
        self._running: list[Running] = []
        self._pending: dict[Any, Running] = {}
        self._opening: Event = {}
        self._names = self._reconnects = 0
        self._comparison = Comparison(self.records)
        self._open_at_first: Counter[str] | None = None

    # Events.

    def open(self, event: Event) -> None:
        """Open a session instead of the present one."""
        self.close()
        if self._open_at_first is None and self._opening:  # what gRPC keeps is open now
            self._open_at_first = own_process.open_now()
        self._opening, only = event, event.get("server")
        self.records.common = {"principal": event["principal"], "only": None if only is None else f"server-{only}"}
        embedded = event["transport"] == "embedded"
        token = self.setting.tokens.get(event["principal"])
        self._client = Client.embedded() if embedded else Client(self._targets, token=token, timeout=60)
        self._session = self._open_session()
        self.count["sessions"] += 1
        self._reconnects = 0

    def add(self, event: Event) -> None:
        """Admit a request with a random chain."""
        if self._session is None or len(self._running) + len(self._pending) >= self._most:
            return
        random, count = Random(event["seed"]), event["ids"]
        harmful = self._opening["harmful"] and random.random() < 0.3
        chain = chains.draw_bad(random) if harmful else chains.draw(random, self._vocab, self._classes)
        ids = np.random.default_rng(event["seed"]).integers(0, self._vocab, count, dtype=np.int32)
        if count and random.random() < 0.5:  # repetitions
            ids %= random.randint(1, self._vocab)
        one = Running(chain, ids, random.randint(0, count), harmful=harmful, skips=harmful and random.random() < 0.3)
        tenant = f"bad {random.randrange(3)}" if harmful else f"good {random.randrange(2)}"
        self.count[f"{event['how']} of {'harmful' if harmful else 'good'} requests"] += 1
        one.since = time.monotonic()
        bound = ADD_SECONDS + count * 1e-5 + (self.setting.load_seconds if chains.ships(chain) else 0)
        try:
            with self.records.waiting("add", bound, **self._fields(one)):
                request = self._request(one, tenant, random)
                if event["how"] == "add":
                    self._admitted(one, self._session.add(request))
                    return
                if event["how"] == "entered":
                    one.entered, (one.handle,) = True, self._session.enter([request], seconds=bound)
                    self._running.append(one)
                    return
                (pending,) = self._session.begin_add([request])
        except LogitportError as error:
            self._failed(one, error)
            return
        if event["how"] == "cancelled":
            pending.cancel()
        else:
            self._pending[pending] = one

    def steps(self, event: Event) -> None:
        """Run steps of random requests."""
        random = Random(event["seed"])
        generator = np.random.default_rng(event["seed"])
        for _ in range(event["count"]):
            self.poll(event)
            if not self._running or time.monotonic() > self.setting.until:
                return
            self._step(random.sample(self._running, random.randint(1, len(self._running))), random, generator)

    def remove(self, event: Event) -> None:
        """Remove a request."""
        if self._running:
            self._end(Random(event["seed"]).choice(self._running))

    def rewind(self, event: Event) -> None:
        """Take ids of a request back."""
        random = Random(event["seed"])
        candidates = [one for one in self._running if chains.follows_from_history(one.chain) and not one.harmful]
        if candidates:
            one = random.choice(candidates)
            last = len(one.ids)
            length = random.choice([one.prompt, random.randint(one.prompt, last), max(one.prompt, last - 3)])
            self._session.rewind(one.handle, length)
            one.ids, one.new, one.drafts = one.ids[:length], [], []
            self.count["rewinds"] += 1

    def poll(self, event: Event) -> None:
        """Collect the requests that were admitted in the background."""
        if not self._pending:
            return
        with self.records.waiting("poll", STEP_SECONDS):
            ended = self._session.poll()
        for pending in ended:
            if (one := self._pending.pop(pending, None)) is None:
                continue
            if pending.error is not None:
                self._failed(one, pending.error)
            elif pending.handle is not None:
                self._admitted(one, pending.handle)

    def apply(self, event: Event) -> None:
        """Process rows in one call, without a session."""
        if self._client is None:
            return
        random = Random(event["seed"])
        generator = np.random.default_rng(event["seed"])
        vocab = random.choice([50, 1000])
        requests = []
        for _ in range(random.randint(1, 4)):
            ids = generator.integers(0, vocab, random.randint(0, 60), dtype=np.int32)
            one = Running(chains.draw(random, vocab, self._classes), ids, random.randint(0, len(ids)), calls=1)
            one.since = time.monotonic()
            requests.append(one)
        rows = logits(generator, len(requests), vocab)
        messages = [
            Request(one.ids[: one.prompt], one.ids[one.prompt :], processors(one.chain), tenant="apply")
            for one in requests
        ]
        bound = STEP_SECONDS + self.setting.step_seconds + self.setting.load_seconds
        with self.records.waiting("apply", bound):
            result = self._client.apply(rows, messages, check=False)
        for at, one in enumerate(requests):
            if at in result.failures:
                self._failed(one, result.failures[at])
            else:
                context = Context(one.ids, one.prompt, vocab)
                self._comparison.row(one, result.logits[at], context, rows[at])

    def close(self) -> None:
        self._running, self._pending = [], {}
        if self._client is not None:
            with self.records.waiting("close", STEP_SECONDS * 2):
                self._client.close()
        self._client = self._session = None

    def run(self, events: list[Event], begun: float) -> None:
        """Run events, and look for what their sessions have left open."""
        super().run(events, begun)
        if self._open_at_first is not None and (left := own_process.left_over(self._open_at_first)):
            self.records.add("leak", what="engine", detail=f"an engine without a session has {dict(left)}")

    # Parts of events.

    @property
    def _vocab(self) -> int:
        return self._opening["vocab"]  # type: ignore[no-any-return]

    @property
    def _most(self) -> int:
        return _MAX_WIDE_REQUESTS if self._vocab == chains.WIDE else _MAX_REQUESTS

    @property
    def _targets(self) -> list[str]:
        only = self._opening.get("server")
        return self.setting.targets if only is None else [self.setting.targets[only]]

    @property
    def _classes(self) -> tuple[str, ...]:
        return ("ScaleProgram",) if self._opening["transport"] == "embedded" else tuple(GOOD)

    def _open_session(self) -> Any:
        import torch

        event, client = self._opening, self._client
        assert client is not None
        transport: Any = "auto" if event["transport"] == "embedded" else event["transport"]
        dtype = torch.float32 if event["torch"] else "float32"
        with self.records.waiting("open", OPEN_SECONDS):
            return self.retry(
                lambda: client.session(
                    vocab_size=event["vocab"], dtype=dtype, transport=transport, reconnect_seconds=_RECONNECT_SECONDS,
                    programs=event["programs"], eos_token_ids=[EOS], max_draft_tokens=4, engine=self.name,
                )
            )  # fmt: skip

    def _request(self, one: Running, tenant: str, random: Random) -> Request:
        chain = processors(one.chain)
        if chain and chains.ships(one.chain[:1]) and not one.harmful and random.random() < 0.2:
            self._names += 1
            name = f"{self.name}/n{self._names}"
            assert self._client is not None
            client, shipped = self._client, chain[0][0]
            self.retry(lambda: client.register(shipped, name=name, replace=True, lift=False))
            one.name, chain[0] = name, (name, chain[0][1])
        prompt, output = one.ids[: one.prompt], one.ids[one.prompt :]
        return Request(prompt, output, chain, tenant=tenant, on_error="skip" if one.skips else "abort")

    def _admitted(self, one: Running, handle: Any) -> None:
        one.handle = handle
        self._running.append(one)
        if len(one.ids) > _MAX_IDS:
            self.records.add("exception", error="NotRefused", detail=f"a history of {len(one.ids)} ids was admitted")

    def _step(self, chosen: list[Running], random: Random, generator: Any) -> None:
        drafts = {}
        for one in chosen:
            one.drafts = []
            if random.random() < 0.2 and chains.follows_from_history(one.chain) and not one.harmful:
                one.drafts = drafts[one.handle] = generator.integers(0, self._vocab, random.randint(1, 4)).tolist()
        rows = [(one, at) for one in chosen for at in range(len(one.drafts) + 1)]
        raw = logits(generator, len(rows), self._vocab)
        processed = self._memory(raw, buffered=random.random() < 0.5)  # may fail: then no id was sent
        for one in chosen:
            one.ids = np.append(one.ids, np.array(one.new, np.int32))
        begun, fields = time.monotonic(), self._fields(*chosen)
        try:
            with self.records.waiting("step", self._bound(chosen), **fields):
                pending = self._session.step({one.handle: one.new for one in chosen}, drafts=drafts)
                result = pending.apply(processed, check=False)
        except LogitportError as error:
            for one in chosen:
                self._failed(one, error)
            self.open(self._opening)
            return
        failed = {**result.failures, **result.skipped}
        for one in chosen:
            one.calls += 1
            if one.handle not in failed:
                one.since = begun
        self._comparison.step(rows, raw, np.asarray(processed), result)
        for one in chosen:
            if one.handle in failed:
                self._failed(one, failed[one.handle])
                if not one.skips:
                    self._end(one)
            accepted = random.randint(0, len(one.drafts))
            one.new = [*one.drafts[:accepted], random.randrange(self._vocab)]
        self.count["steps"] += 1
        if (reconnects := self._session.reconnects) > self._reconnects:
            self.count["reconnects"] += reconnects - self._reconnects
            self._reconnects = reconnects
            self.records.add("failure", error="Reconnected", begun=begun, ships=False)

    def _memory(self, raw: Any, *, buffered: bool) -> Any:
        """A copy of the logits, in shared memory or not."""
        import torch

        memory = self._session.logits_buffer(len(raw)) if buffered else np.empty_like(raw)
        if self._opening["torch"] and not buffered:
            memory = torch.from_numpy(memory)
        np.asarray(memory)[:] = raw
        return memory

    def _bound(self, chosen: list[Running]) -> float:
        """The longest duration of a step on an idle machine: docs/security.md, "Promises to other callers"."""
        shipped = self._fields(*chosen)["ships"]
        admissions = ADD_SECONDS + self.setting.load_seconds if any(it.entered and not it.calls for it in chosen) else 0
        return STEP_SECONDS + self._vocab * 1e-5 + (self.setting.step_seconds + 0.8 if shipped else 0) + admissions

    def _fields(self, *requests: Running) -> dict[str, Any]:
        return {"ships": any(chains.ships(one.chain) for one in requests)}

    def _failed(self, one: Running, error: LogitportError) -> None:
        if max(len(one.ids), one.longest) > _MAX_IDS and type(error).__name__ == "LimitExceeded":
            self.count["too long histories"] += 1
            return
        self.count[f"{'harmful' if one.harmful else 'good'} requests that failed"] += 1
        self.records.add(
            "failure", error=type(error).__name__, code=error.code, detail=str(error)[-1500:], begun=one.since,
            chain=one.chain, harmful=one.harmful, follows=chains.follows_from_history(one.chain), **self._fields(one),
            beside_harm=self._opening["harmful"], transport=self._opening["transport"],
        )  # fmt: skip

    def _end(self, one: Running) -> None:
        self._running.remove(one)
        with self.records.waiting("remove", STEP_SECONDS):
            self._session.remove(one.handle)
        if one.name and self._client is not None:
            with suppress(NotFound, ServerUnavailable):
                self._client.delete(one.name)
