"""Runs a chain step by step in this process, and records the effect of each processor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from logitport.errors import InvalidArgument, InvalidLogits
from logitport.request import Request
from logitport.testing import distributions
from logitport.testing.models import as_model
from logitport.testing.recording import record_step
from logitport.testing.records import Simulation, StepRecord
from logitport.testing.runner import RowStep, load_backend

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from logitport.request import ProcessorLike
    from logitport.testing.models import ModelLike
    from logitport.testing.records import Ending
    from logitport.testing.runner import Batch, ProcessorInfo


def simulate(
    chain: Sequence[tuple[ProcessorLike, Mapping[str, Any]]],
    model_or_logits: ModelLike,
    prompt: Sequence[int] = (),
    steps: int | None = None,
    *,
    output: Sequence[int] | None = None,
    temperature: float = 0.0,
    seed: int = 0,
    top_k: int = 10,
    keep_logits: bool = False,
    tokenizer_id: str = "",
    eos_token_ids: Sequence[int] = (),
    sampling_params: Mapping[str, Any] | None = None,
    on_error: Literal["abort", "skip"] = "abort",
    options: Mapping[str, Any] | None = None,
) -> Simulation:
    """Generate ids with a chain, without a server and without an engine. The same arguments give the same result.

    The processors run in this process, through the server's own code: their results have the bits of a server's, for
    logits in float32. Programs run as on a server; an engine that runs them itself may differ in the last bits.

    Args:
        chain: (processor, parameters) pairs, as for `Request.processors`. A class runs as it is, without being pickled:
            breakpoints work in it.
        model_or_logits: a function from a list of ids to logits [vocab_size], such as `ToyModel`; a causal model of
            transformers; or recorded logits [steps, vocab_size].
        prompt: ids of the prompt.
        steps: number of ids to generate; by default that of the recorded logits.
        output: ids to follow in the first steps instead of choosing ids, for example recorded ones.
        temperature: 0 chooses the best id of each step; another one samples.
        seed: of the sampling.
        top_k: number of best ids that are recorded.
        keep_logits: whether to record whole rows, too.
        tokenizer_id: the engine's name for its tokenizer.
        eos_token_ids: ids that end the sequence.
        sampling_params: the engine's parameters of the request, for processors that read them. `temperature` is not
            among them unless you put it there: a server does not call some processors if all requests are greedy.
        on_error: "abort" raises the error of a processor; "skip" records it, and goes on.
        options: options of `logitport serve` by name, for example {"tokenizer": ["qwen3=/models/Qwen3-8B"]}.

    Raises:
        NotInstalled: the server is not installed.
        InvalidArgument, InvalidLogits: an argument cannot be used.
        LogitportError: a processor was refused, or has failed; the message names it.
    """
    model, count = as_model(model_or_logits, steps)
    if temperature < 0 or top_k < 0:
        raise InvalidArgument(f"temperature is {temperature} and top_k {top_k}; both must be 0 or more")
    request = Request(
        list(prompt), processors=list(chain), sampling_params=dict(sampling_params or {}), on_error=on_error
    )
    names: tuple[ProcessorInfo, ...] = ()
    choose = _Chooser(temperature, seed, output or ())
    history = [int(token_id) for token_id in prompt]
    records: list[StepRecord] = []
    ended: Ending = "length"
    batch: Batch | None = None
    vocab_size = 0
    with load_backend().open_runner("here", options) as runner:
        for index in range(count):
            raw = model(history)
            if batch is None:
                vocab_size = len(raw)
                batch = runner.open(vocab_size, tokenizer_id=tokenizer_id, eos_token_ids=tuple(eos_token_ids))
                names = batch.add(0, request)
            elif len(raw) != vocab_size:
                raise InvalidLogits(f"the model returned {len(raw)} logits, and {vocab_size} before; return one width")
            new_ids = history[-1:] if index else []
            (row,) = batch.step([RowStep(0, len(history) - len(new_ids), new_ids)], raw[None])
            if row.error is not None and on_error == "abort":
                raise row.error
            chosen = token_id, _ = choose(index, row.logits)
            records.append(record_step(index, chosen, raw, row, names, top_k, keep_logits=keep_logits))
            if token_id is None:
                ended = "nothing_allowed"
                break
            history.append(token_id)
            if token_id in eos_token_ids:
                ended = "eos"
                break
    return Simulation(
        tuple(history[: len(prompt)]),
        tuple(history[len(prompt) :]),
        tuple(records),
        ended,
        vocab_size,
        tuple((info.name, params) for info, (_, params) in zip(names, chain, strict=False)),
    )


class _Chooser:
    """Chooses the id of each step."""

    def __init__(self, temperature: float, seed: int, output: Sequence[int]) -> None:
        self._temperature = temperature
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._output = [int(token_id) for token_id in output]

    def __call__(self, index: int, logits: NDArray[np.float32]) -> tuple[int | None, float]:
        """The id, None if none is allowed, and its probability."""
        distribution = distributions.probabilities(logits)
        number = self._random.random()  # drawn in each step, so that a given id does not change the later ones
        if index < len(self._output):
            token_id = self._output[index]
            if not 0 <= token_id < len(logits):
                raise InvalidArgument(f"output[{index}] is {token_id}: ids must lie in [0, {len(logits)})")
        elif not distribution.any():
            return None, 0.0
        elif self._temperature == 0:
            token_id = int(logits.argmax())
        else:
            # In float64, because a logit divided by a small temperature may leave the range of float32.
            scaled = distributions.probabilities(logits.astype(np.float64) / self._temperature)
            token_id = int(np.searchsorted(scaled.cumsum(), number * scaled.sum(), side="right"))
        return token_id, float(distribution[token_id])
