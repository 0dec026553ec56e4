"""logitport as a logits processor of MLX-LM."""

from __future__ import annotations

import sys
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.errors import InvalidArgument, LogitportError
from logitport.integrations.common.chains import require_chain
from logitport.integrations.common.history_batch import HistoryBatch, SequenceHook
from logitport.integrations.common.statuses import all_denied

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import FrameType

    from numpy.typing import NDArray

    from logitport.client.client import Client
    from logitport.integrations.common.chains import Chain


class RemoteLogitsProcessor(SequenceHook):
    """Processes logits in the service: `mlx_lm.generate(..., logits_processors=[this])`.

    Works in `stream_generate`, `generate_step`, `speculative_generate_step` and `batch_generate`, too. Sends only new
    ids, and logits only if a processor reads them. One object serves any number of generations, also at the same time;
    each has its own history. In a loop of your own that calls this object, call `close` between two sequences. Not
    thread-safe.

    Args:
        processors: (processor, parameters) pairs, in execution order.
        tenant: the program's customer; create one object for each.
        tokenizer_id: the model's tokenizer, for grammars and built-ins that read text: the path of its files, or a
            name of the Hugging Face hub; for a server a name that it knows.
        eos_token_ids: the ids that end a sequence; if empty, those of the tokenizer that the caller passed to MLX-LM.
        client: the connection; not closed by this object. By default one to the servers at LOGITPORT_TARGET, or without
            that variable one with sessions in this process (`Client.embedded`).

    Attributes:
        steps: steps served, over all generations.
        rows_applied: steps per processor, as in `StepResult`, over all generations.
        seconds: time spent in this object, opening sessions included.
        reports: a list with the `Report` of the generation that began last, also after its end; see `logitport.report`.

    Raises:
        InvalidArgument: `processors` is no list of such pairs.
    """

    def __init__(
        self,
        processors: Chain,
        *,
        client: Client | None = None,
        tokenizer_id: str = "",
        tenant: str = "",
        eos_token_ids: Collection[int] = (),
    ) -> None:
        self._chain = require_chain(processors)
        self._tenant = tenant
        self._eos_token_ids = eos_token_ids
        self._generations: weakref.WeakKeyDictionary[object, _Generation] = weakref.WeakKeyDictionary()
        # The error to raise at the next call; None once it was raised.
        self._failed: weakref.WeakKeyDictionary[object, LogitportError | None] = weakref.WeakKeyDictionary()
        super().__init__(client, self._generations, tokenizer_id)

    def __call__(self, tokens: Any, logits: Any) -> Any:
        """Process one step.

        MLX-LM calls processors one step ahead of the ids that it yields, and drops the last step. So a failure is
        raised at the next call of its generation: the ids before it are yielded, and no unprocessed id is.

        Args:
            tokens: mx.array, integers[length]; the prompt and the sampled ids.
            logits: mx.array, float32, float16 or bfloat16[1, vocab_size]; not modified.

        Returns:
            mx.array of the same dtype and shape. Of the logits of a draft model, `logits` itself.

        Raises:
            InvalidArgument: `logits` has another dtype or shape, this MLX-LM calls processors in an unknown way, or the
                generation has failed before.
            RequestsFailed: a processor failed; the message holds the remote traceback.
            InvalidArgument: the processors deny every id.
            LogitportError: the request was refused, or the server is unreachable.
        """
        began = time.perf_counter()
        call = _find_call()
        if call is not None and call.drafts:
            return logits
        key = self if call is None else call.key
        if key in self._failed:
            error = self._failed[key] or InvalidArgument("this generation has failed before; start another one")
            self._failed[key] = None
            raise error
        try:
            processed = self._step(key, call, tokens, logits)
        except BaseException as error:
            self._record_failure(key, error)
            if call is None or call.prompt is not None or not isinstance(error, LogitportError):
                raise
            self._failed[key] = _without_frames(error)
            return logits
        self._record_success(began)
        return processed

    def _step(self, key: object, call: _GenerationFrame | None, tokens: Any, logits: Any) -> Any:
        import mlx.core as mx

        if logits.dtype not in (mx.float32, mx.float16, mx.bfloat16) or logits.ndim != 2 or len(logits) != 1:
            raise InvalidArgument(f"logits are {logits.dtype}{list(logits.shape)}; expected floats [1, vocab_size]")
        ids = np.asarray(tokens).astype(np.int64)[None]
        generation = self._generation(key, call, ids, logits.shape[1])
        if generation.has_ended(ids):
            return logits
        ids = np.concatenate([generation.unseen, ids], axis=1)
        pending = generation.batch.session.step(generation.batch.new_ids(ids, [0]))
        # numpy has no bfloat16. `mx.array` always copies, and the view of numpy shares the copy's memory.
        processed = mx.array(logits, dtype=mx.float32)
        self._apply(pending, np.asarray(processed), lambda _: all_denied("MLX-LM"))
        return processed.astype(logits.dtype)

    def _generation(
        self, key: object, call: _GenerationFrame | None, ids: NDArray[np.int64], vocab_size: int
    ) -> _Generation:
        """Return the generation that this step belongs to; start one at its first step."""
        generation = self._generations.get(key)
        if generation is None or (call is None and not generation.batch.continues_with(ids)):
            self._end(key)
            eos_token_ids = sorted(self._eos_token_ids or (() if call is None else call.eos_token_ids()))
            unseen = ids[:, :0]
            if call is not None and call.prompt is not None and ids.shape[1] == 1:
                unseen = np.asarray(call.prompt).astype(np.int64)[None, :-1]
            prompt = np.concatenate([unseen, ids], axis=1)
            stops_at = frozenset() if call is None or call.prompt is None else frozenset(eos_token_ids)
            batch = self._open(prompt, vocab_size=vocab_size, engine="mlx-lm", eos_token_ids=eos_token_ids)
            close = weakref.finalize(key, batch.close)
            generation = self._generations[key] = _Generation(batch, unseen, stops_at, close)
            batch.admit(np.ones(prompt.shape, bool), [self._chain], [self._tenant])
        return generation


