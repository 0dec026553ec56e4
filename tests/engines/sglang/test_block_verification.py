"""SGLang's own adjustment and acceptance of blocks of drafts, with processors. Its workers need a GPU."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport.integrations.sglang import block_speculation
from tests.client.integrations.sglang.test_block_speculation import Info
from tests.client.integrations.sglang.test_hook import EOS, VOCAB_SIZE, Req, ban, params_of
from tests.client.integrations.sglang.test_speculation import NODES, batch_of, hook

if TYPE_CHECKING:
    from logitport.integrations.sglang.hook import Hook

__all__ = ["hook"]  # a fixture


@pytest.fixture
def sglang(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> Any:
    """SGLang's `dflash_utils` and `DFlashWorkerV2`, patched."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SGLang warns of what a CPU lacks
        from sglang.srt.speculative import dflash_utils
        from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
    apply = block_speculation.wrap_apply(dflash_utils.apply_custom_logit_processor)
    monkeypatch.setattr(dflash_utils, "apply_custom_logit_processor", apply)
    for name, value in (("published_names", dict), ("max_draft_tokens", lambda: 5), ("is_disaggregated", bool)):
        monkeypatch.setattr(f"logitport.integrations.sglang.hook.{name}", value)
    return SimpleNamespace(utils=dflash_utils, accept=block_speculation.wrap_accept(DFlashWorkerV2._accept_block))


def verify(sglang: Any, drafts: list[int], params: Any, bias: torch.Tensor | None = None) -> tuple[Any, list[int]]:
    """Return the logits after a verification, and the ids that the request gets. An id's logit is its number."""
    batch = batch_of(params)
    batch.sampling_info = info = Info(**vars(batch.sampling_info), is_all_greedy=True, logit_bias=bias)
    given = SimpleNamespace(draft_token=torch.tensor(drafts), draft_token_num=NODES, ragged_verify_layout=None)
    block_speculation.wrap_prepare(lambda *_: None)(given, batch)
    logits = torch.arange(float(VOCAB_SIZE)).repeat(NODES, 1)
    sglang.utils.apply_dflash_verify_logits_adjustments(
        next_token_logits=logits, sampling_info=info, draft_token_num=NODES
    )
    worker = SimpleNamespace(
        block_size=NODES,
        _selector_sample=None,
        _use_triton_accept_bonus=False,
        _tp_sync=SimpleNamespace(sync=lambda *_: None),
    )
    arguments = {"draft_input": None, "prefix_lens": torch.tensor([1]), "bs": 1}
    _, lengths, _, out_tokens, _ = sglang.accept(
        worker, candidates=given.draft_token[None], next_token_logits=logits, sampling_info=info, **arguments
    )
    return logits, out_tokens[0, : int(lengths)].tolist()


def test_processors_come_before_biases(sglang: Any) -> None:
    bias = torch.zeros(1, VOCAB_SIZE)
    bias[0, 31], bias[0, 3] = 100.0, 7.0
    chain = params_of(req := Req([2]), ["temperature", {"temperature": 2.0}], ban(31))
    logits, _ = verify(sglang, [2] * NODES, chain, bias)
    expected = torch.arange(float(VOCAB_SIZE)) / 2
    expected[31], expected[3] = float("-inf"), 3 / 2 + 7
    assert torch.equal(logits, expected.repeat(NODES, 1))
    assert req.to_finish is None


def test_accepted_drafts(sglang: Any) -> None:
    req = Req([2])
    req.output_ids.append(31)
    once = params_of(req, ["no_repeat_ngram", {"ngram_size": 1, "window_size": 100}])
    assert verify(sglang, [31, 30, 29, 9, 27, 26], once)[1] == [30, 29, 28]
    req.output_ids.extend([30, 29, 28])
    assert verify(sglang, [28, 27, 26, 25, 24, 23], once)[1] == [27, 26, 25, 24, 23, 22]


def test_a_denied_row_ends_the_request(sglang: Any) -> None:
    """Only 31 has not occurred before."""
    req = Req([token_id for token_id in range(VOCAB_SIZE) if token_id != 31])
    once = params_of(req, ["no_repeat_ngram", {"ngram_size": 1, "window_size": 100}])
    assert verify(sglang, [2, 31, 7, 7, 7, 7], once)[1] == [31, EOS]
    assert req.to_finish is not None
