"""logitport as a logits processor of llama-cpp-python."""

from __future__ import annotations

import sys
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.errors import InvalidArgument
from logitport.integrations.common.chains import require_chain
from logitport.integrations.common.history_batch import HistoryBatch, SequenceHook
from logitport.integrations.common.statuses import all_denied

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from numpy.typing import NDArray

    from logitport.client.client import Client
    from logitport.integrations.common.chains import Chain


class RemoteLogitsProcessor(SequenceHook):
    """Processes scores in the service: `llm.create_completion(..., logits_processor=LogitsProcessorList([this]))`.

    Works for chat and streaming too. Sends only new ids, and scores only if a processor reads them. With a draft model
    the history holds verified ids only, although llama-cpp-python passes the drafts as well.

    One object serves any number of completions; each has its own history, and several models may take turns. In a
    custom loop around `Llama.sample`, call `close` between two sequences. Not thread-safe.

    Args:
        processors: (processor, parameters) pairs, in execution order.
        tenant: the program's customer; create one object for each.
        tokenizer_id: the model's tokenizer, for grammars and built-ins that read text: the path of its files, or a
            name of the Hugging Face hub; for a server a name that it knows.
        client: the connection; not closed by this object. By default one to the servers at LOGITPORT_TARGET, or without
            that variable one with sessions in this process (`Client.embedded`).

    Attributes:
        steps: steps served, over all completions.
        rows_applied: steps per processor, as in `StepResult`, over all completions.
        seconds: time spent in this object, opening sessions included.
        reports: a list with the `Report` of the latest sequence, also after its end; see `logitport.report`.

    Raises:
        InvalidArgument: `processors` is no list of such pairs.
    """

    def __init__(
        self, processors: Chain, *, client: Client | None = None, tokenizer_id: str = "", tenant: str = ""
    ) -> None:
        self._chain = require_chain(processors)
        self._tenant = tenant
        # Keyed by the model that runs the completion; by this object outside `Llama.sample`.
        self._completions: weakref.WeakKeyDictionary[object, _Completion] = weakref.WeakKeyDictionary()
        super().__init__(client, self._completions, tokenizer_id)

    def __call__(self, input_ids: NDArray[np.intc], scores: NDArray[np.single]) -> NDArray[np.single]:
        """Process one step. Errors are raised by the method of `Llama` that the caller used.

        Args:
            input_ids: int32[length], the prompt and the sampled ids.
            scores: float32[vocab_size]; not modified.

        Returns:
            float32[vocab_size], a new array.

        Raises:
            InvalidArgument: `scores` has another dtype or shape.
            RequestsFailed: a processor failed; the message holds the remote traceback.
            InvalidArgument: the processors deny every id.
            LogitportError: the request was refused, or the server is unreachable.
        """
        began = time.perf_counter()
        caller = _caller()
        key = self if caller is None else caller.model
        try:
            processed = self._step(key, caller, input_ids, scores)
        except BaseException as error:
            self._record_failure(key, error)
            if caller is None:
                raise
            _raise_on_return(caller.frame, error)
            return scores
        self._record_success(began)
        return processed

    def _step(
        self, key: object, caller: _Caller | None, input_ids: NDArray[np.intc], scores: NDArray[np.single]
    ) -> NDArray[np.single]:
        if scores.ndim != 1 or scores.dtype != np.single:
            raise InvalidArgument(f"scores are {scores.dtype}{list(scores.shape)}; expected float32[vocab_size]")
        length = None if caller is None else caller.length
        ids = input_ids[None, :length].astype(np.int64)
        batch = self._batch(key, None if caller is None else caller.sampler, ids, len(scores))
        pending = batch.session.step(batch.new_ids(ids, [0]))
        processed = np.array(scores)
        self._apply(pending, processed[None], lambda _: all_denied("llama.cpp"))
        return processed

    def _batch(self, key: object, sampler: object, ids: NDArray[np.int64], vocab_size: int) -> HistoryBatch:
        """Return the batch of the completion that this step belongs to; start one at its first step."""
        completion = self._completions.get(key)
        if completion is None or not completion.continues_with(sampler, ids):
            self._end(key)
            eos_token_ids = () if key is self else _eos_token_ids(key)
            batch = self._open(ids, vocab_size=vocab_size, engine="llama-cpp-python", eos_token_ids=eos_token_ids)
            close = weakref.finalize(key, batch.close)
            # A strong reference to the sampler would keep the model, and so the dictionary entry, alive.
            sampler_ref = None if sampler is None else weakref.ref(sampler)
            completion = self._completions[key] = _Completion(batch, sampler_ref, close)
            batch.admit(np.ones(ids.shape, bool), [self._chain], [self._tenant])
        return completion.batch


@dataclass(frozen=True)
class _Completion:
    """One sequence that is being generated.

    Attributes:
        batch: has one row.
        sampler: identifies the sequence, as a weak reference; None in a custom loop.
        close: closes the session; also called when the model is garbage-collected.
    """

    batch: HistoryBatch
    sampler: weakref.ref[object] | None
    close: Callable[[], object]

    def continues_with(self, sampler: object, ids: NDArray[np.int64]) -> bool:
        """Return whether int64[1, length], sampled by this sampler, can be the next step."""
        if self.sampler is None or sampler is None:
            return self.sampler is sampler and self.batch.continues_with(ids)
        return self.sampler() is sampler


@dataclass(frozen=True)
class _Caller:
    """The call of `Llama.sample` that runs the processor.

    Attributes:
        frame: its frame.
        model: the Llama.
        sampler: `Llama.generate` creates one per sequence. It identifies the sequence; ids cannot, since the output of
            one may be the prompt of the next. None outside `generate`.
        length: the number of ids before the one to sample, if drafts follow them; None for all ids.
    """

    frame: FrameType
    model: Any
    sampler: object
    length: int | None


def _eos_token_ids(model: Any) -> list[int]:
    """Return the id that ends a completion of this `Llama`; none if the model has none, or does not show it."""
    token_eos = getattr(model, "token_eos", None)
    token_id = -1 if token_eos is None else int(token_eos())
    return [token_id] if token_id >= 0 else []


def _caller() -> _Caller | None:
    """Find the calling `Llama.sample`; None without one.

    If llama-cpp-python calls the processor in an unknown way, InvalidArgument is raised once ctypes has returned.
    """
    frame: FrameType | None = sys._getframe(2)
    unknown = None
    while frame is not None:
        if {"tmp_sampler", "ridx"} <= set(frame.f_code.co_varnames):
            names = frame.f_locals
            sampler = None if names["tmp_sampler"] else names["self"]._sampler
            index = names.get("idx")
            return _Caller(frame, names["self"], sampler, None if index is None else index + 1)
        if frame.f_globals.get("__name__") == "llama_cpp.llama" and frame.f_code.co_name != "__call__":
            unknown = frame
        frame = frame.f_back
    if unknown is not None:
        error = f"this llama-cpp-python calls processors from {unknown.f_code.co_name}() in an unknown way; "
        _raise_on_return(unknown, InvalidArgument(f"{error}install 0.3.36, which is known to work"))
    return None


def _raise_on_return(frame: FrameType, error: BaseException) -> None:
    """Raise the error when this frame returns.

    llama.cpp calls processors through ctypes, which drops their exceptions: the completion would continue unprocessed.
    A profile function can raise instead. Python has one per thread and unsets it when it raises; this also unsets a
    profiler that is running.
    """

    def profile(returning: FrameType, event: str, _: object) -> None:
        if returning is frame and event == "return":
            raise error

    sys.setprofile(profile)
