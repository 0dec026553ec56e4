"""Runs processors where SGLang verifies draft tokens.

SGLang samples a verified batch in `eagle_sample`, for the drafts of EAGLE, of models like it, and of NGRAM, and calls
no processors there. That function applies the grammars to the logits by its argument `grammar_mask`, after penalties
and biases, and before it accepts drafts. The patch passes one that applies the processors after the grammars, where
SGLang's sampler runs them without drafts. For DFLASH and DSPARK see `block_speculation`.

With the overlap schedule, SGLang launches a batch before it has processed the result of the last one, so that histories
lack the last accepted ids. For grammars of drafts from the host, it processes that result first. Another patch lets it
do the same for batches with processors; other batches still overlap.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from logitport.integrations.sglang import block_speculation
from logitport.integrations.sglang.draft_rows import DraftRows

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

_PATCHED = "logitport_patched"

# Set once the plugin is installed in this process.
_active = threading.Event()


class _Patch(NamedTuple):
    """A function of SGLang that is replaced.

    Attributes:
        module: where it is, below `sglang.srt`.
        owner: its class there; "" for none.
        name: its name.
        wrap: returns the function that replaces it.
    """

    module: str
    owner: str
    name: str
    wrap: Callable[..., Any]

    def target(self) -> Any:
        """Return the module or class that has the function; None if this process has not imported it."""
        module = sys.modules.get(f"sglang.srt.{self.module}")
        return getattr(module, self.owner) if module is not None and self.owner else module


def install() -> None:
    """Patch SGLang in this process, once it has imported the worker of an algorithm."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    SpeculativeAlgorithm.create_worker = _wrap_create(SpeculativeAlgorithm.create_worker)
    _active.set()


def installed() -> bool:
    """Return whether this process verifies drafts, and each function that it has imported for that is patched.

    Patches what was imported after the worker, if the plugin is active.
    """
    if _active.is_set():
        _patch_loaded()
    targets = [(patch.target(), patch.name) for patch in _patches()]
    functions = {name: getattr(target, name) for target, name in targets if target is not None}
    verifies = not functions.keys().isdisjoint({"eagle_sample", "apply_custom_logit_processor"})
    return verifies and all(hasattr(getattr(target, name), _PATCHED) for target, name in targets if target is not None)


def _wrap_create(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def wrapped(*args: Any, **keywords: Any) -> Any:
        """Return the worker's class. Creating it imports the modules to patch."""
        worker = create(*args, **keywords)
        _patch_loaded()
        return worker

    return wrapped


def _patch_loaded() -> None:
    for patch in _patches():
        target = patch.target()
        if target is not None and not hasattr(getattr(target, patch.name), _PATCHED):
            function = patch.wrap(getattr(target, patch.name))
            setattr(function, _PATCHED, True)
            setattr(target, patch.name, function)


def wrap_overlap(disables: Callable[..., bool]) -> Callable[..., bool]:
    """Return the scheduler's `is_disable_overlap_for_batch`, which is also true for drafts with processors."""

    @functools.wraps(disables)
    def wrapped(scheduler: Any, batch: Any, *args: Any, **keywords: Any) -> bool:
        """Return whether to process the last result before this batch is launched."""
        if disables(scheduler, batch, *args, **keywords):
            return True
        if not batch or batch.spec_algorithm.is_none() or not scheduler.result_queue:
            return False
        return batch.sampling_info is not None and bool(batch.sampling_info.has_custom_logit_processor)

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
        rows = DraftRows(verify_input, info)
        mask = _MaskAndProcessors(grammar_mask, rows)
        predict, accept_lens, accept_index = sample(verify_input, batch, logits_output, mask, *args, **keywords)
        rows.end_denied(predict, accept_index)
        return predict, accept_lens, accept_index

    return wrapped


class _MaskAndProcessors:
    """Replaces SGLang's `GrammarMask` of one batch.

    Args:
        mask: SGLang's own, if a request has a grammar.
        rows: the rows of the batch.
    """

    def __init__(self, mask: Any, rows: DraftRows) -> None:
        self._mask = mask
        self._rows = rows

    def apply(self, logits: torch.Tensor) -> None:
        """Apply the grammars and the processors to float[requests * nodes, vocab_size] in place."""
        if self._mask is not None:
            self._mask.apply(logits)
        self._rows.process(logits)


def _patches() -> list[_Patch]:
    """Return the functions to replace. Several modules hold `eagle_sample` by its name."""
    return [
        *(
            _Patch(f"speculative.{module}", "", "eagle_sample", wrap_sample)
            for module in ("eagle_utils", "eagle_worker_common", "ngram_worker")
        ),
        _Patch("speculative.dflash_utils", "", "apply_custom_logit_processor", block_speculation.wrap_apply),
        _Patch("speculative.dflash_info", "DFlashVerifyInput", "prepare_for_verify", block_speculation.wrap_prepare),
        _Patch("speculative.dflash_worker_v2", "DFlashWorkerV2", "_accept_block", block_speculation.wrap_accept),
        _Patch(
            "speculative.dspark_components.dspark_verify",
            *("TargetVerifyExecutor", "accept_and_finalize", block_speculation.wrap_accept),
        ),
        _Patch("managers.scheduler", "Scheduler", "is_disable_overlap_for_batch", wrap_overlap),
    ]