@dataclass(frozen=True)
class _Generation:
    """One sequence that is being generated.

    Attributes:
        batch: has one row.
        unseen: int64[1, n], the ids of the prompt that MLX-LM does not pass to processors.
        stops_at: with a draft model, the ids that end the sequence: rows after them are dropped.
        close: closes the session; also called when MLX-LM's generation is garbage-collected.
    """

    batch: HistoryBatch
    unseen: NDArray[np.int64]
    stops_at: frozenset[int]
    close: Callable[[], object]

    def has_ended(self, ids: NDArray[np.int64]) -> bool:
        return bool(self.stops_at) and ids.shape[1] > 1 and int(ids[0, -1]) in self.stops_at


@dataclass(frozen=True)
class _GenerationFrame:
    """The code of MLX-LM that calls the processor.

    Attributes:
        frame: its frame.
        key: an object that MLX-LM creates for each generation. Ids cannot identify one, since the output of one may be
            the prompt of the next.
        prompt: with a draft model, the ids of the prompt, as mx.array; MLX-LM 0.32.2 passes only the last one.
        drafts: the logits are those of the draft model. They stay as they are: its vocabulary may have another width.
    """

    frame: FrameType
    key: object
    prompt: Any = None
    drafts: bool = False

    def eos_token_ids(self) -> Collection[int]:
        """Return the ids at which MLX-LM stops; none in a loop of the caller's around `generate_step`."""
        frame: FrameType | None = self.frame
        while frame is not None:
            if frame.f_code.co_name in ("stream_generate", "batch_generate") and _is_of_mlx_lm(frame):
                return frame.f_locals["tokenizer"].eos_token_ids  # type: ignore[no-any-return]
            frame = frame.f_back
        return ()


def _find_call() -> _GenerationFrame | None:
    """Find the generation that calls; None without MLX-LM. Raises InvalidArgument if this MLX-LM is unknown."""
    frame: FrameType | None = sys._getframe(2)
    names = []
    while frame is not None:
        if _is_of_mlx_lm(frame):
            name, values = frame.f_code.co_name, frame.f_locals
            if name == "generate_step" and "_step" in values:
                return _GenerationFrame(frame, values["_step"])
            if name == "speculative_generate_step" and {"_step", "prompt"} <= values.keys():
                return _GenerationFrame(frame, values["_step"], values["prompt"], "_draft_generate" in names)
            if name == "_step" and {"self", "e"} <= values.keys():
                return _GenerationFrame(frame, values["self"]._token_context[values["e"]])
            names.append(name)
        frame = frame.f_back
    if names:
        raise InvalidArgument(
            f"this mlx-lm calls processors from {names[0]}() in an unknown way; install 0.32.2, which is known to work"
        )
    return None


def _is_of_mlx_lm(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "mlx_lm.generate"


def _without_frames(error: LogitportError) -> LogitportError:
    """Return the error after removing its tracebacks: their frames would keep a generation's key, and so its cache."""
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = None
        one = one.__cause__ or one.__context__
    return error
