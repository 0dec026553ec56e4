"""Padding, ended rows, consecutive calls of `generate`, refused arguments, recordings, and no server."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import LlamaForCausalLM

from logitport import (
    CustomLogitProcessor,
    EditProcessor,
    InvalidArgument,
    NotFound,
    RequestsFailed,
    SessionClosed,
    StateLost,
)
from logitport.integrations.transformers import RemoteLogitsProcessor
from logitport_builtins import DisallowedTokens
from tests.engines import embedded, recordings
from tests.shipped_processors import ForcesCallCount, ForcesLengths
from tests.toy_processors import RaisesInCall

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logitport import Client, EditRequest, RowEdits
    from logitport.session import Session
    from logitport.shipping.request import ProcessorLike

    Chain = list[tuple[ProcessorLike, dict[str, Any]]]

VOCAB_SIZE = 512
PAD, EOS = 0, 1
NEW = 20


class EndsAt(EditProcessor):
    """Ends a row after some ids, and fails if it is called for an ended row."""

    def edit(self, request, edits):
        if 1 in request.history.output_token_ids:
            raise RuntimeError("called for a row that has ended")
        outputs = len(request.history) - request.history.prompt_length
        if outputs == request.params["length"]:
            edits.force(1)
        else:
            edits.deny([0, 1])


def test_padding_is_found_by_id(client: Client, generate: Callable[..., torch.Tensor]) -> None:
    def lengths(**padding: Any) -> list[int]:
        return [
            row[0] - 100
            for row in generate(RemoteLogitsProcessor([(ForcesLengths, {})], **padding, client=client)).tolist()
        ]

    assert lengths(pad_token_id=PAD) == [8, 5, 7]
    assert lengths() == [8, 8, 8]


def test_ended_rows_are_left_out(client: Client, generate: Callable[..., torch.Tensor]) -> None:
    ends = [[(EndsAt, {"length": length})] for length in (2, 6, 4)]
    remote = RemoteLogitsProcessor(ends, pad_token_id=PAD, eos_token_id=EOS, client=client)

    output = generate(remote, min_new_tokens=0)

    assert output.shape == (3, 7)
    assert [row.index(EOS) for row in output.tolist()] == [2, 6, 4]
    assert list(remote.rows_applied.values()) == [3 + 7 + 5]
    assert remote.steps == 7


def test_each_call_has_its_own_requests(
    client: Client, generate: Callable[..., torch.Tensor], prompts: torch.Tensor
) -> None:
    remote = RemoteLogitsProcessor([(ForcesCallCount, {})], pad_token_id=PAD, client=client)
    once = generate(remote)
    assert torch.equal(generate(remote), once), "the same prompts again"
    assert torch.equal(generate(remote, ids=prompts[:1]), once[:1]), "fewer prompts"
    assert torch.equal(generate(remote, ids=torch.cat([prompts, once], 1)), once), "the output of a call as prompts"
    assert torch.equal(generate(remote), once), "the first prompts again"
    assert remote.steps == 5 * NEW


def test_a_custom_loop_continues_until_it_is_closed(client: Client) -> None:
    scores = torch.zeros(1, VOCAB_SIZE)
    with RemoteLogitsProcessor([(ForcesCallCount, {})], client=client) as remote:

        def call(*ids: int) -> int:
            return int(remote(torch.tensor([ids]), scores).argmax()) - 100

        assert [call(5, 6), call(5, 6, 7), call(5, 6, 7, 8)] == [1, 2, 3]
        remote.close()
        assert call(5, 6, 7, 8, 9) == 1
    assert not scores.any(), "scores stay as they are"


def test_scores_that_require_gradients_are_refused(client: Client) -> None:
    hook = RemoteLogitsProcessor([("disallowed_tokens", {"token_ids": [1]})], client=client)
    ids, scores = torch.tensor([[1, 2]]), torch.ones(1, VOCAB_SIZE, requires_grad=True)
    with pytest.raises(InvalidArgument, match="require gradients"):
        hook(ids, scores * 2)
    with torch.no_grad():
        assert hook(ids, scores * 2)[0, :3].tolist() == [2.0, -float("inf"), 2.0]
    hook.close()


def test_a_processor_that_reads_logits_and_keeps_state_cannot_follow_beams(
    client: Client, generate: Callable[..., torch.Tensor]
) -> None:
    class KeepsState(CustomLogitProcessor):
        def __call__(self, logits, custom_param_list=None):
            for params in custom_param_list:
                params["calls"] = params.get("calls", 0) + 1
            return logits

    remote = RemoteLogitsProcessor([(KeepsState, {})], pad_token_id=PAD, client=client)
    with pytest.raises(StateLost, match=r"began as row \d: beam search moved it"):
        generate(remote, num_beams=3)
    assert torch.equal(generate(remote), generate()), "without beams it can"


def test_a_failing_processor_ends_generate_with_its_traceback(
    client: Client, generate: Callable[..., torch.Tensor]
) -> None:
    chains = [[("disallowed_tokens", {"token_ids": [5]})], [(RaisesInCall, {})], []]
    remote = RemoteLogitsProcessor(chains, client=client)
    with pytest.raises(RequestsFailed, match=r"(?s)row 1.*ProcessorFailed.*Remote traceback.*out of luck") as raised:
        generate(remote)
    assert len(raised.value.failures) == 1


def test_a_refused_request_ends_generate(client: Client, generate: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(NotFound, match="disalowed_tokens"):
        generate(RemoteLogitsProcessor([("disalowed_tokens", {"token_ids": [5]})], client=client))
    with pytest.raises(InvalidArgument, match="token_ids"):
        generate(RemoteLogitsProcessor([("disallowed_tokens", {})], client=client))


def test_one_chain_for_each_prompt(client: Client, generate: Callable[..., torch.Tensor]) -> None:
    chains: list[Chain] = [
        [("disallowed_tokens", {"token_ids": list(range(part, VOCAB_SIZE, 3))})] for part in range(3)
    ]
    output = generate(RemoteLogitsProcessor(chains, client=client), do_sample=True, num_return_sequences=2)
    for row, ids in enumerate(output.tolist()):
        assert row // 2 not in {token_id % 3 for token_id in ids}
    with pytest.raises(InvalidArgument, match="2 lists of processors for a batch of 3 rows"):
        generate(RemoteLogitsProcessor(chains[:2], client=client))


@pytest.mark.parametrize("processors", [["disallowed_tokens"], [("disallowed_tokens",)], [(DisallowedTokens, None)], 3])
def test_other_processors_are_refused(client: Client, processors: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"expected \(processor, parameters\) pairs"):
        RemoteLogitsProcessor(processors, client=client)


@pytest.mark.parametrize("chain", [[("disallowed_tokens", {"token_ids": [5]})], [(RaisesInCall, {})]])
def test_a_session_ends_with_its_call(
    client: Client, generate: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch, chain: Chain
) -> None:
    opened: list[Session] = []
    open_session = client.session
    monkeypatch.setattr(client, "session", lambda **options: opened.append(open_session(**options)) or opened[-1])
    with contextlib.suppress(RequestsFailed):
        generate(RemoteLogitsProcessor(chain, client=client))
    assert len(opened) == 1
    with pytest.raises(SessionClosed):
        opened[0].step({})


def test_the_package_of_hooks_imports_no_engine() -> None:
    check = "import sys, logitport.integrations; sys.exit({'torch', 'transformers'} & set(sys.modules) != set())"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


class AllowsEnds(EditProcessor):
    """Allows only the ids that end a sequence."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.allow(list(request.eos_token_ids))


