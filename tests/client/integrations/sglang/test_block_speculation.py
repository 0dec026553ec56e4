"""Processors where SGLang verifies blocks of drafts (DFLASH, DSPARK), with a real server and recorded batches."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport.integrations.sglang import block_speculation
from tests.client.integrations.sglang.test_hook import EOS, VOCAB_SIZE, Req, ban, finish_abort, params_of, shipped
from tests.client.integrations.sglang.test_speculation import NODES, batch_of, hook
from tests.toy_processors import RaisesInCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.integrations.sglang.hook import Hook

__all__ = ["finish_abort", "hook", "shipped"]  # fixtures

pytestmark = pytest.mark.usefixtures("hook")


class Info(SimpleNamespace):
    """The part of SGLang's `SamplingBatchInfo` that is read."""

    def __len__(self) -> int:
        return len(self.custom_params)


def adjust(logits: torch.Tensor, info: Any) -> None:
    """As SGLang's `apply_dflash_verify_logits_adjustments`: processors, then penalties and biases."""
    block_speculation.wrap_apply(lambda *_: pytest.fail("SGLang's own"))(logits, info, num_tokens_in_batch=NODES)
    logits.view(len(info), NODES, -1).add_(info.logit_bias[:, None, :])


def accept_block(
    _: object, *, sampling_info: Any, candidates: torch.Tensor, next_token_logits: torch.Tensor
) -> tuple[Any, ...]:
    """As `DFlashWorkerV2._accept_block` with greedy requests."""
    predicted = next_token_logits.argmax(-1).view(-1, NODES)
    accepted = (candidates[:, 1:] == predicted[:, :-1]).long().cumprod(1).sum(1)
    return accepted, accepted + 1, None, predicted, None


def accept_and_finalize(worker: object, **keywords: Any) -> Any:
    """As that of DSPARK's `TargetVerifyExecutor`."""
    _, commit_lens, _, out_tokens, _ = accept_block(worker, **keywords)
    return SimpleNamespace(commit_lens=commit_lens, out_tokens=out_tokens)


def verify(
    drafts: Sequence[Sequence[int]],
    *params: Any,
    lens: Sequence[int] | None = None,
    bias: dict[int, float] | None = None,
    logits: torch.Tensor | None = None,
) -> tuple[torch.Tensor, list[list[int]]]:
    """Return the logits after a verification, and the ids that each request gets. An id's logit is its number.

    With `lens`, as DSPARK: only so many rows of each request, their ids without gaps.
    """
    logits = torch.arange(float(VOCAB_SIZE)).repeat(len(drafts) * NODES, 1) if logits is None else logits
    batch = batch_of(*params)
    batch.sampling_info = Info(**vars(batch.sampling_info), logit_bias=torch.zeros(len(drafts), VOCAB_SIZE))
    for token_id, value in (bias or {}).items():
        batch.sampling_info.logit_bias[:, token_id] = value
    layout = None if lens is None else SimpleNamespace(verify_lens=torch.tensor(lens))
    ids = [ids[: NODES if lens is None else lens[index]] for index, ids in enumerate(drafts)]
    given = SimpleNamespace(
        draft_token=torch.tensor([*itertools.chain(*ids), *([0, 0] if lens else [])]),
        draft_token_num=NODES,
        ragged_verify_layout=layout,
    )
    block_speculation.wrap_prepare(lambda verify_input, batch: None)(given, batch)
    adjust(logits, batch.sampling_info)
    accept = block_speculation.wrap_accept(accept_block if lens is None else accept_and_finalize)
    arguments = {"candidates": torch.tensor(drafts), "next_token_logits": logits}
    accepted = accept(None, sampling_info=batch.sampling_info, **arguments)
    lengths, out = (accepted[1], accepted[3]) if lens is None else (accepted.commit_lens, accepted.out_tokens)
    return logits, [row[:length].tolist() for row, length in zip(out, lengths.tolist(), strict=True)]


@pytest.mark.parametrize("lens", [None, [NODES, 3]], ids=["DFLASH", "DSPARK"])
def test_rows_see_their_own_drafts(lens: list[int] | None) -> None:
    """Nothing that occurred before: in the prompt, in the output, or in the drafts before the row."""
    req, other = Req([2, 3]), Req([4])
    req.output_ids.extend([30, 31])
    other.output_ids.append(5)
    drafts = [[31, 29, 28, 9, 27, 26], [5, 31, 30, 29, 28, 27]]
    once = ["no_repeat_ngram", {"ngram_size": 1, "window_size": 100}]
    logits, ids = verify(drafts, params_of(req, once), params_of(other, once), lens=lens)
    for index, (given, before) in enumerate(zip(drafts, ([2, 3, 30], [4]), strict=True)):
        for node in range(NODES if lens is None else lens[index]):
            denied = torch.isinf(logits[index * NODES + node]).nonzero().flatten().tolist()
            assert denied == sorted([*before, *given[: node + 1]])
    assert ids[0] == [29, 28, 27]
    assert ids[1][:3] == [31, 30, 29]
    req.output_ids.extend(ids[0])
    _, ids = verify([[27, 26, 25, 1, 1, 1]], params_of(req, once), lens=lens and [NODES])
    assert ids == [[26, 25, 24]]


