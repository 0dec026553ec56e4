"""Every row in llama.cpp: eight completions one after the other, as llama-cpp-python makes them."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport.integrations.llama_cpp import RemoteLogitsProcessor
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

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from logitport import Client

VOCAB_SIZE = 512
# Ids that have no word in the tests' vocabulary, or that end a completion.
NO_WORDS = [0, 1, 2]


def native(reference: str) -> Callable[[NDArray[np.intc], NDArray[np.single]], NDArray[np.single]]:
    """Return a reference as llama-cpp-python's own kind of processor."""

    def process(input_ids: NDArray[np.intc], scores: NDArray[np.single]) -> NDArray[np.single]:
        processed = REFERENCES[reference](input_ids.tolist(), np.array(scores))
        processed[NO_WORDS] = -np.inf
        return processed

    return process


@pytest.mark.cell(engine="llama.cpp")
@every_row
def test_tokens_are_the_native_ones(
    client: Client, complete: Callable[..., list[int]], row: str, record_property: Callable[[str, Any], None]
) -> None:
    record_property("version", f"llama-cpp-python {version('llama-cpp-python')}")
    reference, chain = reference_of(row), chain_of(row, client)
    remote = RemoteLogitsProcessor([("disallowed_tokens", {"token_ids": NO_WORDS}), *chain], client=client)
    histories, reports = [], []
    for prompt, length in zip(prompts(VOCAB_SIZE, reference), lengths(), strict=True):
        output = complete(prompt, remote, length=length)
        assert output == complete(prompt, native(reference), length=length)
        histories.append([*prompt, *output])
        reports.append(remote.reports[0].to_json())
    if row == REPORT:
        for report in reports:
            assert report["processors"].pop(0) == {"name": "disallowed_tokens"}
        check_reports(reports, histories, chain)
