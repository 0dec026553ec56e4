"""Half a minute of what `make soak` does for minutes."""

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
def test_engines_that_come_and_go_and_die() -> None:
    command = [sys.executable, "-m", "tests.soak", "--minutes", "0.35", "--engines", "2", "--seed", "1"]
    soaked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert soaked.returncode == 0, soaked.stdout + soaked.stderr
    assert '"drains"' in soaked.stdout
    assert '"workers killed"' in soaked.stdout


def test_the_reference_is_not_the_service(client: Client) -> None:
    """An engine that believed every row would find nothing: one that is not as it must be is told from one that is."""
    chains = [random_chain(Random(seed), VOCAB) for seed in range(20)]
    told = 0
    for chain in chains:
        row = torch.randn(1, VOCAB)
        request = Request([1, 2, 1], processors=[(link.processor, link.params) for link in chain])
        came = client.apply(row, [request]).logits[0]
        expected = row[0].clone()
        for link in chain:
            link.expect(expected, [1, 2, 1], link.params, link.kept)
        assert torch.equal(came, expected)
        told += not torch.equal(came, row[0])
    assert told > 15
