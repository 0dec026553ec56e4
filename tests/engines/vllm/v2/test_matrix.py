"""Every row in vLLM's second runner, driven through its interface: eight requests in five slots, and drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import vllm
from vllm import SamplingParams

from logitport import Client
from logitport.integrations.vllm.front_end_sockets import FrontEndReceiver
from logitport.integrations.vllm.response_reports import RunningReports
from tests.compatibility.matrix import (
    REFERENCES,
    REPORT,
    chain_of,
    check_reports,
    every_row,
    lengths,
    prompts,
    reference_of,
)
from tests.engines.checkpoint import EOS, VOCAB_SIZE
from tests.engines.vllm.v2.driver import Runner, logits_of

if TYPE_CHECKING:
    from collections.abc import Callable


def expected(prompt: list[int], length: int, reference: str) -> list[int]:
    """Return the ids of the same model with a reference in this process."""
    history = list(prompt)
    while len(history) < len(prompt) + length and history[-1] != EOS:
        history.append(int(REFERENCES[reference](history, logits_of(history)).argmax()))
    return history[len(prompt) :]


@pytest.mark.cell(engine="vLLM, second runner (V2)")
@pytest.mark.parametrize("drafts", [0, 3])
@every_row
def test_tokens_are_the_native_ones(
    target: str, drafts: int, row: str, record_property: Callable[[str, Any], None], failures: list[Any]
) -> None:
    """A front end receives the reports."""
    record_property("version", f"{vllm.__version__}, by its interface")
    with Client(target) as client:
        chain = chain_of(row, client)
    reference = reference_of(row)
    instance_id = f"matrix-{row}-{drafts}"
    reports, receiver = RunningReports(), FrontEndReceiver(instance_id)
    runner = Runner(5, drafts=drafts, instance_id=instance_id)
    params = SamplingParams(temperature=0.0, extra_args={"logitport": chain})
    sequences = [
        runner.submit(f"r{place}", prompt, params, length)
        for place, (prompt, length) in enumerate(zip(prompts(VOCAB_SIZE, reference), lengths(), strict=True))
    ]
    while runner.waiting or runner.running:
        runner.step()
        for message in receiver.receive():
            reports.receive(message)
    assert not failures
    outputs = [sequence.outputs[: sequence.length] for sequence in sequences]
    assert outputs == [expected(sequence.prompt, sequence.length, reference) for sequence in sequences]
    if row == REPORT:
        ended = [reports.end(one.name, len(output)) for one, output in zip(sequences, outputs, strict=True)]
        histories = [one.prompt + output for one, output in zip(sequences, outputs, strict=True)]
        check_reports(ended, histories, chain)
