"""Processors of chains that a trainer does not have: programs of a registry, and code."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import Client, CustomLogitProcessor, InvalidArgument
from logitport.session.requests.chain_programs import ChainPrograms
from logitport.session.session import Session
from logitport.shipping import serialize
from logitport.training import ChainReplay, Rollout, chain_steps, replay
from logitport.training.chain_steps import ChainSteps, OutputSpan
from logitport_builtins.programs import BUILTIN_PROGRAMS
from logitport_recording import RecordOptions, read_recording
from tests.client.training.test_rollout import CHAIN, PARAMS, PROMPT, FailsAt, sampled

if TYPE_CHECKING:
    from pathlib import Path


class ReadsLogits(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, params: Any = None) -> torch.Tensor:
        return logits if logits[0, 0].item() else logits + 1


def test_a_program_is_fetched_from_the_registry(client: Client) -> None:
    """The trainer knows its digest alone, and the server has another program of the name by then."""
    client.register(BUILTIN_PROGRAMS["min_p"], name="team/fetched")
    output, logits, wanted, report = sampled(client, [CHAIN[0], ("team/fetched", PARAMS[1])])
    client.register(BUILTIN_PROGRAMS["top_p"], name="team/fetched", replace=True)
    rollout = Rollout.from_report(PROMPT, output, report)
    with pytest.raises(InvalidArgument, match=f"rollout 0: no processor is called '{report.processors[1].digest}'"):
        replay(logits, [rollout])
    trainer = ChainReplay(client=client)
    for _ in range(2):
        torch.testing.assert_close(trainer(logits, [rollout])[0], wanted)
    unknown = Rollout(PROMPT, output, [("ab" * 32, {})])
    with pytest.raises(InvalidArgument, match=f"rollout 0: .*{'ab' * 32}"):
        trainer(logits, [unknown])


def test_a_program_is_fetched_where_engines_run_none(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.register(BUILTIN_PROGRAMS["min_p"], name="team/off")
    output, logits, wanted, _ = sampled(client, [("team/off", PARAMS[1])])
    monkeypatch.setenv("LOGITPORT_PROGRAMS", "off")
    rollout = Rollout(PROMPT, output, [("team/off", PARAMS[1])])
    torch.testing.assert_close(ChainReplay(client=client)(logits, [rollout])[0], wanted)


def test_another_program_than_that_of_the_digest_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = client.register(BUILTIN_PROGRAMS["min_p"]).digest
    other = BUILTIN_PROGRAMS["top_p"]
    bind = ChainPrograms.bind

    def swapped(programs: ChainPrograms, handle: Any, *arguments: Any) -> None:
        bind(programs, handle, *arguments)
        handle.programs = (SimpleNamespace(verified=SimpleNamespace(program=other)),)

    monkeypatch.setattr(ChainPrograms, "bind", swapped)
    with pytest.raises(
        InvalidArgument, match=f"rollout 0: the server sent the program {other.digest} in place of {digest}"
    ):
        ChainReplay(client=client)(torch.zeros(1, 1, 24), [Rollout(PROMPT, [3], [(digest, PARAMS[1])])])


def test_code_runs_in_the_trainer_only_if_it_is_trusted(client: Client, tmp_path: Path) -> None:
    file, chain = tmp_path / "engine.lprec", [(FailsAt, {"length": 9}), CHAIN[0]]
    output, logits, wanted, report = sampled(client, chain, record=RecordOptions(str(file), payloads=True))
    (recorded,) = read_recording(file).sessions[0].requests
    rollouts = [
        Rollout(PROMPT, output, chain),
        Rollout.from_report(PROMPT, output, report),
        Rollout.from_recording(recorded, last_token_ids=output[-1:]),
    ]
    for trusted in (FailsAt, serialize(FailsAt)):
        trainer = ChainReplay(trusted=[trusted])
        for rollout in rollouts:
            torch.testing.assert_close(trainer(logits, [rollout])[0], wanted)
    for trainer in (replay, ChainReplay(client=client), ChainReplay(trusted=[ReadsLogits])):
        for rollout in rollouts:
            with pytest.raises(InvalidArgument, match=r"rollout 0: .*(which is code|no processor|no registered)"):
                trainer(logits, [rollout])
    client.register(FailsAt)
    with pytest.raises(InvalidArgument, match=r"rollout 0: .* is code, which the server does not give away; .*trusted"):
        ChainReplay(client=client)(logits, [rollouts[1]])
    with pytest.raises(InvalidArgument, match=r"reads logits, and is no program; .*lift"):
        ChainReplay(trusted=[ReadsLogits])(logits, [Rollout(PROMPT, output, [(ReadsLogits, {})])])


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The steps of each thread."""
    found: Counter[str] = Counter()
    step = Session.step

    def noted(session: Session, *arguments: Any, **options: Any) -> Any:
        found[threading.current_thread().name] += 1
        return step(session, *arguments, **options)

    monkeypatch.setattr(Session, "step", noted)
    return found


