"""README.md: its code runs, in transformers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import Client, Request
from tests.docs.pages import blocks, read
from tests.qwen_tokenizer import END_OF_THINKING, EOS, THINK, VOCAB_SIZE, write_qwen

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")

if TYPE_CHECKING:
    from pathlib import Path

BUDGET, JSON, SAMPLER = blocks(read("README.md"))
IMPORTED = BUDGET.splitlines()[0]  # for the later blocks, too


def run(program: str, **names: Any) -> dict[str, Any]:
    made = {"__name__": "readme", **names}
    exec(f"{IMPORTED}\n{program}", made)
    return made


def tiny_model(vocab_size: int) -> Any:
    """A model of random weights that prefers no id."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    torch.manual_seed(0)
    return transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(vocab_size=vocab_size, **sizes, **heads, **ends)
    ).eval()


def test_thinking_ends_after_its_budget() -> None:
    model = tiny_model(151_936)
    output: list[torch.Tensor] = []

    class Recorded:
        def generate(self, **arguments: Any) -> None:
            output.append(model.generate(**arguments, max_new_tokens=12, do_sample=False))

    inputs = {"input_ids": torch.tensor([[5, THINK]]), "attention_mask": torch.ones(1, 2, dtype=torch.int64)}
    assert "512" in BUDGET
    run(BUDGET.replace("512", "4"), model=Recorded(), inputs=inputs)
    assert output[0][0, 2:].tolist().index(END_OF_THINKING) in (4, 5)  # with the newline before it


@pytest.mark.slow
def test_the_answer_after_the_thinking_is_json(tmp_path: Path) -> None:
    """A model of random weights writes at random, within the grammar."""
    pytest.importorskip("llguidance", reason="llguidance is not installed: pip install 'logitport[grammar]'")
    tokenizer = write_qwen(tmp_path)
    made = run(JSON.replace('"Qwen/Qwen3-8B"', repr(str(tmp_path))))
    model = tiny_model(VOCAB_SIZE)
    torch.manual_seed(1)
    prompt = torch.tensor([[5, THINK, 7, END_OF_THINKING]])
    ids = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        logits_processor=[made["remote"]],
        max_new_tokens=400,
        do_sample=True,
        eos_token_id=EOS,
        pad_token_id=EOS,
    )[0, prompt.shape[1] :].tolist()
    assert ids[-1] == EOS, "the output is complete"
    assert 0 <= json.loads(tokenizer.decode(ids[:-1]))["days"] <= 99
    logits = torch.randn(1, VOCAB_SIZE)
    assert torch.equal(made["remote"](prompt[:, :3], logits.clone()), logits), "the thoughts are free"


@pytest.mark.slow
def test_one_sampler_runs_in_transformers_and_in_requests() -> None:
    made = run(SAMPLER)
    logits = torch.tensor([[0.0, 5.0, 3.5, 2.0]])
    expected = [[True, False, False, True]]
    assert made["remote"](torch.tensor([[1, 2]]), logits.clone()).isinf().tolist() == expected
    chain = [tuple(one) for one in made["chain"]]
    with Client.embedded() as client, client.session(vocab_size=4, dtype=torch.float32) as session:
        request = session.add(Request([1, 2], processors=chain))
        session.step({request: []}).apply(logits)
    assert logits.isinf().tolist() == expected