def test_processors_come_before_penalties_and_biases() -> None:
    """SGLang's order for these drafts. Without drafts and for other drafts, processors come last."""
    req = Req([2])
    chain = params_of(req, ["temperature", {"temperature": 2.0}], ban(31))
    logits, _ = verify([[2] * NODES], chain, bias={31: 100.0, 3: 7.0})
    expected = torch.arange(float(VOCAB_SIZE)) / 2
    expected[31], expected[3] = float("-inf"), 3 / 2 + 7
    assert torch.equal(logits, expected.repeat(NODES, 1))


def test_a_grammar_of_sglang_is_refused() -> None:
    req, other = Req([2], grammar=object()), Req([3], grammar=None)
    logits, _ = verify([[2] * NODES, [3] * NODES], params_of(req, ban(31)), params_of(other, ban(31)))
    assert "SGLang applies its grammars after processors" in req.to_finish.message
    assert req.to_finish.status == 400
    assert other.to_finish is None
    assert torch.isfinite(logits[:NODES]).all(), "a grammar may deny the ending id: no row is left without an id"
    assert torch.isinf(logits[NODES:, 31]).all()


def test_a_grammar_of_a_request_without_a_chain_and_an_end_are_left_alone() -> None:
    plain, ended = Req([2], grammar=object()), Req([3], grammar=object(), to_finish="aborted")
    verify([[2] * NODES, [3] * NODES], params_of(plain), params_of(ended, ban(31)))
    assert (plain.to_finish, ended.to_finish) == (None, "aborted")


def test_a_batch_without_processors_keeps_no_drafts() -> None:
    batch = SimpleNamespace(sampling_info=SimpleNamespace(has_custom_logit_processor=False))
    block_speculation.wrap_prepare(lambda verify_input, batch: None)(object(), batch)
    assert vars(batch.sampling_info) == {"has_custom_logit_processor": False}


@pytest.mark.parametrize("lens", [None, [NODES]], ids=["DFLASH", "DSPARK"])
@pytest.mark.parametrize("accepted", [False, True])
def test_a_denied_row_ends_the_request_if_its_draft_is_accepted(accepted: bool, lens: list[int] | None) -> None:
    """Only 31 has not occurred before, or only 5 and 31."""
    drafts = [31, 7, 7, 7, 7] if accepted else [5, 31, 7, 7, 7]
    req = Req([token_id for token_id in range(VOCAB_SIZE) if token_id not in drafts[:2] or token_id == 7])
    once = ["no_repeat_ngram", {"ngram_size": 1, "window_size": 100}]
    _, [ids] = verify([[2, *drafts]], params_of(req, once), lens=lens)
    assert ids == ([31, EOS] if accepted else [31])
    assert (req.to_finish is not None) == accepted


def test_a_failed_request_ends_alone() -> None:
    req, other = Req([2]), Req([3])
    logits, ids = verify(
        [[2] * NODES, [3] * NODES], params_of(req, [RaisesInCall.to_str(), {}]), params_of(other, ban(31))
    )
    assert "ProcessorFailed" in req.to_finish.message
    assert ids == [[EOS], [30]]
    assert other.to_finish is None
    assert torch.isfinite(logits[:NODES]).nonzero()[:, 1].tolist() == [EOS] * NODES


def test_without_drafts_no_id_is_sampled(hook: Hook) -> None:
    req = Req([2])
    info = Info(**vars(batch_of(params_of(req, ban(31))).sampling_info))
    logits = torch.zeros(NODES, VOCAB_SIZE)
    block_speculation.wrap_apply(lambda *_: None)(logits, info, num_tokens_in_batch=NODES)
    assert req.to_finish is not None
    assert torch.isfinite(logits).nonzero()[:, 1].tolist() == [EOS] * NODES


def test_batches_without_processors_are_left_to_sglang() -> None:
    batch = SimpleNamespace(sampling_info=None)
    assert block_speculation.wrap_prepare(lambda *args: args)(1, batch, 2) == (1, batch, 2)
    accept = block_speculation.wrap_accept(lambda worker, **keywords: keywords)
    assert accept(None, sampling_info=None, bs=1) == {"sampling_info": None, "bs": 1}
    assert accept(None, sampling_info=Info(custom_params=[]), bs=1)["bs"] == 1
