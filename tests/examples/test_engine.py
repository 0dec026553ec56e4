"""The example engine with a real server; its output is compared with a simple loop."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from examples.engine import Engine, Generation, Model, prompt_lookup
from logitport import CustomLogitProcessor, EditProcessor, NotFound, ProcessorFailed, Request, StateLost
from logitport.session import PendingStep
from logitport_builtins import DisallowedTokens, NoRepeatNGram, ThinkingBudget
from tests.shipped_processors import CountsCalls, RaisesAfter, Tilt

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport import Client, EditRequest, RowEdits

    Chain = list[tuple[type[CustomLogitProcessor], dict[str, Any]]]

VOCAB_SIZE = 96
SLOTS = 3
LENGTHS = [64, 9, 64, 1, 40, 64, 23, 64]
PROMPTS = [np.random.default_rng(seed).integers(VOCAB_SIZE, size=2 + 3 * seed).tolist() for seed in range(8)]


class DeniesWindow(EditProcessor):
    """Denies the latest ids; collects appended ids and drops those that are cut."""

    def start(self, request: EditRequest) -> None:
        request.state = request.history.token_ids.tolist()

    def advance(self, request: EditRequest, token_id: int) -> None:
        request.state.append(token_id)

    def rewind(self, request: EditRequest) -> None:
        del request.state[len(request.history) :]

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny(request.state[-request.params["window"] :])


THINKING = {"thinking_budget": 6, "thinking_start_ids": [7], "thinking_end_ids": [8, 9], "newline_id": 10}
CHAINS: dict[str, Chain] = {
    "nothing": [],
    "disallowed_tokens": [(DisallowedTokens, {"token_ids": list(range(0, VOCAB_SIZE, 3))})],
    "no_repeat_ngram": [(NoRepeatNGram, {"ngram_size": 2})],
    "thinking_budget": [(ThinkingBudget, THINKING)],
    "collects ids": [(DeniesWindow, {"window": 5})],
    "reads logits": [(Tilt, {"by": 4.0})],
}
CHAINS["reads what another left"] = [*CHAINS["collects ids"], *CHAINS["reads logits"]]
CHAINS["a chain"] = [*CHAINS["reads logits"], *CHAINS["no_repeat_ngram"], *CHAINS["disallowed_tokens"]]
CHAINS["counts calls"] = [(CountsCalls, {})]


@cache
def reference(chain: str, n: int) -> list[int]:
    """Generate request n alone: its own model processes the whole history, and the chain runs in this process."""
    model, processors = Model(VOCAB_SIZE, slots=1), [(processor(), dict(params)) for processor, params in CHAINS[chain]]
    output: list[int] = []
    for _ in range(LENGTHS[n]):
        logits = torch.from_numpy(model.forward(0, 0, [*PROMPTS[n], *output])[-1:])
        for processor, params in processors:
            params["__req__"] = SimpleNamespace(origin_input_ids=PROMPTS[n], output_ids=output)
            logits = processor(logits, [params])
        output.append(int(logits.argmax()))
    return output


def oracle(right: int) -> Callable[[list[int]], list[int]]:
    """Create a drafter of four ids, the first `right` of which the model would sample without processors."""

    model = Model(VOCAB_SIZE, slots=1)

    @cache
    def best(token_ids: tuple[int, ...]) -> int:
        return int(model.forward(0, 0, list(token_ids))[-1].argmax())

    def draft(token_ids: list[int]) -> list[int]:
        drafts: list[int] = []
        for place in range(4):
            drafts.append((best((*token_ids, *drafts)) + (place >= right)) % VOCAB_SIZE)
        return drafts

    return draft


DRAFTS = {"no drafts": None, "prompt lookup": prompt_lookup, "half right": oracle(2), "all wrong": oracle(0)}


def requests_of(*chains: Any) -> list[Request]:
    """Create eight requests with these chains, or chains of these names."""
    chains = chains if len(chains) == 8 else chains * 8
    return [
        Request(
            prompt,
            processors=CHAINS[chain] if isinstance(chain, str) else chain,
            request_id=f"request {n}",
            sampling_params={"max_tokens": length},
        )
        for n, (prompt, chain, length) in enumerate(zip(PROMPTS, chains, LENGTHS, strict=True))
    ]


def run_with_churn(engine: Engine, requests: list[Request]) -> list[Generation]:
    """Run requests that arrive in random numbers while others run or wait; one is cancelled half-way."""
    unwanted = engine.submit(Request([5, 6], processors=requests[0].processors, sampling_params={"max_tokens": 1000}))
    arriving, generations = list(requests), list[Generation]()
    while arriving or engine.waiting or engine.running:
        for _ in range(engine.steps % 3):
            if arriving:
                generations.append(engine.submit(arriving.pop(0)))
        engine.step()
        if engine.steps == 20:
            engine.leave(unwanted)
    return generations


@pytest.mark.parametrize(
    ("chain", "drafts"),
    [pair for pair in product(CHAINS, DRAFTS) if pair[0] != "counts calls" or pair[1] == "no drafts"],
)
def test_tokens_equal_those_of_the_same_processors_in_process(client: Client, chain: str, drafts: str) -> None:
    with client.session(vocab_size=VOCAB_SIZE, max_requests=SLOTS, max_draft_tokens=4) as session:
        engine = Engine(session, Model(VOCAB_SIZE, slots=SLOTS), slots=SLOTS, draft=DRAFTS[drafts])
        generations = run_with_churn(engine, requests_of(chain))
        assert len(session) == 0
        assert session.resyncs == session.reconnects == 0

    assert [one.error for one in generations] == [None] * 8
    assert [one.output for one in generations] == [reference(chain, n) for n in range(8)]
    assert (engine.drafted > engine.accepted) == (drafts != "no drafts")
    if drafts == "half right":
        assert engine.accepted


@pytest.mark.parametrize("drafts", DRAFTS)
def test_requests_with_chains_of_their_own_share_every_step(client: Client, drafts: str) -> None:
    chains = list(CHAINS)[:8]
    with client.session(vocab_size=VOCAB_SIZE, max_draft_tokens=4) as session:
        engine = Engine(session, Model(VOCAB_SIZE, slots=SLOTS), slots=SLOTS, draft=DRAFTS[drafts])
        generations = run_with_churn(engine, requests_of(*chains))
    assert [one.error for one in generations] == [None] * 8
    assert [one.output for one in generations] == [reference(chain, n) for n, chain in enumerate(chains)]


def test_a_step_begins_before_the_model_computes(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    with client.session(vocab_size=VOCAB_SIZE) as session:
        engine = Engine(session, Model(VOCAB_SIZE))
        for owner, name in ((session, "step"), (engine.model, "forward"), (PendingStep, "apply")):
            plain = getattr(owner, name)
            monkeypatch.setattr(owner, name, lambda *a, _p=plain, _n=name, **k: calls.append(_n) or _p(*a, **k))
        engine.generate([Request(PROMPTS[0], sampling_params={"max_tokens": 3})])
    assert calls == ["step", "forward", "apply"] * 3


def test_drafts_save_steps(client: Client) -> None:
    steps = {}
    for name in ("no drafts", "half right"):
        with client.session(vocab_size=VOCAB_SIZE, max_draft_tokens=4) as session:
            engine = Engine(session, Model(VOCAB_SIZE, slots=8), slots=8, draft=DRAFTS[name])
            engine.generate(requests_of("nothing"))
            steps[name] = engine.steps
    assert steps == {"no drafts": 64, "half right": 22}


def test_a_processor_that_counts_calls_cannot_be_rewound(client: Client) -> None:
    with client.session(vocab_size=VOCAB_SIZE, max_draft_tokens=4) as session:
        engine = Engine(session, Model(VOCAB_SIZE, slots=8), slots=8, draft=DRAFTS["half right"])
        lost, *others = engine.generate(requests_of("counts calls", *["collects ids"] * 7))
    assert isinstance(lost.error, StateLost)
    assert [one.output for one in others] == [reference("collects ids", n) for n in range(1, 8)]


def test_a_request_that_fails_or_is_rejected_ends_and_the_others_continue(client: Client) -> None:
    chains: list[Any] = ["collects ids"] * 8
    chains[2], chains[4] = [(RaisesAfter, {"at": 5})], [("no_such_thing", {})]
    with client.session(vocab_size=VOCAB_SIZE, max_requests=SLOTS) as session:
        engine = Engine(session, Model(VOCAB_SIZE, slots=SLOTS), slots=SLOTS)
        generations = run_with_churn(engine, requests_of(*chains))
    tripped, refused = generations[2], generations[4]
    assert isinstance(tripped.error, ProcessorFailed)
    assert "too many output ids" in tripped.error.remote_traceback
    assert tripped.output == reference("nothing", 2)[:5]
    assert isinstance(refused.error, NotFound)
    assert refused.output == []
    for n in (0, 1, 3, 5, 6, 7):
        assert generations[n].output == reference("collects ids", n)


def test_a_stop_token_ends_an_output_also_among_right_drafts(client: Client) -> None:
    plain = reference("nothing", 0)
    stop = plain[6]
    request = Request(PROMPTS[0], sampling_params={"max_tokens": 64, "stop_token_ids": [stop]})
    for drafts in DRAFTS.values():
        with client.session(vocab_size=VOCAB_SIZE, max_draft_tokens=4) as session:
            (one,) = Engine(session, Model(VOCAB_SIZE), draft=drafts).generate([request])
        assert one.output == plain[: plain.index(stop) + 1]


def test_the_command_of_the_readme() -> None:
    script = Path(__file__).parents[2] / "examples" / "engine.py"
    ran = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert not ran.stderr
    lines = ran.stdout.splitlines()
    outputs = {name.strip(): ids.split() for name, _, ids in (line.partition(":") for line in lines[2:6])}
    assert set(map(len, outputs.values())) == {24}
    assert any(int(token_id) % 2 for token_id in outputs["nothing"])
    for name in ("no odd ids", "both"):
        assert not any(int(token_id) % 2 for token_id in outputs[name])
    for name in ("no pair twice", "both"):
        pairs = list(zip(outputs[name], outputs[name][1:], strict=False))
        assert len(set(pairs)) == len(pairs) == 23
    assert "no built-in is called 'no_such_thing'" in lines[6]
    assert max(map(len, lines[:6])) <= 120
