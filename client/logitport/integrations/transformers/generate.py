"""logitport as a logits processor of Hugging Face transformers' `generate`."""

from __future__ import annotations

import sys
import time
import weakref
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import transformers
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from logitport.core import tensors
from logitport.errors import InvalidArgument, RequestsFailed, StateLost
from logitport.integrations.common.chains import is_chain
from logitport.integrations.common.history_batch import HistoryBatch, SequenceHook, running_rows, tokens_by_id
from logitport.integrations.common.rows import rows_of, selection_of, write_back
from logitport.integrations.common.statuses import all_denied

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    import torch
    from numpy.typing import NDArray

    from logitport.client.client import Client
    from logitport.integrations.common.chains import Chain

_T = TypeVar("_T")


class RemoteLogitsProcessor(SequenceHook, LogitsProcessor):
    """Processes the scores of `model.generate(..., logits_processor=[this])` in the service.

    Each row is a request of its own, also with `num_return_sequences`. Sends only new ids, and scores only if a
    processor reads them. Rows that beam search moves and drafts that assisted generation rejects are tracked. A
    processor that reads logits and keeps state cannot be moved with them: it fails with StateLost. For an
    encoder-decoder model the history holds the decoder's ids.

    One object serves any number of `generate` calls, each with its own requests. In a custom loop, call `close` between
    two sequences. Not thread-safe.

    Args:
        processors: (processor, parameters) pairs for all rows, or one list of such pairs for each prompt.
        pad_token_id: leading ids of a prompt that equal it are padding and stay out of the history. Without it, no id
            is padding.
        eos_token_id: ids that end a row; an ended row is left out of further steps, and grammars allow these ids at
            their ends. By default the ids of the `generate` call, and none in a custom loop.
        tenant: the program's customer, or one for each prompt.
        tokenizer_id: the model's tokenizer, for grammars and built-ins that read text: the path of its files, or a
            name of the Hugging Face hub; for a server a name that it knows.
        client: the connection; not closed by this object. By default one to the servers at LOGITPORT_TARGET, or without
            that variable one with sessions in this process (`Client.embedded`).

    Attributes:
        steps: steps served, over all calls.
        rows_applied: rows per processor, as in `StepResult`, over all calls.
        seconds: time spent in this object, opening sessions included.
        reports: a `Report` for each row of the latest call, also after its end; see `logitport.report`.

    Raises:
        InvalidArgument: `processors` has neither form.
    """

    def __init__(
        self,
        processors: Chain | Sequence[Chain],
        *,
        client: Client | None = None,
        tokenizer_id: str = "",
        pad_token_id: int | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        tenant: str | Sequence[str] = "",
    ) -> None:
        self._batches: dict[int, HistoryBatch] = {}
        super().__init__(client, self._batches, tokenizer_id)
        self._chains = _one_chain_a_prompt(processors)
        self._tenants = [tenant] if isinstance(tenant, str) else list(tenant)
        self._pad_token_id = pad_token_id
        self._eos_token_id = eos_token_id

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Process one step.

        Args:
            input_ids: int64[rows, length], the prompts and the sampled ids.
            scores: float[rows, vocab_size]; not modified.

        Returns:
            float[rows, vocab_size], a new tensor.

        Raises:
            InvalidArgument: the batch does not fit `processors`, the scores require gradients, a row continues after
                its end, the processors of a row deny every id, or the caller is continuous batching.
            RequestsFailed: a processor failed; the message holds the remote traceback.
            StateLost: a row moved, and the state of its processors cannot follow.
            LogitportError: a request was refused, or the server is unreachable.
        """
        began = time.perf_counter()
        if input_ids.ndim != 2:
            raise InvalidArgument(
                f"input_ids have shape {list(input_ids.shape)}; expected [rows, length]. Continuous batching passes "
                "only the last ids to processors: use logitport.integrations.transformers.continuous there"
            )
        caller, config = _calling_generate()
        ids = input_ids.cpu().numpy()
        tensors.check_gradient(scores)
        try:
            eos, padding = self._eos_token_id, self._pad_token_id
            if config is not None:
                eos = config.eos_token_id if eos is None else eos
                padding = config.pad_token_id if padding is None else padding
            eos_token_ids = [] if eos is None else np.atleast_1d(eos).tolist()
            batch = self._batch(caller, ids, scores, eos_token_ids)
            rows = running_rows(ids[:, batch.prompt_length :], eos_token_ids, padding)
            processed = self._step(batch, ids, rows, scores)
        except BaseException as error:
            self._record_failure(id(caller), error)
            raise
        self._record_success(began)
        return cast("torch.FloatTensor", processed)

    def _step(self, batch: HistoryBatch, ids: NDArray[np.int64], rows: list[int], scores: torch.Tensor) -> torch.Tensor:
        new_ids = batch.new_ids(ids, rows)
        if not rows:
            return scores.clone()
        pending = batch.session.step(new_ids)
        processed = scores.clone()  # overlaps with the server's work
        selection = selection_of(rows)
        selected = rows_of(processed, selection)
        try:
            self._apply(pending, selected, lambda row: all_denied("generate", f"row {rows[row]}"))
        except RequestsFailed as failed:
            _explain_lost_state(failed)
            raise
        write_back(processed, selection, selected)
        return processed

    def _batch(
        self, caller: LogitsProcessorList | None, ids: NDArray[np.int64], scores: torch.Tensor, eos: list[int]
    ) -> HistoryBatch:
        """Return the batch of the `generate` call that this step belongs to; start one at its first step."""
        key = id(caller)
        batch = self._batches.get(key)
        if batch is None or not batch.continues_with(ids):
            self._end(key)
            batch = self._batches[key] = self._open(
                ids,
                vocab_size=scores.shape[-1],
                dtype=scores.dtype,
                device=str(scores.device),
                eos_token_ids=eos,
                engine=f"transformers {transformers.__version__}",
            )
            if caller is not None:
                weakref.finalize(caller, self._end, key)
            chains = _repeat(self._chains, len(ids), "lists of processors")
            is_token = tokens_by_id(ids, self._pad_token_id)
            batch.admit(is_token, chains, _repeat(self._tenants, len(ids), "tenants"))
        return batch


# Of the functions between `generate`'s loop and a processor.
_MAX_FRAMES = 4


def _calling_generate() -> tuple[LogitsProcessorList | None, GenerationConfig | None]:
    """Find the list through which `generate` runs its processors, and its configuration; None outside `generate`.

    `generate` creates one list per call and drops it at the end, so it identifies the call. Ids cannot: the output of
    one call may be the prompt of the next. It passes processors neither the model nor the configuration.
    """
    frame: FrameType | None = sys._getframe(2)
    caller = None if frame is None else frame.f_locals.get("self")
    if not isinstance(caller, LogitsProcessorList):
        return None, None
    for _ in range(_MAX_FRAMES):
        frame = None if frame is None else frame.f_back
        config = None if frame is None else frame.f_locals.get("generation_config")
        if isinstance(config, GenerationConfig):
            return caller, config
    return caller, None


def _repeat(values: Sequence[_T], rows: int, what: str) -> list[_T]:
    """Return a value for each row. Raises InvalidArgument if the rows are no multiple of the values."""
    copies, rest = divmod(rows, len(values)) if values else (0, 0)
    if rest or not copies:
        raise InvalidArgument(f"{len(values)} {what} for a batch of {rows} rows; pass one for each prompt")
    return [value for value in values for _ in range(copies)]


def _one_chain_a_prompt(processors: Chain | Sequence[Chain]) -> Sequence[Chain]:
    if is_chain(processors):
        return [cast("Chain", processors)]
    if isinstance(processors, list | tuple) and all(map(is_chain, processors)):
        return cast("Sequence[Chain]", processors)
    raise InvalidArgument(
        "processors: expected (processor, parameters) pairs, such as [('disallowed_tokens', {'token_ids': [1]})], "
        "or one list of such pairs for each prompt"
    )


def _explain_lost_state(failed: RequestsFailed) -> None:
    """Raise StateLost, if it caused the failure, with a message in terms of `generate`."""
    for handle, error in failed.failures.items():
        if isinstance(error, StateLost):
            raise StateLost(
                f"the request that began as {handle.request_id}: beam search moved it to another history, or assisted "
                "generation rejected drafts, and one of its processors reads logits and keeps state that cannot "
                "follow; generate without beams and drafts, or derive the processor from EditProcessor",
                processor=error.processor,
            ) from failed
