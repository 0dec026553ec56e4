"""The sampling parameters of engines, as the processors that follow a request's chain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

from logitport.errors import InvalidArgument
from logitport_programs.authoring.declarations import Float, Int
from logitport_programs.authoring.processor import TensorProcessor

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from logitport.shipping.request import ProcessorLike
    from logitport_programs.authoring.tensor_history import TensorHistory

Engine = Literal["vllm", "sglang", "transformers"]

# Below this temperature, vLLM samples the id with the highest logit.
GREEDY_BELOW = 1e-5
# The order in which the engines apply them: vLLM 0.33, and transformers 5.23.
_ORDERS = {"vllm": ("min_p", "top_k", "top_p"), "transformers": ("top_k", "top_p", "min_p")}
# The values with which an engine keeps all ids.
_KEEPS_ALL: Mapping[str, tuple[float, ...]] = {"top_k": (0, -1), "top_p": (1,), "min_p": (0,)}


class SglangTruncation(TensorProcessor):
    """Top-k, top-p and min-p as SGLang 0.5.23 samples with `--sampling-backend pytorch`.

    Each rule looks at the probabilities of all ids. Of ids with equal probabilities, the lower ids come first; SGLang
    takes any of them, see `EngineSampling.any_of_equal`.

    Parameters:
        top_k: the number of ids to keep; 0 and -1 keep all.
        top_p: an id is denied if the ids before it have a higher probability together.
        min_p: ids with a probability below min_p times the highest one are denied.
    """

    params: ClassVar = {"top_k": Int(ge=-1), "top_p": Float(gt=0, le=1), "min_p": Float(ge=0, le=1)}

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:  # noqa: ARG002
        """Sort the probabilities, and deny by rank, by the sum before, and by the highest one."""
        import torch

        probabilities, order = torch.sort(logits.softmax(-1, dtype=torch.float32), descending=True, stable=True)
        top_k = params.top_k[:, None]
        removed = probabilities.cumsum(-1) - probabilities > params.top_p[:, None]
        removed |= (torch.arange(logits.shape[-1])[None] >= top_k) & (top_k > 0)
        removed |= probabilities < probabilities[:, :1] * params.min_p[:, None]
        return logits.masked_fill(removed.scatter(-1, order, removed), -torch.inf)


class EngineSampling(NamedTuple):
    """What an engine does with logits after the chain.

    Attributes:
        processors: the processors that replay it, without a temperature on its own.
        temperature: a divisor of the logits after all processors.
        any_of_equal: whether the engine may have kept other ids than the last processor, with the same logits.
    """

    processors: tuple[tuple[ProcessorLike, Mapping[str, Any]], ...]
    temperature: float
    any_of_equal: bool = False


def engine_sampling(engine: Engine, sampling: Mapping[str, float]) -> EngineSampling:
    """Read the parameters of an engine.

    Raises:
        InvalidArgument: an unknown engine, an unknown parameter, or a value that is no number.
    """
    if engine not in get_args(Engine):
        raise InvalidArgument(f"engine is {engine!r}; write one of {', '.join(get_args(Engine))}")
    for name, value in sampling.items():
        if name not in ("temperature", *_KEEPS_ALL):
            raise InvalidArgument(
                f"sampling has {name!r}; it may have temperature, top_k, top_p and min_p. Put other processors into "
                "the chain"
            )
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InvalidArgument(f"sampling[{name!r}] is {value!r}; pass a number")
    temperature = sampling.get("temperature", 1.0)
    kept = {name: value for name, value in sampling.items() if value not in _KEEPS_ALL.get(name, (1.0,))}
    if engine == "sglang" and temperature == 0:
        kept = {"top_k": 1}
    truncations = [name for name in kept if name != "temperature"]
    if not truncations and temperature >= GREEDY_BELOW:
        return EngineSampling((), temperature)
    processors: list[tuple[ProcessorLike, Mapping[str, Any]]] = []
    if "temperature" in kept:
        processors.append(("temperature", {"temperature": temperature}))
    if engine != "sglang":
        processors += [(name, {name: kept[name]}) for name in _ORDERS[engine] if name in kept]
    elif truncations:
        params = {"top_k": kept.get("top_k", -1), "top_p": kept.get("top_p", 1.0), "min_p": kept.get("min_p", 0.0)}
        processors.append((SglangTruncation, params))
    return EngineSampling(tuple(processors), 1.0, any_of_equal=engine == "sglang" and bool(truncations))
