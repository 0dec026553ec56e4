"""Runs a chain step by step in this process, and records the effect of each processor."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logitport.core.history import listed_ids
from logitport.errors import ProcessorWarning
from logitport_lint import DISCARD, find
from logitport_testing.models.logits_sources import as_model
from logitport_testing.runner import with_tokenizer
from logitport_testing.simulating.stepper import Stepper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from os import PathLike

    from logitport.core.history import TokenIds
    from logitport.shipping.request import ProcessorLike
    from logitport_testing.models.logits_sources import ModelLike
    from logitport_testing.simulating.result import Simulation
    from logitport_testing.simulating.stepper import OnError


def simulate(
    chain: Sequence[tuple[ProcessorLike, Mapping[str, Any]]],
    model_or_logits: ModelLike,
    prompt: TokenIds = (),
    steps: int | None = None,
    *,
    output: Sequence[int | None] | TokenIds | None = None,
    temperature: float = 0.0,
    seed: int = 0,
    top_k: int = 10,
    keep_logits: bool = False,
    tokenizer: str | PathLike[str] | None = None,
    tokenizer_id: str = "",
    eos_token_ids: TokenIds = (),
    sampling_params: Mapping[str, Any] | None = None,
    on_error: OnError = "abort",
    options: Mapping[str, Any] | None = None,
    token_text: Callable[[int], str] | None = None,
) -> Simulation:
    """Generate ids with a chain, without a server and without an engine. The same arguments give the same result.

    The processors run in this process, through the server's own code: their results have the bits of a server's, for
    logits in float32. Programs run as on a server; an engine that runs them itself may differ in the last bits.

    Code that takes the rows of several requests at once, as for SGLang and vLLM, gets two rows in each step, those of
    two equal requests, so that errors of broadcasting show. A `ProcessorWarning` names each line without an effect.

    Args:
        chain: (processor, parameters) pairs, as for `Request.processors`. A class runs as it is, without being pickled:
            breakpoints work in it.
        model_or_logits: a function from a list of ids to logits [vocab_size], such as `ToyModel`; a causal model of
            transformers; or recorded logits [steps, vocab_size].
        prompt: ids of the prompt; like all ids a sequence, or a numpy array or torch tensor of integers, [n].
        steps: number of ids to generate; by default, as many as the recorded logits.
        output: ids to follow in the first steps instead of choosing ids, for example recorded ones. Where it has None,
            the id is chosen.
        temperature: 0 chooses the best id of each step; another one samples.
        seed: of the sampling.
        top_k: number of best ids that are recorded.
        keep_logits: whether to record whole rows, too.
        tokenizer: a tokenizer.json, or a folder with one, such as `save_pretrained` of transformers writes: the only
            tokenizer of the operator. It is read at each call, which takes two seconds for 150,000 ids. By default that
            of a `StoryModel`, or of the folder that a model of transformers was loaded from; it is read when a
            processor uses it.
        tokenizer_id: the engine's name for its tokenizer; by default the tokenizer's path.
        eos_token_ids: ids that end the sequence; for a `StoryModel` by default its own.
        sampling_params: the engine's parameters of the request, for processors that read them. `temperature` is not
            among them unless you put it there: a server does not call some processors if all requests are greedy.
        on_error: "abort" raises the error of a processor; "skip" records it, and goes on, as a server
            does: the request has no processors in that step. "isolate" leaves out only the processor that failed.
        options: options of `logitport serve` by name, for example {"tokenizer": ["qwen3=/models/Qwen3-8B"]}.
        token_text: returns the text of an id, for the view in notebooks; by default the method `token_text` of the
            model, if it has one.

    Raises:
        NotInstalled: the server is not installed.
        InvalidArgument: an argument cannot be used.
        LogitportError: a processor was refused, or has failed; the message names it.
    """
    for pair in chain:
        # A wrong pair is refused at the first step.
        for line in find(pair[0], {DISCARD}) if isinstance(pair, tuple | list) and pair else ():
            warnings.warn(str(line), ProcessorWarning, stacklevel=2)
    model, count = as_model(model_or_logits, steps)
    further: dict[str, Path] = {}
    if tokenizer is not None:
        tokenizer_id, options = with_tokenizer(tokenizer, tokenizer_id, options)
    elif "tokenizer" not in (options or {}) and (path := _tokenizer_path(model_or_logits)) is not None:
        tokenizer_id = tokenizer_id or str(path)
        further = {tokenizer_id: path}
    given = [] if output is None else list(listed_ids(output, "output"))  # type: ignore[arg-type] # None in it
    with Stepper(
        chain,
        model,
        prompt,
        temperature=temperature,
        seed=seed,
        top_k=top_k,
        keep_logits=keep_logits,
        tokenizer_id=tokenizer_id,
        eos_token_ids=eos_token_ids if len(eos_token_ids) else getattr(model_or_logits, "eos_token_ids", ()),
        sampling_params=sampling_params,
        on_error=on_error,
        options=options,
        token_text=token_text or getattr(model_or_logits, "token_text", None),
        tokenizers=further,
    ) as stepper:
        for index in range(count):
            stepper.step(given[index] if index < len(given) else None)
            if stepper.ended is not None:
                break
        return stepper.result()


def _tokenizer_path(model: ModelLike) -> Path | None:
    """The folder of a model's tokenizer; None if it is not known."""
    path = getattr(model, "tokenizer_path", None)
    if path is None and hasattr(model, "config"):  # of transformers
        folder = getattr(model, "name_or_path", None)
        path = Path(folder) if isinstance(folder, str) and folder else None
    return path if path is not None and (path / "tokenizer.json").is_file() else None