@pytest.mark.parametrize("options", [{}, {"eos_token_id": [300, 301]}, {"do_sample": True}], ids=str)
def test_the_ids_that_end_a_row_are_those_of_the_generate_call(
    client: Client, generate: Callable[..., torch.Tensor], options: dict[str, Any]
) -> None:
    output = generate(RemoteLogitsProcessor([(AllowsEnds, {})], client=client), min_new_tokens=0, **options)
    assert output.shape[1] == 1
    assert set(output[:, 0].tolist()) <= set(options.get("eos_token_id", [EOS]))


def test_without_generate_no_id_ends_a_row(client: Client) -> None:
    with RemoteLogitsProcessor([("disallowed_tokens", {"token_ids": [3]})], client=client) as remote:
        assert torch.isinf(remote(torch.tensor([[5, EOS]]), torch.zeros(1, VOCAB_SIZE))[0]).sum() == 1


def test_a_row_without_an_id_is_an_error(client: Client, generate: Callable[..., torch.Tensor]) -> None:
    everything = ("disallowed_tokens", {"token_ids": list(range(VOCAB_SIZE))})
    chains: list[Any] = [[("disallowed_tokens", {"token_ids": [3]})]] * 2 + [[everything]]
    with pytest.raises(InvalidArgument, match=r"row 2.*deny every id"):
        generate(RemoteLogitsProcessor(chains, client=client))


def test_a_recording_replays(
    client: Client,
    generate: Callable[..., torch.Tensor],
    prompts: torch.Tensor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "engine.lprec"
    for name, value in recordings.variables(path).items():
        monkeypatch.setenv(name, value)

    def generated(chain: Any) -> list[tuple[list[int], list[int]]]:
        with RemoteLogitsProcessor([chain], pad_token_id=PAD, client=client) as remote:
            outputs = generate(remote).tolist()
        given = [[token_id for token_id in prompt if token_id != PAD] for prompt in prompts.tolist()]
        return [*zip(given, outputs, strict=True)]

    recordings.check(path, generated(recordings.EDITS), generated(recordings.READS))


def test_a_chain_runs_in_this_process_with_the_tokenizer_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llguidance")
    monkeypatch.delenv("LOGITPORT_TARGET", raising=False)
    checkpoint, ids = embedded.save_text_checkpoint(tmp_path), torch.tensor([embedded.PROMPT])
    with RemoteLogitsProcessor([embedded.GRAMMAR, ("top_k", {"top_k": 1})], tokenizer_id=str(checkpoint)) as remote:
        output = LlamaForCausalLM.from_pretrained(checkpoint).generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=32, logits_processor=[remote]
        )
    assert re.fullmatch(embedded.REGEX, embedded.text_of(checkpoint, output[0, ids.shape[1] :].tolist()))
    assert remote.rows_applied["grammar"] == remote.rows_applied["top_k"] > 0
