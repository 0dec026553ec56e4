"""Sources of the logits of `simulate`: a function, a transformers model, or recorded logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

import numpy as np

from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

    # A function of a history, a causal model of transformers, or logits [steps, vocab_size].
    ModelLike = Union[Callable[[Sequence[int]], ArrayLike], ArrayLike, Any]
    # Returns the logits after a history, float32[vocab_size].
    Model = Callable[[Sequence[int]], NDArray[np.float32]]


def as_model(model_or_logits: ModelLike, steps: int | None) -> tuple[Model, int]:
    """Return a model, and the number of steps.

    Raises:
        InvalidArgument: it is no model, recorded logits are no matrix, or the number of steps is missing or too large.
    """
    if hasattr(model_or_logits, "config") and hasattr(model_or_logits, "forward"):
        return TransformersModel(model_or_logits), _checked(steps)
    if callable(model_or_logits):
        return _function(model_or_logits), _checked(steps)
    recorded = RecordedLogits(model_or_logits)
    if steps is not None and steps > len(recorded):
        raise InvalidArgument(f"{steps} steps, but logits of {len(recorded)}; record more, or leave out `steps`")
    return recorded, len(recorded) if steps is None else _checked(steps)


class RecordedLogits:
    """Returns the recorded rows, [steps, vocab_size], one after the other, whatever the history is.

    Raises:
        InvalidArgument: they are not such a matrix.
    """

    def __init__(self, logits: Any) -> None:
        self._logits = to_float32(logits)
        if self._logits.ndim != 2 or not self._logits.shape[1]:
            raise InvalidArgument(f"recorded logits have shape {list(self._logits.shape)}; pass [steps, vocab_size]")
        self._step = 0

    def __len__(self) -> int:
        return len(self._logits)

    def __call__(self, token_ids: Sequence[int]) -> NDArray[np.float32]:  # noqa: ARG002 - they were recorded
        row: NDArray[np.float32] = self._logits[self._step]
        self._step += 1
        return row


class TransformersModel:
    """Runs a `PreTrainedModel` with a head for the next token, with its cache of keys and values."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._cache: Any = None
        self._seen: list[int] = []

    def __call__(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        import torch

        ids = [int(token_id) for token_id in token_ids]
        if not ids:
            raise InvalidArgument("a transformers model needs a prompt of one id or more")
        known = len(self._seen)
        if self._cache is None or ids[:known] != self._seen or len(ids) == known:
            self._cache, known = None, 0
        with torch.no_grad():
            new_ids = torch.tensor([ids[known:]], device=self._model.device)
            output = self._model(input_ids=new_ids, past_key_values=self._cache, use_cache=True)
        self._cache, self._seen = getattr(output, "past_key_values", None), ids
        return to_float32(output.logits[0, -1])


def _function(function: Callable[[Sequence[int]], ArrayLike]) -> Model:
    def logits(token_ids: Sequence[int]) -> NDArray[np.float32]:
        row = to_float32(function(token_ids))
        if row.ndim != 1 or not row.size:
            raise InvalidArgument(f"the model returned logits of shape {list(row.shape)}; return [vocab_size]")
        return row

    return logits


def to_float32(values: Any) -> NDArray[np.float32]:
    """Copy numbers, of numpy, torch or lists, to a numpy array. Raises InvalidArgument if that is impossible."""
    if hasattr(values, "detach"):  # a torch tensor: numpy has no bfloat16
        values = values.detach().float().cpu().numpy()
    try:
        return np.array(values, np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"logits must be numbers [steps, vocab_size], or a model: {error}") from error


def _checked(steps: int | None) -> int:
    if steps is None or steps < 0:
        raise InvalidArgument(f"steps is {steps}; pass the number of ids to generate, 0 or more")
    return steps
