"""Half a minute of `make soak`."""

from __future__ import annotations

import subprocess
import sys
from random import Random

import pytest
import torch

from logitport import Client, Request
from tests.soak.chains import random_chain

VOCAB = 50


@pytest.mark.timeout(900)
def test_soak() -> None:
    command = [sys.executable, "-m", "tests.soak", "--minutes", "0.35", "--engines", "2", "--seed", "1"]
    soaked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert soaked.returncode == 0, soaked.stdout + soaked.stderr
    assert '"drains"' in soaked.stdout
    assert '"workers killed"' in soaked.stdout


def test_the_reference_detects_wrong_rows(client: Client) -> None:
    """The processed rows equal the reference, and most unprocessed rows differ from it."""
    chains = [random_chain(Random(seed), VOCAB) for seed in range(20)]
    num_changed = 0
    for chain in chains:
        row = torch.randn(1, VOCAB)
        request = Request([1, 2, 1], processors=[(entry.processor, entry.params) for entry in chain])
        processed = client.apply(row, [request]).logits[0]
        expected = row[0].clone()
        for entry in chain:
            entry.expect(expected, [1, 2, 1], entry.params, entry.state)
        assert torch.equal(processed, expected)
        num_changed += not torch.equal(processed, row[0])
    assert num_changed > 15
