"""logitport as a logits processor of llama-cpp-python."""

from __future__ import annotations

import sys
import time
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.errors import InvalidArgument, InvalidLogits
from logitport.integrations.common.circuit_breaker import SESSION_ERRORS, Breaker
from logitport.integrations.common.history_batch import HistoryBatch, is_chain

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from numpy.typing import NDArray

    from logitport.client import Client
    from logitport.integrations.common.history_batch import Chain


class RemoteLogitsProcessor:
    """Has the service process the scores of `llm.create_completion(..., logits_processor=LogitsProcessorList([this]))`.

    Chats and streams are served alike. Only ids that are new travel, and scores only where a processor reads them. With
    a draft model the history is what has been verified; what llama-cpp-python hands over has the drafts in it.

    One object serves any number of completions, and each starts anew; those of several models may take turns. In a loop
    of your own around `Llama.sample`, call `close` between two sequences. Not safe to use from several threads.

    Args:
        client: the connection; stays open.
        processors: (processor, parameters) pairs, in the order in which they run.

    Attributes:
        steps: steps served, of all completions together.
        rows_applied: steps by processor, as in `StepResult`, of all completions together.
        seconds: time spent in here, opening sessions included.

    Raises:
        InvalidArgument: `processors` is something else.
    """

    def __init__(self, client: Client, processors: Chain) -> None:
        if not is_chain(processors):
            raise InvalidArgument(
                "processors: (processor, parameters) pairs are wanted, such as "
                "[('disallowed_tokens', {'token_ids': [1]})]"
            )
        self.steps = 0
        self.rows_applied: Counter[str] = Counter()
        self.seconds = 0.0
        self._client = client
        self._breaker = Breaker()
        self._chain = processors
        # By the model that runs them; by this object, if there is none.
        self._completions: weakref.WeakKeyDictionary[object, _Completion] = weakref.WeakKeyDictionary()

    def __call__(self, input_ids: NDArray[np.intc], scores: NDArray[np.single]) -> NDArray[np.single]:
        """Process one step. What is raised comes out of the method of `Llama` that was called.

        Args:
            input_ids: int32[length], the prompt and what has been sampled.
            scores: float32[vocab_size]; stay as they are.

        Returns:
            float32[vocab_size], a new array.

        Raises:
            InvalidLogits: `scores` are something else.
            RequestsFailed: a processor failed; the message holds the remote traceback.
            LogitportError: the request was refused, or the server cannot be reached.
        """
        began = time.perf_counter()
        caller = _caller()
        key = self if caller is None else caller.model
        try:
            processed = self._step(key, caller, input_ids, scores)
        except BaseException as error:
            self._end(key)
            if isinstance(error, SESSION_ERRORS):
                self._breaker.failed(error, self._client.timeout)
            if caller is None:
                raise
            _raise_on_return(caller.frame, error)
            return scores
        self._breaker.answered()
        self.steps += 1
        self.seconds += time.perf_counter() - began
        return processed

    def close(self) -> None:
        """End what is under way; the next call starts anew. The client stays open."""
        for key in list(self._completions):
            self._end(key)

    def __enter__(self) -> RemoteLogitsProcessor:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _step(
        self, key: object, caller: _Caller | None, input_ids: NDArray[np.intc], scores: NDArray[np.single]
    ) -> NDArray[np.single]:
        if scores.ndim != 1 or scores.dtype != np.single:
            raise InvalidLogits(f"scores are {scores.dtype}{list(scores.shape)}; float32[vocab_size] is wanted")
        length = None if caller is None else caller.length
        ids = input_ids[None, :length].astype(np.int64)
        batch = self._batch(key, None if caller is None else caller.sampler, ids, len(scores))
        pending = batch.session.step(batch.new_ids(ids, [0]))
        processed = np.array(scores)
        self.rows_applied.update(pending.apply(processed[None]).rows_applied)
        return processed

    def _batch(self, key: object, sampler: object, ids: NDArray[np.int64], vocab_size: int) -> HistoryBatch:
        """The completion that this step belongs to; begun, if this is its first step."""
        completion = self._completions.get(key)
        if completion is None or not completion.continues_with(sampler, ids):
            self._end(key)
            session = self._breaker.attempt(
                lambda: self._client.session(vocab_size=vocab_size, max_requests=1, engine="llama-cpp-python")
            )
            close = weakref.finalize(key, session.close)
            # The sampler holds the model, and would keep it in the dictionary for ever.
            weakly = None if sampler is None else weakref.ref(sampler)
            completion = self._completions[key] = _Completion(HistoryBatch(session, ids), weakly, close)
            completion.batch.admit(np.ones(ids.shape, bool), [self._chain])
        return completion.batch

    def _end(self, key: object) -> None:
        completion = self._completions.pop(key, None)
        if completion is not None:
            completion.close()


@dataclass(frozen=True)
class _Completion:
    """One sequence under way.

    Attributes:
        batch: of one row.
        sampler: what tells it from others, weakly; None in a loop of somebody's own.
        close: ends its session; called when the model goes, too.
    """

    batch: HistoryBatch
    sampler: weakref.ref[object] | None
    close: Callable[[], object]

    def continues_with(self, sampler: object, ids: NDArray[np.int64]) -> bool:
        """Whether int64[1, length], sampled by this sampler, can be the next step."""
        if self.sampler is None or sampler is None:
            return self.sampler is sampler and self.batch.continues_with(ids)
        return self.sampler() is sampler


@dataclass(frozen=True)
class _Caller:
    """The call of `Llama.sample` that runs the processor.

    Attributes:
        frame: its frame.
        model: the Llama.
        sampler: `Llama.generate` makes one for each sequence: it tells them apart, where ids cannot, since the output
            of one may be the prompt of the next. None if there is no such call.
        length: how many ids precede the one to be sampled, where drafts follow them; None for all.
    """

    frame: FrameType
    model: Any
    sampler: object
    length: int | None


def _caller() -> _Caller | None:
    """Who calls the processor; None if that is not `Llama.sample`.

    Has InvalidArgument raised, as soon as ctypes lets it, where llama-cpp-python calls in a way that is not known.
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
        error = f"this llama-cpp-python calls processors from {unknown.f_code.co_name}() in a way that is not known; "
        _raise_on_return(unknown, InvalidArgument(f"{error}0.3.36 is known to work"))
    return None


def _raise_on_return(frame: FrameType, error: BaseException) -> None:
    """Raise when this frame returns.

    llama.cpp calls processors through ctypes, which drops what they raise: the completion would go on without them.
    A profile function may raise, is Python's own for this thread, and is unset when it does; so is a profiler's.
    """

    def profile(returning: FrameType, event: str, _: object) -> None:
        if returning is frame and event == "return":
            raise error

    sys.setprofile(profile)
