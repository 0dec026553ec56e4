"""examples/recipes: each has its effect, compared with another implementation."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

from examples.recipes.compact_json import ANY, BOUNDED, COMPACT, NEWLINES, SCHEMA
from examples.recipes.guidance import Guidance
from logitport import Client, InvalidArgument
from logitport.integrations.transformers import RemoteLogitsProcessor
from logitport_testing import StoryModel, simulate

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

    from tests.conftest import RunningServer

SCALE, STEPS, PAD = 3.0, 12, 0
GUIDED, PLAIN = [5, 17, 23, 41], [41]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    from transformers import LlamaConfig, LlamaForCausalLM  # takes seconds

    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    made = LlamaForCausalLM(LlamaConfig(vocab_size=96, initializer_range=0.3, **sizes)).eval()
    made.generation_config.eos_token_id, made.generation_config.pad_token_id = None, PAD
    return made


@pytest.mark.slow
def test_guidance_is_that_of_transformers(model: LlamaForCausalLM, server: RunningServer) -> None:
    ids = torch.tensor([GUIDED])
    settings = {"max_new_tokens": STEPS, "do_sample": False}
    plain = model.generate(ids, **settings)[0, len(GUIDED) :].tolist()
    expected = model.generate(ids, guidance_scale=SCALE, negative_prompt_ids=torch.tensor([PLAIN]), **settings)[
        0, len(GUIDED) :
    ].tolist()
    assert expected != plain

    batch = torch.tensor([GUIDED, [PAD] * (len(GUIDED) - len(PLAIN)) + PLAIN])
    chains = [[(Guidance, {"pair": "a", "scale": SCALE})], [(Guidance, {"pair": "a"})]]
    with Client(server.target) as client:
        remote = RemoteLogitsProcessor(chains, client=client, pad_token_id=PAD)
        both = model.generate(batch, attention_mask=(batch != PAD).long(), logits_processor=[remote], **settings)
    assert both[:, len(GUIDED) :].tolist() == [expected, expected]


def test_a_request_without_its_partner_fails_alone() -> None:
    logits = torch.randn(3, 8)
    result = Guidance()(logits, [{"pair": "a", "scale": 2.0}, {"pair": "b"}, {"pair": "a"}])
    assert result[1].isnan().all()  # a server fails a request with NaN
    assert torch.equal(result[0], result[2])
    assert not result[0].isnan().any()


@pytest.mark.parametrize("params", [{}, {"pair": 1}, {"pair": "a", "scale": 0.5}])
def test_wrong_parameters_are_refused(params: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        Guidance.validate_params(params)


def test_compact_json_ends_and_is_what_json_writes() -> None:
    model = StoryModel()
    endless, bounded, compact = (
        simulate([*NEWLINES, *chain], model, model.encode("One day"), steps=60) for chain in (ANY, BOUNDED, COMPACT)
    )
    assert model.decode(endless.output_token_ids).strip() == "{"  # nothing but whitespace after it
    assert list(json.loads(model.decode(bounded.output_token_ids).removesuffix("<|end|>"))) == ["name", "tame"]
    text = model.decode(compact.output_token_ids).removesuffix("<|end|>")
    value = json.loads(text)
    assert text == json.dumps(value, separators=(",", ":"))
    assert list(value) == list(SCHEMA["required"])
    assert isinstance(value["tame"], bool)
