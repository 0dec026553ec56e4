"""Runs a chain in this process, one step at a time, and records the effect of each processor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from logitport.core.history import listed_ids
from logitport.errors import InvalidArgument
from logitport.shipping.request import Request
from logitport_testing.runner import load_backend
from logitport_testing.simulating.result import Simulation
from logitport_testing.simulating.simulated_chain import IsolatedChain, WholeChain
from logitport_testing.step_records import distributions
from logitport_testing.step_records.stages import record_step
from logitport_testing.view.panes import ids_shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from logitport.core.history import TokenIds
    from logitport.shipping.request import ProcessorLike
    from logitport_testing.models.logits_sources import Model
    from logitport_testing.step_records.step_record import Ending, StepRecord

    OnError = Literal["abort", "skip", "isolate"]


class Stepper:
    """A simulation that goes on step by step. Close it, or use it as a context manager.

    Args:
        chain, prompt, temperature, seed, top_k, keep_logits, tokenizer_id, eos_token_ids, sampling_params, on_error,
            options: as for `simulate`.
        model: returns the logits after a history.
        tokenizers: tokenizers by name, also the one of `tokenizer_id`. They are read when a processor uses them.
        token_text: returns the text of an id; None if there are no texts.

    Attributes:
        steps: the steps so far.
        ended: why it can go no further; None if it can.

    Raises:
        NotInstalled: the server is not installed.
        InvalidArgument: an argument cannot be used.
    """

    def __init__(
        self,
        chain: Sequence[tuple[ProcessorLike, Mapping[str, Any]]],
        model: Model,
        prompt: TokenIds = (),
        *,
        temperature: float = 0.0,
        seed: int = 0,
        top_k: int = 10,
        keep_logits: bool = False,
        tokenizer_id: str = "",
        eos_token_ids: TokenIds = (),
        sampling_params: Mapping[str, Any] | None = None,
        on_error: OnError = "abort",
        options: Mapping[str, Any] | None = None,
        token_text: Callable[[int], str] | None = None,
        tokenizers: Mapping[str, Path] | None = None,
    ) -> None:
        if temperature < 0 or top_k < 0:
            raise InvalidArgument(f"temperature is {temperature} and top_k {top_k}; both must be 0 or more")
        self._model = model
        self._on_error = on_error
        self._top_k = top_k
        self._keep_logits = keep_logits
        self._tokenizer_id = tokenizer_id
        self._eos_token_ids = tuple(listed_ids(eos_token_ids, "eos_token_ids"))
        self._token_text = token_text
        self._texts: dict[int, str] = {}
        self._request = Request(
            [int(token_id) for token_id in listed_ids(prompt, "prompt")],
            processors=list(chain),
            sampling_params=dict(sampling_params or {}),
            on_error="abort" if on_error == "isolate" else on_error,
        )
        self._temperature = temperature
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._history = [*self._request.prompt_token_ids]
        self._add_texts(self._history)
        self._chain: WholeChain | IsolatedChain | None = None
        self._vocab_size = 0
        self.steps: list[StepRecord] = []
        self.ended: Ending | None = None
        self._runner = load_backend().open_runner("here", options, tokenizers)

    def step(self, token_id: int | None = None) -> StepRecord:
        """Run one step, which chooses this id; None chooses by the logits.

        Raises:
            InvalidArgument: the simulation has ended, or the id or the width of the logits does not fit the vocabulary.
            LogitportError: a processor was refused, or has failed; not with on_error="isolate".
        """
        if self.ended is not None:
            raise InvalidArgument(f"the simulation has ended ({self.ended}); it has no further step")
        index = len(self.steps)
        raw = self._model(self._history)
        chain = self._chain_for(raw)
        result = chain.step(self._history, raw)
        row = result[0]
        if row.error is not None and self._on_error == "abort":
            raise row.error
        chosen = self._choose(index, row.logits, token_id)
        record = record_step(
            index,
            chosen,
            raw,
            result,
            chain.infos,
            self._top_k,
            given=token_id is not None,
            keep_logits=self._keep_logits,
        )
        self.steps.append(record)
        self._add_texts(ids_shown(record))
        if record.token_id is None:
            self.ended = "nothing_allowed"
        else:
            self._history.append(record.token_id)
            if record.token_id in self._eos_token_ids:
                self.ended = "eos"
        return record

    def result(self) -> Simulation:
        """The steps so far."""
        length = len(self._request.prompt_token_ids)
        prompt, output = tuple(self._history[:length]), tuple(self._history[length:])
        infos = self._chain.infos if self._chain is not None else ()
        return Simulation(
            prompt,
            output,
            tuple(self.steps),
            self.ended or "length",
            self._vocab_size,
            tuple((info.name, params) for info, (_, params) in zip(infos, self._request.processors, strict=False)),
            dict(self._texts),
        )

    def close(self) -> None:
        """Release the processors."""
        self._runner.close()

    def __enter__(self) -> Stepper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add_texts(self, token_ids: Iterable[int]) -> None:
        if self._token_text is not None:
            new = {*token_ids} - self._texts.keys()
            self._texts.update((token_id, self._token_text(token_id)) for token_id in new)

    def _chain_for(self, raw: NDArray[np.float32]) -> WholeChain | IsolatedChain:
        """The chain, which is admitted with the first logits, because their width is the size of the vocabulary."""
        if self._chain is None:
            self._vocab_size = len(raw)
            batch = self._runner.open(
                self._vocab_size, tokenizer_id=self._tokenizer_id, eos_token_ids=self._eos_token_ids
            )
            make = IsolatedChain if self._on_error == "isolate" else WholeChain
            self._chain = make(batch, self._request)
        elif len(raw) != self._vocab_size:
            raise InvalidArgument(
                f"the model returned {len(raw)} logits, and {self._vocab_size} before; return one width"
            )
        return self._chain

    def _choose(self, index: int, logits: NDArray[np.float32], given: int | None) -> tuple[int | None, float]:
        """The id, None if none is allowed, and its probability."""
        distribution = distributions.probabilities(logits)
        number = self._random.random()  # drawn in each step, so that a given id does not change the later ones
        if given is not None:
            if not 0 <= given < len(logits):
                raise InvalidArgument(f"output[{index}] is {given}: ids must lie in [0, {len(logits)})")
            token_id = int(given)
        elif not distribution.any():
            return None, 0.0
        elif self._temperature == 0:
            token_id = int(logits.argmax())
        else:
            # In float64, because a logit divided by a small temperature may leave the range of float32.
            scaled = distributions.probabilities(logits.astype(np.float64) / self._temperature)
            token_id = int(np.searchsorted(scaled.cumsum(), number * scaled.sum(), side="right"))
        return token_id, float(distribution[token_id])
