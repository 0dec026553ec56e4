"""Every row in MLX-LM: eight generations one after the other."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport.integrations.mlx_lm import RemoteLogitsProcessor
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
from tests.engines.checkpoint import VOCAB_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport import Client


def native(reference: str) -> Callable[[Any, Any], Any]:
    """Return a reference as MLX-LM's own kind of processor."""

    def process(tokens: Any, logits: Any) -> Any:
        import mlx.core as mx

        return mx.array(REFERENCES[reference](tokens.tolist(), np.array(logits[0]))[None])

    return process


@pytest.mark.cell(engine="MLX-LM")
@every_row
def test_tokens_are_the_native_ones(
    client: Client, complete: Callable[..., list[int]], row: str, record_property: Callable[[str, Any], None]
) -> None:
    record_property("version", version("mlx-lm"))
    reference, chain = reference_of(row), chain_of(row, client)
    remote = RemoteLogitsProcessor(chain, client=client)
    histories, reports = [], []
    for prompt, length in zip(prompts(VOCAB_SIZE, reference), lengths(), strict=True):
        output = complete(prompt, remote, length=length)
        assert output == complete(prompt, native(reference), length=length)
        histories.append([*prompt, *output, 0])  # MLX-LM computes one row ahead: its id is dropped
        reports.append(remote.reports[0].to_json())
    if row == REPORT:
        check_reports(reports, histories, chain)
