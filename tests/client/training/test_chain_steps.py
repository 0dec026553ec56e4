"""Processors of chains that a trainer does not have: programs of a registry, and code."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import Client, CustomLogitProcessor, InvalidArgument
from logitport.session.requests.chain_programs import ChainPrograms
from logitport.session.session import Session
from logitport.shipping import serialize
from logitport.training import ChainReplay, Rollout, replay
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


@pytest.mark.slow
@pytest.mark.parametrize("tile_rows", [7, 600])
def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch, tile_rows: int) -> None:
    """Long and short rollouts, with programs and without, in tiles that end inside of them."""
    generator = torch.Generator().manual_seed(1)
    lengths = [300, 3, 1, 290, 40, 260, 300]
    logits = torch.randn(len(lengths), max(lengths), 24, generator=generator)
    outputs = [torch.randint(2, 24, (length,), generator=generator).tolist() for length in lengths]
    chains = [[("frequency_penalty", {"frequency_penalty": 0.5})], [CHAIN[0], (BUILTIN_PROGRAMS["min_p"], PARAMS[1])]]
    rollouts = [Rollout(PROMPT, output, chains[at % 2]) for at, output in enumerate(outputs)]
    found, names = [], set()
    step = Session.step

    def noted(session: Session, *arguments: Any, **options: Any) -> Any:
        names.add(threading.current_thread().name)
        return step(session, *arguments, **options)

    monkeypatch.setattr(Session, "step", noted)
    trainer = ChainReplay(tile_rows=tile_rows, denied_by_programs="keep")
    for threads in (1, 3):
        names.clear()
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        found.append(trainer(logits, rollouts))
        assert len(names) == threads
    assert torch.equal(*found)
    wrong = [*rollouts[:3], Rollout(PROMPT, outputs[3], [(FailsAt, {"length": 280})]), *rollouts[4:]]
    with pytest.raises(InvalidArgument, match="rollout 3: its chain has a class"):
        trainer(logits, wrong)
