"""NVIDIA's logits-processor-zoo runs unchanged: its processors hold a tokenizer, of which the server has its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import Request
from logitport_testing.runner import RowStep, load_backend
from tests.tokenizer_files import EOS, write_trained

if TYPE_CHECKING:
    from collections.abc import Iterator

VOCAB = 313
PHRASE = '"name": "Ann"'


@pytest.fixture
def processors() -> Iterator[Any]:
    """The package's module for transformers."""
    folder = os.environ.get("LOGITPORT_ZOO", "")
    if not Path(folder, "logits_processor_zoo").is_dir():
        pytest.fail(
            "LOGITPORT_ZOO must name the folder of an unpacked wheel of logits-processor-zoo, but is "
            f"{folder!r}; `make test-peers` fetches the wheel and sets the variable"
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        import logits_processor_zoo.transformers as module

        yield module
    for name in [name for name in sys.modules if name.startswith("logits_processor_zoo")]:
        del sys.modules[name]


def test_prevent_hallucination_in_a_worker_gives_the_results_of_the_original(processors: Any, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    write_trained(tmp_path)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), eos_token=EOS)

    def make() -> Any:
        return processors.PreventHallucinationLogitsProcessor(tokenizer, batch_size=1, minp=0.9, phrase=PHRASE)

    original = make()
    generator = np.random.Generator(np.random.PCG64(1))
    history, written = [5, 6], list[int]()
    with load_backend().open_runner("worker", {"tokenizer": [f"t={tmp_path}"]}) as runner:
        batch = runner.open(VOCAB)
        batch.add(0, Request(list(history), processors=[(make(), {})]))
        for step in range(len(tokenizer.encode(PHRASE)) + 2):
            logits = generator.standard_normal((1, VOCAB), np.float32)
            (row,) = batch.step([RowStep(0, len(history) - (step > 0), history[-1:] if step else [])], logits)
            assert row.error is None
            expected = original(torch.tensor([history]), torch.tensor(logits))
            np.testing.assert_array_equal(row.logits, expected[0].numpy())
            history.append(int(row.logits.argmax()))
            written.append(history[-1])
    assert PHRASE in tokenizer.decode(written)
