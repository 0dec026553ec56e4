"""The examples in docs/processor-reference.md that a server has to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import Client, Request
from tests.docs.pages import blocks, read, section
from tests.tokenizer_files import write_trained

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import RunningServer

PAGE = read("docs/processor-reference.md")


@pytest.mark.slow
def test_the_processor_with_a_tokenizer(
    start_server: Callable[..., RunningServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker cannot read the file, which is in a folder of this test."""
    tokenizer = write_trained(tmp_path)
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(section(PAGE, "Files"))
    made: dict[str, Any] = {"__name__": "here"}
    exec(block, made)
    (tmp_path / "tokenizer.json").unlink()
    (denied,) = tokenizer.encode("a").ids
    with Client(start_server("--enable-custom-logit-processor").target) as client:
        chain = [(made["BansWords"], {"words": ["a"]})]
        logits = client.apply(torch.zeros(1, 313), [Request([1], processors=chain)]).logits
    assert logits[0].isinf().nonzero().flatten().tolist() == [denied]


@pytest.mark.slow
def test_the_processor_with_the_operators_tokenizer(start_server: Callable[..., RunningServer], tmp_path: Path) -> None:
    tokenizer = write_trained(tmp_path)
    (block,) = blocks(section(PAGE, "Tokenizers"))
    made: dict[str, Any] = {"__name__": "here"}
    exec(block, made)
    server = start_server("--enable-custom-logit-processor", f"--tokenizer=org/json={tmp_path}")
    with Client(server.target) as client:
        logits = client.apply(torch.zeros(1, 352), [Request([1], processors=[(made["NoSpaces"], {})])]).logits
    denied = [token_id for token_id in range(313) if " " in tokenizer.decode([token_id])]
    assert denied
    assert logits[0].isinf().nonzero().flatten().tolist() == denied


def test_the_detector_of_the_watermark(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks(section(PAGE, "Watermark"))
    exec(block, {})
    green, scored, z_score, p_value = map(float, capsys.readouterr().out.split())
    assert scored == 4
    assert green <= scored
    assert (z_score < 0) == (p_value > 0.5)


@pytest.mark.slow
def test_output_reaches_the_author(
    start_server: Callable[..., RunningServer], capsys: pytest.CaptureFixture[str]
) -> None:
    block = blocks(section(PAGE, "Debug"))[0]
    target = start_server("--enable-custom-logit-processor").target
    exec(block.replace("localhost:50051", target), {"__name__": "here", "logits": torch.zeros(1, 8)})

    logged = capsys.readouterr().out.splitlines()
    assert logged[1:] == ["ids so far: 2"]
