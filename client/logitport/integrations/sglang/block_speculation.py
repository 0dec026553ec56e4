"""Runs processors where DFLASH and DSPARK verify blocks of draft tokens, in SGLang's own order.

SGLang calls custom processors there before penalties, biases and grammars, once with all rows of each request, and
does not pass the drafts. The patches keep the place of that call, read the drafts from the input of the verification,
and end requests that continue after a row in which processors deny every id.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidArgument
from logitport.integrations.sglang import _hook
from logitport.integrations.sglang.draft_rows import DraftRows
from logitport.integrations.sglang.draft_trees import read_blocks
from logitport.integrations.sglang.requests import NO_GRAMMAR, awaits_token, end, request_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

# Where the `SamplingBatchInfo` of a batch holds the input of its verification, and the processed rows.
_INPUT, _ROWS = "logitport_verify_input", "logitport_draft_rows"


def wrap_prepare(prepare: Callable[..., Any]) -> Callable[..., Any]:
    """Return `DFlashVerifyInput.prepare_for_verify`, which keeps the drafts for the call of the processors."""

    @functools.wraps(prepare)
    def wrapped(verify_input: Any, batch: Any, *args: Any, **keywords: Any) -> Any:
        if batch.sampling_info is not None and batch.sampling_info.has_custom_logit_processor:
            setattr(batch.sampling_info, _INPUT, verify_input)
        return prepare(verify_input, batch, *args, **keywords)

    return wrapped


def wrap_apply(_apply: Callable[..., None]) -> Callable[..., None]:
    """Return the `apply_custom_logit_processor` of SGLang's `dflash_utils`, which passes the drafts."""

    @functools.wraps(_apply)
    def wrapped(logits: torch.Tensor, info: Any, num_tokens_in_batch: int = 1) -> None:  # noqa: ARG001 - the input has it
        rows = DraftRows(vars(info).pop(_INPUT, None), info, read_blocks, _refuse_grammar)
        rows.process(logits)
        setattr(info, _ROWS, rows)

    return wrapped


def wrap_accept(accept: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of a worker that accepts drafts, which ends requests without an id."""

    @functools.wraps(accept)
    def wrapped(worker: Any, *, sampling_info: Any, **keywords: Any) -> Any:
        accepted = accept(worker, sampling_info=sampling_info, **keywords)
        rows: DraftRows | None = None if sampling_info is None else vars(sampling_info).pop(_ROWS, None)
        if rows is not None and rows.denied:
            if isinstance(accepted, tuple):  # DFLASH's
                _, lengths, _, out_tokens, _ = accepted
            else:
                lengths, out_tokens = accepted.commit_lens, accepted.out_tokens
            rows.end_denied(out_tokens.flatten(), _accept_index(lengths, out_tokens.shape[-1]))
        return accepted

    return wrapped


def _accept_index(lengths: torch.Tensor, nodes: int) -> torch.Tensor:
    """Return int[requests, nodes] with the accepted rows of each request, then -1."""
    import torch

    rows = torch.arange(len(lengths) * nodes).view(-1, nodes)
    return torch.where(torch.arange(nodes) < lengths.cpu().view(-1, 1), rows, -1)


def _refuse_grammar(params: Any) -> bool:
    """End a request with a chain and a grammar of SGLang's. Returns whether it is one; its rows stay as they are."""
    req = request_of(params)
    if getattr(req, "grammar", None) is None or not _hook().may_have_chain(params):
        return False
    if awaits_token(req):
        end(req, InvalidArgument(NO_GRAMMAR))
    return True
