"""logitport as a logits processor of Hugging Face transformers."""

from __future__ import annotations

import sys
import time
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import transformers
from transformers import LogitsProcessor, LogitsProcessorList

from logitport.errors import InvalidArgument, RequestsFailed, StateLost
from logitport.integrations.common.circuit_breaker import SESSION_ERRORS, Breaker
from logitport.integrations.common.history_batch import HistoryBatch, is_chain
from logitport.integrations.common.padding import running_rows, tokens_by_id, tokens_by_mask

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    import torch
    from numpy.typing import NDArray

    from logitport.client import Client
    from logitport.integrations.common.history_batch import Chain


class RemoteLogitsProcessor(LogitsProcessor):
    """Has the service process the scores of `model.generate(..., logits_processor=[this])`.

    Each row is a request of its own, also with `num_return_sequences`. Only ids that are new travel, and scores only
    where a processor reads them. Rows that beam search moves, and drafts that assisted generation takes back, are
    followed; a processor that reads logits and keeps state of its own cannot follow, and fails with StateLost.
    For an encoder-decoder model the history is the decoder's ids.

    One object serves any number of `generate` calls, and each starts anew. In a loop of your own, call `close` between
    two sequences. Not safe to use from several threads.

    Args:
        client: the connection; stays open.
        processors: (processor, parameters) pairs for all rows, or one list of such pairs for each prompt.
        pad_token_id: ids equal to it at the start of a prompt are padding and stay out of the history. Without it, and
            without attention_mask, nothing is taken for padding.
        attention_mask: [prompts, prompt_length], as `generate` gets it; 0 marks padding, whatever its id. For models
            whose prompts begin with the id that also pads. Ties the object to prompts of this shape.
        eos_token_id: ids that end a row, as `generate` has them; a row that has ended takes no part in further steps.
            Without it ended rows are processed on, as transformers' own processors do, with `generate`'s padding
            in their history.

    Attributes:
        steps: steps served, of all calls together.
        rows_applied: rows by processor, as in `StepResult`, of all steps together.
        seconds: time spent in here, opening sessions included.

    Raises:
        InvalidArgument: `processors` is neither of the two forms.
    """

    def __init__(
        self,
        client: Client,
        processors: Chain | Sequence[Chain],
        *,
        pad_token_id: int | None = None,
        attention_mask: torch.Tensor | NDArray[Any] | None = None,
        eos_token_id: int | Sequence[int] | None = None,
    ) -> None:
        self.steps = 0
        self.rows_applied: Counter[str] = Counter()
        self.seconds = 0.0
        self._client = client
        self._breaker = Breaker()
        self._chains = _one_chain_a_prompt(processors)
        self._pad_token_id = pad_token_id
        self._attention_mask = None if attention_mask is None else _to_numpy(attention_mask)
        self._eos_token_ids = [] if eos_token_id is None else np.atleast_1d(eos_token_id).tolist()
        self._batches: dict[int, HistoryBatch] = {}

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Process one step.

        Args:
            input_ids: int64[rows, length], the prompts and what has been sampled.
            scores: float[rows, vocab_size]; stay as they are.

        Returns:
            float[rows, vocab_size], a new tensor.

        Raises:
            InvalidArgument: the batch does not fit `processors` or attention_mask, or a row goes on after its end; or
                this is continuous batching, which `logitport.integrations.transformers_continuous` serves.
            RequestsFailed: a processor failed; the message holds the remote traceback.
            StateLost: a row moved, and the state of its processors cannot follow.
            LogitportError: a request was refused, or the server cannot be reached.
        """
        began = time.perf_counter()
        if input_ids.ndim != 2:
            raise InvalidArgument(
                f"input_ids have shape {list(input_ids.shape)}; [rows, length] is wanted. Continuous batching shows "
                "processors the last ids alone: use logitport.integrations.transformers_continuous there"
            )
        caller = _calling_list()
        ids = _to_numpy(input_ids)
        try:
            processed = self._step(self._batch(caller, ids, scores), ids, scores)
        except BaseException as error:
            self._end(id(caller))
            if isinstance(error, SESSION_ERRORS):
                self._breaker.failed(error, self._client.timeout)
            raise
        self._breaker.answered()
        self.steps += 1
        self.seconds += time.perf_counter() - began
        return cast("torch.FloatTensor", processed)

    def close(self) -> None:
        """End what is under way; the next call starts anew. The client stays open."""
        for key in list(self._batches):
            self._end(key)

    def __enter__(self) -> RemoteLogitsProcessor:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _step(self, batch: HistoryBatch, ids: NDArray[np.int64], scores: torch.Tensor) -> torch.Tensor:
        rows = running_rows(ids[:, batch.prompt_length :], self._eos_token_ids, self._pad_token_id)
        new_ids = batch.new_ids(ids, rows)
        if not rows:
            return scores.clone()
        pending = batch.session.step(new_ids)
        processed = scores.clone()  # while the server is at work
        selected = processed if len(rows) == len(ids) else processed[rows]
        try:
            result = pending.apply(selected)
        except RequestsFailed as failed:
            _explain_lost_state(failed)
            raise
        if selected is not processed:
            processed[rows] = selected
        self.rows_applied.update(result.rows_applied)
        return processed

    def _batch(self, caller: LogitsProcessorList | None, ids: NDArray[np.int64], scores: torch.Tensor) -> HistoryBatch:
        """The call of `generate` that this step belongs to; begun, if this is its first step."""
        key = id(caller)
        batch = self._batches.get(key)
        if batch is None or not batch.continues_with(ids):
            self._end(key)
            session = self._breaker.attempt(
                lambda: self._client.session(
                    vocab_size=scores.shape[-1],
                    dtype=scores.dtype,
                    device=str(scores.device),
                    eos_token_ids=self._eos_token_ids,
                    max_requests=len(ids),
                    engine=f"transformers {transformers.__version__}",
                )
            )
            batch = self._batches[key] = HistoryBatch(session, ids)
            if caller is not None:
                weakref.finalize(caller, self._end, key)
            batch.admit(self._is_token(ids), self._chains_of(len(ids)))
        return batch

    def _is_token(self, prompts: NDArray[np.int64]) -> NDArray[np.bool_]:
        if self._attention_mask is None:
            return tokens_by_id(prompts, self._pad_token_id)
        return tokens_by_mask(prompts, self._attention_mask)

    def _end(self, key: int) -> None:
        batch = self._batches.pop(key, None)
        if batch is not None:
            batch.session.close()

    def _chains_of(self, rows: int) -> list[Chain]:
        copies, rest = divmod(rows, len(self._chains))
        if rest or not copies:
            raise InvalidArgument(
                f"{len(self._chains)} lists of processors for a batch of {rows} rows; give one list for each prompt"
            )
        return [chain for chain in self._chains for _ in range(copies)]


def _calling_list() -> LogitsProcessorList | None:
    """The list through which `generate` runs its processors; None outside `generate`.

    `generate` makes one for each call, and drops it when the call is over: it tells the calls apart, where ids cannot,
    since the output of one call may be the prompt of the next.
    """
    caller = sys._getframe(2).f_locals.get("self")
    return caller if isinstance(caller, LogitsProcessorList) else None


def _one_chain_a_prompt(processors: Chain | Sequence[Chain]) -> Sequence[Chain]:
    if is_chain(processors):
        return [cast("Chain", processors)]
    if isinstance(processors, list | tuple) and all(map(is_chain, processors)):
        return cast("Sequence[Chain]", processors)
    raise InvalidArgument(
        "processors: (processor, parameters) pairs are wanted, such as [('disallowed_tokens', {'token_ids': [1]})], "
        "or one list of such pairs for each prompt"
    )


def _explain_lost_state(failed: RequestsFailed) -> None:
    """Raise StateLost, if that is why, in the words of somebody who called `generate`."""
    for handle, error in failed.failures.items():
        if isinstance(error, StateLost):
            raise StateLost(
                f"the request that began as {handle.request_id}: beam search moved it to another history, or assisted "
                "generation took ids back, and one of its processors reads logits and keeps state that cannot follow; "
                "generate without, or derive the processor from EditProcessor",
                processor=error.processor,
            ) from failed


def _to_numpy(array: torch.Tensor | NDArray[Any]) -> NDArray[Any]:
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()
