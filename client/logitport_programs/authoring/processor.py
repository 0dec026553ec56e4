"""The base class of processors that can be captured as programs. They run as shipped processors, too."""

from __future__ import annotations

from abc import abstractmethod
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from logitport.core.declared import check_declared
from logitport.errors import InvalidArgument
from logitport.processors import CustomLogitProcessor
from logitport_programs.authoring.tensor_history import TensorHistory
from logitport_programs.parameters import check_params, padded
from logitport_programs.types import Element
from logitport_programs.verifier import MAX_NAME_LENGTH, MAX_WINDOW

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from logitport_programs.program import Parameter


class TensorProcessor(CustomLogitProcessor):
    """A processor that reads logits, and computes with tensors alone. Override `process`.

    It has no state, and does not mix rows: `logitport_programs.capture` makes a program of it.

    Attributes:
        params: those that a request may set, by name: `Float`, `Int`, `Bool` or `TokenIds`, or one of them with a
            description, `Annotated[float, Float(ge=0), "…"]`.
        window: number of last ids that `history.ids` has.
    """

    params: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    window: ClassVar[int] = 0

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if type(cls.window) is not int or not 0 <= cls.window <= MAX_WINDOW:
            raise InvalidArgument(f"{cls.__qualname__}.window is {cls.window!r}; it must be in [0, {MAX_WINDOW}]")
        check_declared(cls)
        for name in cls.params:
            fits = isinstance(name, str) and name.isidentifier() and len(name) <= MAX_NAME_LENGTH
            if not fits or name.startswith("__"):
                raise InvalidArgument(
                    f"{cls.__qualname__}.params: {name!r:.100} must be an identifier of at most {MAX_NAME_LENGTH} "
                    "characters, and not begin with __"
                )

    @abstractmethod
    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:
        """Process the rows of one step.

        Args:
            logits: float[rows, vocab]. May be edited in place.
            params: has an attribute for each declared parameter: float32[rows], int64[rows] or bool[rows];
                of `TokenIds` int64[rows, max_ids].
            history: the token ids of each row's request.

        Returns:
            float[rows, vocab], the argument or another tensor. Another floating dtype is cast back.
        """

    @classmethod
    def parameters(cls) -> tuple[Parameter, ...]:
        """The declared parameters, as programs have them."""
        return tuple(declaration.parameter(name) for name, declaration in cls.params.items())

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        check_params(cls.parameters(), params)

    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        """Process rows as an SGLang processor. A row without `__req__` has an empty history.

        Raises:
            InvalidArgument: a row's parameters cannot be used.
        """
        rows, vocab_size = logits.shape
        dicts = [given or {} for given in custom_param_list or [{}] * rows]
        if len(dicts) != rows:
            raise InvalidArgument(f"{len(dicts)} dicts of parameters for {rows} rows: pass one a row")
        requests = [given.get("__req__") for given in dicts]
        history = TensorHistory(
            [request.origin_input_ids if request is not None else () for request in requests],
            [request.output_ids if request is not None else () for request in requests],
            self.window,
            vocab_size,
            logits.device,
        )
        return self.process(logits, self._tensors(dicts, logits.device), history)

    def _tensors(self, dicts: list[dict[str, Any]], device: torch.device) -> SimpleNamespace:
        import torch

        dtypes = {Element.FLOAT32: torch.float32, Element.INT64: torch.int64, Element.BOOL: torch.bool}
        parameters = self.parameters()
        values = [check_params(parameters, given) for given in dicts]
        columns: dict[str, torch.Tensor] = {}
        for index, one in enumerate(parameters):
            column: Any = [row[index] for row in values]
            numbers = padded(column, one.length) if one.length else column
            columns[one.name] = torch.tensor(numbers, dtype=dtypes[one.element], device=device)
        return SimpleNamespace(**columns)