def random_rollouts(lengths: list[int], chains: list[Any]) -> tuple[torch.Tensor, list[Rollout]]:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(len(lengths), max(lengths), 24, generator=generator)
    outputs = [torch.randint(2, 24, (length,), generator=generator).tolist() for length in lengths]
    return logits, [Rollout(PROMPT, output, chains[at % len(chains)]) for at, output in enumerate(outputs)]


PENALTY = [("frequency_penalty", {"frequency_penalty": 0.5})]


@pytest.mark.slow
@pytest.mark.parametrize("tile_rows", [7, 600])
@pytest.mark.parametrize("lengths", [[300, 3, 1, 290, 40, 260, 300], [512] * 6])
def test_threads_change_nothing(
    monkeypatch: pytest.MonkeyPatch, threads: Counter[str], lengths: list[int], tile_rows: int
) -> None:
    """Long and short rollouts, with programs and without, in tiles that end inside of them."""
    logits, rollouts = random_rollouts(lengths, [PENALTY, [CHAIN[0], (BUILTIN_PROGRAMS["min_p"], PARAMS[1])]])
    found = []
    trainer = ChainReplay(tile_rows=tile_rows, denied_by_programs="keep")
    for count in (1, 3):
        threads.clear()
        monkeypatch.setattr(torch, "get_num_threads", lambda count=count: count)
        found.append(trainer(logits, rollouts))
        assert len(threads) == count
    assert torch.equal(*found)
    wrong = [*rollouts[:3], Rollout(PROMPT, rollouts[3].output_token_ids, [(FailsAt, {"length": 280})]), *rollouts[4:]]
    with pytest.raises(InvalidArgument, match="rollout 3: its chain has a class"):
        trainer(logits, wrong)


def test_what_runs_in_one_thread(monkeypatch: pytest.MonkeyPatch, threads: Counter[str]) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for trusted, chain, lengths in (([FailsAt], [(FailsAt, {"length": -1})], [260] * 3), ([], PENALTY, [5] * 9)):
        threads.clear()
        logits, rollouts = random_rollouts(lengths, [chain])
        ChainReplay(trusted=trusted)(logits, rollouts)
        assert set(threads) == {threading.current_thread().name}


def test_a_pass_that_ends_early_begins_no_further_step(monkeypatch: pytest.MonkeyPatch, threads: Counter[str]) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    _, rollouts = random_rollouts([256] * 30, [PENALTY])
    tiles = [[OutputSpan(index, 0, 256)] for index in range(30)]
    steps = ChainSteps("", (), "").blocks(rollouts, tiles, 24)
    for _ in range(2):
        next(steps)
    steps.close()
    assert threads.total() <= 2 + 2 * 3 + 3, "of the tiles that were taken, and of those ahead"


@pytest.mark.parametrize(("ahead_bytes", "most"), [(0, 2), (1 << 30, 30)])
def test_edits_that_are_computed_ahead_take_little_memory(
    monkeypatch: pytest.MonkeyPatch, threads: Counter[str], ahead_bytes: int, most: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(chain_steps, "_AHEAD_BYTES", ahead_bytes)
    _, rollouts = random_rollouts([256] * 30, [PENALTY])
    steps = ChainSteps("", (), "").blocks(rollouts, [[OutputSpan(index, 0, 256)] for index in range(30)], 24)
    next(steps)
    next(steps)
    assert threads.total() <= most
    steps.close()
    assert len(threads) == (2 if most == 2 else 3)


def test_a_program_is_fetched_once(monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    client.register(BUILTIN_PROGRAMS["min_p"], name="team/once")
    opened, open_session = [], Client.session

    def noted(*arguments: Any, **options: Any) -> Any:
        opened.append(options)
        return open_session(*arguments, **options)

    monkeypatch.setattr(Client, "session", noted)
    logits, rollouts = random_rollouts([260] * 6, [[("team/once", PARAMS[1])]])
    ChainReplay(client=client, tile_rows=260, denied_by_programs="keep")(logits, rollouts)
    assert len(opened) == 1
