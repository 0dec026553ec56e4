"""Runs processors where SGLang verifies draft tokens: its `eagle_sample` calls none.

SGLang samples a verified batch in `eagle_sample`, for the drafts of EAGLE, of models like it, and of NGRAM. That
function applies the grammars to the logits by its argument `grammar_mask`, after penalties and biases, and before it
accepts drafts. The patch passes one that applies the processors after the grammars, where SGLang's sampler runs them
without drafts.

With the overlap schedule, SGLang launches a batch before it has processed the result of the last one, so that histories
lack the last accepted ids. For grammars of drafts from the host, it processes that result first. The second patch
lets it do the same for batches with processors; other batches still overlap.
"""

from __future__ import annotations

import functools
import itertools
import sys
from typing import TYPE_CHECKING, Any

from logitport.errors import LogitportError
from logitport.integrations.common.engine_step import leave_only
from logitport.integrations.common.statuses import all_denied
from logitport.integrations.sglang import RemoteLogitProcessor, _hook
from logitport.integrations.sglang.draft_trees import read_trees
from logitport.integrations.sglang.requests import end, ending_id, ends_within, request_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

# The modules that hold the function by its name.
_MODULES = tuple(f"sglang.srt.speculative.{name}" for name in ("eagle_utils", "eagle_worker_common", "ngram_worker"))
_SCHEDULER = "sglang.srt.managers.scheduler"


def install() -> None:
    """Patch SGLang in this process, once it has imported the worker of an algorithm."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    SpeculativeAlgorithm.create_worker = _wrap_create(SpeculativeAlgorithm.create_worker)


def installed() -> bool:
    """Return whether each function that verifies drafts in this process, and the scheduler, is patched."""
    functions = [module.eagle_sample for module in _loaded_modules()]
    overlaps = [module.Scheduler.is_disable_overlap_for_batch for module in _loaded_schedulers()]
    return bool(functions) and all(hasattr(function, _PATCHED) for function in [*functions, *overlaps])


_PATCHED = "logitport_patched"


def _loaded_modules() -> list[Any]:
    return [sys.modules[name] for name in _MODULES if name in sys.modules]


def _loaded_schedulers() -> list[Any]:
    return [sys.modules[_SCHEDULER]] if _SCHEDULER in sys.modules else []


def _wrap_create(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def wrapped(*args: Any, **keywords: Any) -> Any:
        """Return the worker's class. Creating it imports the modules to patch."""
        worker = create(*args, **keywords)
        for module in _loaded_modules():
            if not hasattr(module.eagle_sample, _PATCHED):
                module.eagle_sample = wrap_sample(module.eagle_sample)
        for module in _loaded_schedulers():
            scheduler = module.Scheduler
            if not hasattr(scheduler.is_disable_overlap_for_batch, _PATCHED):
                scheduler.is_disable_overlap_for_batch = wrap_overlap(scheduler.is_disable_overlap_for_batch)
        return worker

    return wrapped


def wrap_overlap(disables: Callable[..., bool]) -> Callable[..., bool]:
    """Return the scheduler's `is_disable_overlap_for_batch`, which is also true for drafts with processors."""

    @functools.wraps(disables)
    def wrapped(scheduler: Any, batch: Any, *args: Any, **keywords: Any) -> bool:
        """Return whether to process the last result before this batch is launched."""
        if disables(scheduler, batch, *args, **keywords):
            return True
        if not batch or batch.spec_algorithm.is_none() or not scheduler.result_queue:
            return False
        return batch.sampling_info is not None and batch.sampling_info.has_custom_logit_processor

    setattr(wrapped, _PATCHED, True)
    return wrapped


def wrap_sample(sample: Callable[..., Any]) -> Callable[..., Any]:
    """Return SGLang's `eagle_sample` with processors."""

    @functools.wraps(sample)
    def wrapped(
        verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any = None, *args: Any, **keywords: Any
    ) -> Any:
        info = batch.sampling_info
        if info is None or not info.has_custom_logit_processor:
            return sample(verify_input, batch, logits_output, grammar_mask, *args, **keywords)
        mask = _MaskAndProcessors(grammar_mask, verify_input, info)
        predict, accept_lens, accept_index = sample(verify_input, batch, logits_output, mask, *args, **keywords)
        mask.end_denied(predict, accept_index)
        return predict, accept_lens, accept_index

    setattr(wrapped, _PATCHED, True)
    return wrapped


class _MaskAndProcessors:
    """Replaces SGLang's `GrammarMask` of one batch.

    Args:
        mask: SGLang's own, if a request has a grammar.
        verify_input: the drafts.
        info: the batch's `SamplingBatchInfo`.
    """

    def __init__(self, mask: Any, verify_input: Any, info: Any) -> None:
        self._mask = mask
        self._verify_input = verify_input
        self._info = info
        self._denied: dict[int, Any] = {}

    def apply(self, logits: torch.Tensor) -> None:
        """Apply the grammars and the processors to float[requests * nodes, vocab_size] in place."""
        if self._mask is not None:
            self._mask.apply(logits)
        for entry in self._info.custom_logit_processor.values():
            params = [self._info.custom_params[request] for request in entry.rows]
            if isinstance(entry.processor, RemoteLogitProcessor):
                self._process(logits, dict(zip(entry.rows, params, strict=True)))
            else:  # the guard's, which ends the requests
                entry.processor(logits, params)

    def _process(self, logits: torch.Tensor, params: Mapping[int, Any]) -> None:
        """Process the rows of requests, which `params` has by their index in the batch. Does not raise."""
        try:
            nodes = self._verify_input.draft_token_num
            trees = dict(zip(range(0, len(logits), nodes), read_trees(self._verify_input), strict=True))
        except Exception as error:  # noqa: BLE001 - an exception would end the engine
            failure = LogitportError(f"the drafts of this SGLang cannot be read ({error!r})")
            nodes = max(1, len(logits) // len(self._info.custom_params))
            for index, of_request in params.items():
                req = request_of(of_request)
                end(req, failure)
                # Its ids are not sampled without its processors.
                leave_only(logits, slice(index * nodes, (index + 1) * nodes), ending_id(req))
            return
        rows = [params.get(row // nodes) if row in trees else None for row in range(len(logits))]
        self._denied |= _hook().process(logits, rows, trees)

    def end_denied(self, predict: torch.Tensor, accept_index: torch.Tensor) -> None:
        """End the requests that continue after a draft whose row the processors deny completely.

        Args:
            predict: int[requests * nodes], the id that each row leads to.
            accept_index: int[requests, depth], the accepted rows in their order, then -1.
        """
        if not self._denied:
            return
        predicted = predict.tolist()
        for rows in accept_index.tolist():
            before = list(itertools.takewhile(lambda row: row not in self._denied, rows))
            if len(before) < len(rows):
                req = self._denied[rows[len(before)]]
                if not ends_within(req, [predicted[row] for row in before if row >= 0]):
                    end(req, all_denied("SGLang"))
