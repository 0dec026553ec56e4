"""The records of one step: plain dataclasses with numpy arrays."""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from logitport.core.row_edits import Edit


@dataclass(frozen=True, eq=False)
class Summary:
    """A row of logits, summarized.

    Attributes:
        top_ids: the ids with the highest logits, best first, int32[top_k or less]; none with -inf.
        top_logits: their logits, float32[len(top_ids)].
        top_probabilities: their probabilities, float64[len(top_ids)].
        entropy: of the whole row, in nats.
        allowed: number of ids with a logit above -inf.
    """

    top_ids: NDArray[np.int32]
    top_logits: NDArray[np.float32]
    top_probabilities: NDArray[np.float64]
    entropy: float
    allowed: int


@dataclass(frozen=True, eq=False)
class ProcessorRecord:
    """The effect of one processor in one step, by the logits before and after it.

    Attributes:
        processor: its name.
        place: its place in the chain.
        called: whether it was called. It is not after a failure, and not if the request is greedy and it never changes
            the best id.
        reads_logits: whether it takes logits.
        denied: ids with a logit that it has set to -inf, int32[n]; empty if one id is `forced`.
        restored: ids that had -inf before and have another logit now, int32[n]; empty if one id is `forced`.
        biased: ids with another finite logit now, int32[n]; empty if one id is `forced`.
        bias: the value added to each of `biased`, float32[n].
        forced: the only id that it has left; None if it left more ids, or if it had only one before.
        moved: probability mass that moved to other ids, 0 to 1 (total variation distance).
        before: the row before it.
        after: the row after it.
        edits: its edits in their order, (kind, ids, values); () if it reads logits.
        error: why it was left out of this step, with its traceback; "" if it was not. Only with on_error="isolate".
        events: the name and the details of each event that it has reported.
    """

    processor: str
    place: int
    called: bool
    reads_logits: bool
    denied: NDArray[np.int32]
    restored: NDArray[np.int32]
    biased: NDArray[np.int32]
    bias: NDArray[np.float32]
    forced: int | None
    moved: float
    before: Summary
    after: Summary
    edits: tuple[Edit, ...] = ()
    error: str = ""
    events: tuple[tuple[str, Mapping[str, int | str]], ...] = ()

    @property
    def changed(self) -> bool:
        """Whether any logit is another one."""
        return self.forced is not None or bool(self.denied.size or self.restored.size or self.biased.size)

    def to_json(self, max_ids: int | None = 100) -> dict[str, Any]:
        """Convert to JSON data. Lists of ids end after `max_ids`; their lengths are in `counts`. None keeps all ids."""
        lists = ids_to_json(self, ("denied", "restored", "biased", "bias"), max_ids)
        return {
            **{name: _to_json(value) for name, value in vars(self).items() if name not in lists},
            **lists,
            "edits": [
                {
                    "kind": kind.name,
                    "ids": ids[:max_ids].tolist(),
                    "values": None if values is None else values[:max_ids].tolist(),
                    "count": len(ids),
                }
                for kind, ids, values in self.edits
            ],
            "events": [{"name": name, "values": dict(values)} for name, values in self.events],
        }


@dataclass(frozen=True, eq=False)
class Candidates:
    """The probabilities of some ids through a chain.

    Attributes:
        ids: the best ids of the model and after the chain, and the chosen id, int32[n]; those with the highest
            probability in either row come first.
        probabilities: float64[n, processors + 2]: of the model, after each processor, and after the chain; 0 if denied.
    """

    ids: NDArray[np.int32]
    probabilities: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StepRecord:
    """One step.

    Attributes:
        index: number of the step, from 0.
        token_id: the id that was chosen; None if none could be.
        probability: its probability after the chain; 0.0 if no id was chosen.
        raw: the row of the model.
        final: the row after the chain.
        processors: the effect of each processor, in the order of the chain.
        moved: probability mass that the chain moved, 0 to 1 (total variation distance of `raw` and `final`).
        candidates: the probabilities of the best ids, after each processor.
        given: whether the id was given, not chosen.
        error: why the request's processors had no effect in this step; "" if they had. Only with on_error="skip".
        raw_logits: float32[vocab_size]; None without `keep_logits`.
        final_logits: float32[vocab_size]; None without `keep_logits`.
    """

    index: int
    token_id: int | None
    probability: float
    raw: Summary
    final: Summary
    processors: tuple[ProcessorRecord, ...]
    moved: float
    candidates: Candidates
    given: bool = False
    error: str = ""
    raw_logits: NDArray[np.float32] | None = None
    final_logits: NDArray[np.float32] | None = None

    def to_json(self, max_ids: int | None = 100) -> dict[str, Any]:
        """Convert to JSON data, without whole rows; `max_ids` as in `ProcessorRecord.to_json`."""
        others = "processors", "raw_logits", "final_logits"
        return {
            **{name: _to_json(value) for name, value in vars(self).items() if name not in others},
            "processors": [record.to_json(max_ids) for record in self.processors],
        }


def ids_to_json(record: object, names: Sequence[str], max_ids: int | None) -> dict[str, Any]:
    """Convert arrays of a record to lists that end after `max_ids`, with their lengths in `counts`."""
    arrays = {name: getattr(record, name) for name in names}
    counts = {name: len(values) for name, values in arrays.items() if name != "bias"}
    return {**{name: values[:max_ids].tolist() for name, values in arrays.items()}, "counts": counts}


def _to_json(record: Any) -> Any:
    """Convert a record, or a value of one, to JSON data, with all ids."""
    if is_dataclass(record):
        return {name: _to_json(value) for name, value in vars(record).items()}
    return record.tolist() if isinstance(record, np.ndarray) else record


# Why a simulation ended: all steps are done; an id that ends a sequence was chosen; the chain allowed no id.
Ending = Literal["length", "eos", "nothing_allowed"]
