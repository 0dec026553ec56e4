"""How the processors of other contracts are called: with symbols while they are traced, and as they are to compare."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from pathlib import Path
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import torch

from logitport.errors import NotCapturable
from logitport_programs.capturing.operator_tracing import traceable
from logitport_programs.lifting.traced_parameters import ParameterRows, Reads, TensorsOfRows, builtins

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logitport_programs.authoring.declarations import Declaration
    from logitport_programs.authoring.tensor_history import TensorHistory

    Params = Sequence[Mapping[str, Any]]  # of each row
    Ids = Sequence[Sequence[int]]  # the history of each row

_TORCH = str(Path(torch.__file__).parent)


class Contract(ABC):
    """A processor, and how it is called.

    Attributes:
        one_row: whether it processes one row a call, float[vocab].
        params: those that a request may set.
        window: number of last ids that `process` reads.
        function: the author's function.
    """

    one_row: ClassVar[bool] = False

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.params: Mapping[str, Declaration] = {}
        self.window = 0
        self.function = inspect.unwrap(function_of(processor))

    @property
    def where(self) -> str:
        """The author's file and line."""
        return where_defined(self.function, getattr(self.function, "__qualname__", type(self.processor).__qualname__))

    @abstractmethod
    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:
        """Call the processor with symbols. Returns the logits."""

    @abstractmethod
    def run(self, logits: torch.Tensor, params: Params, ids: Ids) -> torch.Tensor:
        """Call the processor as its engine does. `ids` has the history of each row. Returns the logits."""

    def _symbolic(self, replaced: Mapping[str, object] | None = None) -> Callable[..., Any]:
        """The processor with lines that torch keeps, and other built-in functions."""
        function = function_of(self.processor)
        if not isinstance(function, FunctionType):
            return self.processor  # type: ignore[no-any-return]
        renamed = traceable(function, replaced or {})
        return renamed if function is self.processor else MethodType(renamed, self.processor)


class SglangRows(Contract):
    """An instance that is called with `(logits, custom_param_list)`."""

    def __init__(self, processor: Any) -> None:
        super().__init__(processor)
        self._reads = Reads()
        logits = torch.randn(3, 4099, generator=torch.Generator().manual_seed(0))
        with TensorsOfRows(self._reads, 3):
            self._call(logits)
        self.params = self._reads.declarations()

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:
        rows = len(ParameterRows(self._reads, logits))
        with TensorsOfRows(self._reads, rows, vars(params)):
            return self._call(logits)  # type: ignore[no-any-return]

    def run(self, logits: torch.Tensor, params: Params, ids: Ids) -> torch.Tensor:
        return self.processor(logits, [dict(one) for one in params])  # type: ignore[no-any-return]

    def _call(self, logits: torch.Tensor) -> Any:
        return self._symbolic(builtins())(logits, ParameterRows(self._reads, logits))


class TransformersScores(Contract):
    """An instance, a list of instances or a function, called with `(input_ids, scores)` in float32."""

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:
        return self._symbolic()(_NoIds("input_ids"), logits.float())  # type: ignore[no-any-return]

    def run(self, logits: torch.Tensor, params: Params, ids: Ids) -> torch.Tensor:
        rows = [self.processor(torch.tensor([one]), row[None].float()) for one, row in zip(ids, logits, strict=True)]
        return torch.cat(rows)


class OneRow(Contract):
    """A function of one row: for vLLM, `(output_ids, logits)` or `(prompt_ids, output_ids, logits)`, in float32."""

    one_row = True

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:
        names = ("output_ids", "prompt_ids")[: self._num_ids()]
        return self._symbolic()(*map(_NoIds, reversed(names)), logits.float())  # type: ignore[no-any-return]

    def run(self, logits: torch.Tensor, params: Params, ids: Ids) -> torch.Tensor:
        prompts: list[list[int]] = [[]] * (self._num_ids() - 1)
        rows = [self.processor(*prompts, list(one), row.float()) for one, row in zip(ids, logits, strict=True)]
        return torch.stack(rows)

    def _num_ids(self) -> int:
        return len(inspect.signature(self.processor).parameters) - 1


class RowInPlace(Contract):
    """An instance for NVIDIA Dynamo: `(input_ids, logits)`. It edits the row in place; its result is ignored."""

    one_row = True

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:
        self._symbolic()(_NoIds("input_ids"), logits)
        return logits

    def run(self, logits: torch.Tensor, params: Params, ids: Ids) -> torch.Tensor:
        for one, row in zip(ids, logits, strict=True):
            self.processor(list(one), row)
        return logits


class _NoIds:
    """Replaces a history, which is not traced: its length and its ids are Python values, or sizes of tensors."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise NotCapturable(
            f"the code reads {vars(self)['_name']}, of which the length differs at each step: derive from "
            "TensorProcessor, and read history.ids, history.token_mask() or history.token_counts()"
        )

    __getattr__ = __getitem__ = __iter__ = __len__ = __bool__ = __contains__ = __eq__ = __reversed__ = _refuse
    __add__ = __radd__ = __hash__ = __str__ = __format__ = _refuse
    __class__ = property(_refuse)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        cls._refuse(next((one for one in args if type(one) is cls), cls("the ids")))


def where_defined(function: Any, name: str) -> str:
    """The file and line where a function is defined, and a name; only the name of a function that is not Python's."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}: {name}" if code else name


def function_of(processor: Any) -> Any:
    """The function that is called, without decorators such as torch.no_grad: a program has no gradients."""
    function = processor if inspect.isroutine(processor) else type(processor).__call__
    while hasattr(function, "__wrapped__") and function.__code__.co_filename.startswith(_TORCH):
        function = function.__wrapped__
    return function
