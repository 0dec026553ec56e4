"""Rollouts of an engine's reports and recordings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import Client, EditProcessor, InvalidArgument, Request
from logitport.shipping import serialize
from logitport.training import ChainReplay, Rollout, replay
from logitport_builtins.programs import BUILTIN_PROGRAMS
from logitport_recording import RecordOptions, read_recording

if TYPE_CHECKING:
    from pathlib import Path

    from logitport import EditRequest, RowEdits
    from logitport.report import Report

WIDTH, PROMPT = 32, [1, 2, 3]
PARAMS: list[dict[str, Any]] = [{"presence_penalty": 0.5}, {"min_p": 0.01}]
CHAIN = [("presence_penalty", PARAMS[0]), (BUILTIN_PROGRAMS["min_p"], PARAMS[1])]


class FailsAt(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        if len(request.history.output_token_ids) == request.params["length"]:
            raise ValueError("planted")
        edits.deny([1])


def sampled(
    client: Client, chain: Any, steps: int = 5, **options: Any
) -> tuple[list[int], torch.Tensor, torch.Tensor, Report]:
    """Sample greedily. Returns the output, the raw logits, the log-probabilities, and the report."""
    output: list[int] = []
    raw, found = [], []
    with client.session(vocab_size=WIDTH, dtype=torch.float32, **options) as session:
        handle = session.add(Request(PROMPT, processors=chain, on_error="skip"))
        for step in range(steps):
            logits = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(step))
            raw.append(logits.clone())
            session.step({handle: output[-1:]}).apply(logits)
            output.append(int(logits.argmax()))
            found.append(logits.log_softmax(-1)[0, output[-1]])
        return output, torch.stack(raw, 1), torch.stack(found), handle.report


def test_a_report_names_the_processors(tmp_path: Path) -> None:
    folder = tmp_path / "programs" / "team"
    folder.mkdir(parents=True)
    (folder / "quiet.json").write_text(serialize(BUILTIN_PROGRAMS["min_p"]))
    with Client.embedded(tmp_path / "programs") as client:
        output, logits, wanted, report = sampled(client, [CHAIN[0], ("team/quiet", PARAMS[1])])
    assert [one.name for one in report.processors] == ["presence_penalty", "team/quiet"]
    trainer = ChainReplay(programs=str(tmp_path / "programs"))
    for shown, params in ((report, None), (report.to_json(with_params=True), None), (report.to_json(), PARAMS)):
        rollout = Rollout.from_report(PROMPT, output, shown, params)
        torch.testing.assert_close(trainer(logits, [rollout])[0], wanted)
    digest = report.processors[1].digest
    with pytest.raises(InvalidArgument, match=f"rollout 0: no processor is called '{digest}'"):
        replay(logits, [rollout])


def test_reports_of_chains_that_were_not_applied(tmp_path: Path) -> None:
    with Client.embedded() as client:
        output, _, _, report = sampled(client, CHAIN)
    for changed, params, message in (
        (replace(report, skipped=((3, 9),)), None, "failed at the position 3 of the output.*was skipped"),
        (replace(report, error="ProcessorFailed", failed_at=4), None, "the position 4 of the output.*ProcessorFailed"),
        (replace(report, rows_applied=0), PARAMS, "no row"),
        (report, PARAMS[:1], "1 params for a report of 2 processors"),
        (report.to_json(), None, "no parameters of 'presence_penalty': pass params, or set LOGITPORT_REPORT=full"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            Rollout.from_report(PROMPT, output, changed, params)
    for changed in (replace(report, skipped=((5, 6),)), replace(report, error="ProcessorFailed", failed_at=5)):
        assert len(Rollout.from_report(PROMPT, output, changed)) == 5, "the failure is after the last id"


def test_a_skipped_chain_is_an_error_at_its_position(client: Client) -> None:
    output, *_, report = sampled(client, [(FailsAt, {"length": 2})])
    with pytest.raises(InvalidArgument, match="failed at the position 2 of the output"):
        Rollout.from_report(PROMPT, output, report)


def test_a_recording_holds_the_chain_with_its_parameters(tmp_path: Path) -> None:
    file = tmp_path / "engine.lprec"
    with Client.embedded() as client:
        output, logits, wanted, _ = sampled(client, CHAIN, record=RecordOptions(str(file), payloads=True))
    (recorded,) = read_recording(file).sessions[0].requests
    rollout = Rollout.from_recording(recorded, last_token_ids=output[-1:], sampling={"temperature": 1.0})
    assert rollout.output_token_ids.tolist() == output
    torch.testing.assert_close(replay(logits, [rollout])[0], wanted)
    without_the_last = Rollout.from_recording(recorded)
    assert np.array_equal(without_the_last.output_token_ids, output[:-1])


def test_a_recording_of_a_failure_names_the_position(tmp_path: Path, client: Client) -> None:
    file = tmp_path / "engine.lprec"
    output, *_ = sampled(client, [(FailsAt, {"length": 2})], record=RecordOptions(str(file)))
    (recorded,) = read_recording(file).sessions[0].requests
    with pytest.raises(InvalidArgument, match="failed at the position 2 of the output"):
        Rollout.from_recording(recorded, last_token_ids=output[-1:])
