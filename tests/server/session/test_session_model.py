"""Random actions of an engine on a session, compared with a model that keeps only lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from logitport import LogitportError, ProcessorFailed, StateLost
from tests.server.conftest import Submitted
from tests.tiers import examples

if TYPE_CHECKING:
    from collections.abc import Callable

VOCAB = 40
BOMB = 13
INF = float("inf")
IDS = st.lists(st.integers(0, 30), max_size=4)
CHAINS: list[list[tuple[str, dict[str, Any]]]] = [
    [("DenyHistory", {"bomb": BOMB})],
    [("AddOutputs", {})],
    [("CountCalls", {})],
    [("AddOutputs", {}), ("DenyHistory", {"bomb": BOMB})],
    [("DenyHistory", {"bomb": BOMB}), ("CountCalls", {})],
]


class Model:
    """The expected state of one request."""

    def __init__(self, known: Any, chain: list[tuple[str, dict[str, Any]]]) -> None:
        self.known = known
        self.names = [name for name, _ in chain]
        self.calls = 0
        self.lost = False
        self.on_server = list(known.history)

    @property
    def reads_logits(self) -> bool:
        return self.names != ["DenyHistory"]

    def row(self) -> list[float]:
        """Return a row of zeros after the chain."""
        outputs = len(self.known.history) - len(self.known.request.prompt_token_ids)
        value = outputs * ("AddOutputs" in self.names) + self.calls * ("CountCalls" in self.names)
        denied = set(self.known.history) if "DenyHistory" in self.names else set()
        return [-INF if token_id in denied else float(value) for token_id in range(VOCAB)]


class Machine(RuleBasedStateMachine):
    """All requests have on_error="skip", so that no failure ends them."""

    open_engine: Any

    @initialize()
    def open(self) -> None:
        self.submitted = Submitted()
        self.engine = self.open_engine(VOCAB, max_draft_tokens=2, submit=self.submitted)
        self.models: dict[int, Model] = {}
        # Requests whose admission was not reported, by slot; and the ends of those that have begun.
        self.pending: dict[int, Model] = {}
        self.running: list[Callable[[], None]] = []
        self.generation = 0

    def free_slots(self) -> list[int]:
        return [slot for slot in range(4) if slot not in self.models and slot not in self.pending]

    @precondition(lambda self: self.free_slots())
    @rule(chain=st.sampled_from(CHAINS[1:]), prompt=IDS, tenant=st.sampled_from("ab"), data=st.data())
    def begin_add(self, chain: Any, prompt: list[int], tenant: str, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.free_slots()))
        self.generation += 1
        known, reply = self.engine.begin_add(slot, chain, prompt, self.generation, on_error="skip", tenant=tenant)
        assert reply.pending == b"\1"
        self.pending[slot] = Model(known, chain)
        self.take(reply)

    @precondition(lambda self: len(self.submitted))
    @rule(data=st.data())
    def run_admission(self, data: st.DataObject) -> None:
        """Begin an admission, and perhaps end it later."""
        work, end = self.submitted.begin(data.draw(st.integers(0, len(self.submitted) - 1)))

        def finish() -> None:
            work()
            end()

        if data.draw(st.booleans()):
            finish()
        else:
            self.running.append(finish)

    @precondition(lambda self: self.running)
    @rule()
    def end_admission(self) -> None:
        self.running.pop(0)()

    @rule()
    def poll(self) -> None:
        self.take(self.engine.send_add(in_background=True))
        assert len(self.engine.session) == len(self.models)
        assert self.engine.session.pending == len(self.pending)

    def take(self, reply: Any) -> None:
        for ended in reply.ended:
            assert not ended.HasField("error")
            model = self.models[ended.slot] = self.pending.pop(ended.slot)
            assert (model.known.generation, model.reads_logits) == (ended.generation, ended.reads_logits)

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), anew=st.booleans())
    def cancel(self, data: st.DataObject, anew: bool) -> None:
        """Remove a pending request, or replace it by the same one with a longer history."""
        slot = data.draw(st.sampled_from(sorted(self.pending)))
        model = self.pending[slot]
        if anew:
            model.known.history.append(7)
            model.on_server.append(7)
            self.take(self.engine.send_add(model.known, in_background=True))
        else:
            del self.pending[slot]
            self.engine.remove(model.known)

    @precondition(lambda self: self.free_slots())
    @rule(chain=st.sampled_from(CHAINS), prompt=IDS, data=st.data())
    def add(self, chain: Any, prompt: list[int], data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.free_slots()))
        self.generation += 1
        known = self.engine.add(slot, chain, prompt, self.generation, on_error="skip")
        self.models[slot] = Model(known, chain)

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self.engine.remove(self.models.pop(data.draw(st.sampled_from(sorted(self.models)))).known)

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        """Shorten a history in the engine. The server learns of it from the next step."""
        model = self.models[data.draw(st.sampled_from(sorted(self.models)))]
        prompt = len(model.known.request.prompt_token_ids)
        length = data.draw(st.integers(prompt, len(model.known.history)))
        if length < len(model.known.history):
            del model.known.history[length:]
            model.lost = model.lost or model.calls > 0

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def diverge(self, data: st.DataObject) -> None:
        """Extend a history as if a step was lost. The history must be sent again."""
        model = self.models[data.draw(st.sampled_from(sorted(self.models)))]
        if model.lost:
            return  # it fails with StateLost, whatever its history is
        model.known.history += [1, 2]
        if model.on_server[: len(model.known.history)] == model.known.history:
            return  # after a rewind, the server may have exactly these ids
        failures = self.engine.failures(self.engine.step({model.known: []}))
        assert failures == {model.known.slot: (LogitportError, True)}
        model.on_server = list(model.known.history)
        if model.calls:
            with pytest.raises(StateLost):
                self.engine.add_again(model.known)
            self.engine.remove(model.known)
            del self.models[model.known.slot]
        else:
            self.engine.add_again(model.known)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        part = data.draw(st.permutations(sorted(self.models)))[: data.draw(st.integers(0, 4))]
        models = [self.models[slot] for slot in part]
        sampled = {model.known: data.draw(st.one_of(IDS, st.just([5, BOMB, 6]), st.just([BOMB]))) for model in models}
        reply = self.engine.step(sampled)
        failures = self.engine.failures(reply)
        for model in models:
            model.on_server = list(model.known.history)
            if model.lost:
                # STATE_LOST where the cut was; a length that the server cannot cut back to is NEED_SYNC.
                assert failures.pop(model.known.slot)[0] in (StateLost, LogitportError)
            elif "DenyHistory" in model.names and BOMB in sampled[model.known]:
                assert failures.pop(model.known.slot) == (ProcessorFailed, True)
            else:
                self.check_row(models, model, reply)
        assert failures == {}
        self.process(models, sampled, reply)

    def check_row(self, models: list[Model], model: Model, reply: Any) -> None:
        if not model.reads_logits:
            denied = self.engine.denied(reply, len(models))[models.index(model)]
            assert denied == sorted(set(model.known.history))

    def process(self, models: list[Model], sampled: dict[Any, list[int]], reply: Any) -> None:
        """Send the requested logits, and compare the result."""
        requested = memoryview(reply.logits_rows).cast("i").tolist() if reply.logits_rows else []
        served = [
            model
            for model in models
            if not model.lost and not ("DenyHistory" in model.names and BOMB in sampled[model.known])
        ]
        assert [models[row] for row in requested] == [model for model in served if model.reads_logits]
        if requested:
            logits, edited = self.engine.process(len(requested))
            assert not edited.failures
            for row, at in zip(logits.tolist(), requested, strict=True):
                models[at].calls += "CountCalls" in models[at].names
                assert row == models[at].row()


@pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
def test_random_actions_agree_with_the_model(open_engine: Any) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    machine = type("Bound", (Machine,), {"open_engine": staticmethod(open_engine)})
    run_state_machine_as_test(machine, settings=settings(max_examples=examples(60), stateful_step_count=25))
