"""Runs a processor's `process` once, on tensors without values, and records torch's operators."""

from __future__ import annotations

import inspect
import logging
import random
import time
import traceback
import warnings
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FunctionType, MappingProxyType, MethodType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch.export import Dim, ExportedProgram, export
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from logitport.errors import InvalidArgument, LogitportError, NotCapturable
from logitport_lint import CHANGES, DRAW, find
from logitport_programs.authoring.tensor_history import TensorHistory
from logitport_programs.capturing.processor_state import State
from logitport_programs.rules import MAX_TOP_K
from logitport_programs.types import Element

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from logitport_programs.authoring.processor import TensorProcessor
    from logitport_programs.program import Parameter

# The inputs of `process`, in this order; then the parameters.
INPUTS = (
    ("logits", False),
    ("history", False),
    ("history_length", False),
    ("token_mask", False),
    ("token_mask", True),
    ("token_counts", False),
    ("token_counts", True),
)
_OURS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<")
_DTYPES = {Element.FLOAT32: torch.float32, Element.INT64: torch.int64, Element.BOOL: torch.bool}


class Conditions(NamedTuple):
    """Conditions that a program must not depend on.

    Attributes:
        dtype: dtype of the logits.
        rows, vocab_size: size of the logits.
        seed: seed of the random generators.
        seconds: added to the clock.
    """

    dtype: torch.dtype
    rows: int
    vocab_size: int
    seed: int
    seconds: float


def trace(
    cls: type[TensorProcessor], conditions: Conditions, *, one_row: bool = False, check_state: bool = True
) -> ExportedProgram:
    """Record the operators of `process`. Sizes of rows and of the vocabulary are symbols.

    Args:
        cls: the class.
        conditions: sizes and values that the result must not depend on.
        one_row: whether `process` gets the tensors of one row, without the dimension of rows.
        check_state: whether to refuse code that changes its instance, class or module. They stay as they were.

    Raises:
        NotCapturable: the class cannot be instantiated, `process` raises, it depends on values, or it changes state.
    """
    with _quiet(), refused_as(lambda: definition(cls)):
        module = _ProcessModule(cls, conditions)
        rows, vocab = Dim("rows", min=2), Dim("vocab", min=MAX_TOP_K)
        tensors = _examples(cls, conditions)
        dynamic = [{0: rows, 1: vocab} if one.shape[1:] == (conditions.vocab_size,) else {0: rows} for one in tensors]
        if one_row:
            tensors = [one[0] for one in tensors]
            dynamic = [{0: vocab} if 1 in sizes else {} for sizes in dynamic]
        state = State(module.processor, inspect.unwrap(cls.process)) if check_state else None
        with nullcontext() if state is None else state.isolated():
            exported = export(module, (tensors,), dynamic_shapes=(dynamic,), strict=False)
            if state is not None and (changed := state.changed()):
                raise state_refused(cls, changed)
        decomposed: ExportedProgram = exported.run_decompositions({})
        return decomposed


def line_of(stack_trace: str | None) -> str:
    """The innermost line of the author's code in a stack trace as torch keeps it."""
    lines = (stack_trace or "").splitlines()
    for number in reversed(range(len(lines))):
        frame = lines[number].strip()
        if frame.startswith('File "') and not frame.removeprefix('File "').startswith(_OURS):
            file, _, rest = frame.removeprefix('File "').partition('", line ')
            code = lines[number + 1].strip() if number + 1 < len(lines) else ""
            return f"{file}:{rest.partition(',')[0]}: `{code}`"
    return ""


def definition(cls: type[TensorProcessor]) -> str:
    """Where the author defines `process`."""
    code = getattr(inspect.unwrap(cls.process), "__code__", None)
    if code is None:
        return cls.__qualname__
    return f"{code.co_filename}:{code.co_firstlineno}: {cls.__qualname__}.{code.co_name}"


def state_refused(processor: Any, changed: str, where: str = "") -> NotCapturable:
    """Make the error for a processor that changes state in a call.

    Args:
        processor: as for `logitport_lint.find`, which finds the line.
        changed: the name of what changes, as `State.changed` returns it.
        where: the author's line if `find` has none; "" for the definition of `process`.
    """
    found = find(processor, CHANGES)
    name = changed.rpartition(".")[2]
    line = next((one for one in found if one.name.rpartition(".")[2] == name), None)
    where = line.where if line is not None else where or definition(processor)
    return NotCapturable(
        f"{where}: {changed} changes in a call; a program has no state: compute it in __init__ or from the history, "
        "or ship it as code, as a CustomLogitProcessor"
    )


class _ProcessModule(torch.nn.Module):
    def __init__(self, cls: type[TensorProcessor], conditions: Conditions) -> None:
        super().__init__()
        self.processor = cls()
        self._conditions = conditions

    def forward(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        processor = self.processor
        names = [parameter.name for parameter in type(processor).parameters()]
        params = SimpleNamespace(**dict(zip(names, tensors[len(INPUTS) :], strict=True)))
        with _other_world(self._conditions, type(processor)), refused_as(lambda: definition(type(processor))):
            result = _traceable(processor)(tensors[0].clone(), params, _TracedHistory(tensors))
        if not isinstance(result, torch.Tensor):
            raise NotCapturable(f"{definition(type(processor))}: returned {type(result)}, not a tensor")
        return result


def traceable(function: FunctionType, replaced: Mapping[str, object] = MappingProxyType({})) -> FunctionType:
    """A function under the name `forward`: torch keeps the lines of frames with this name.

    Args:
        function: the function.
        replaced: other built-in functions, by their names.
    """
    variables = {**replaced, **function.__globals__} if replaced else function.__globals__
    code = function.__code__.replace(co_name="forward")
    renamed = FunctionType(code, variables, "forward", function.__defaults__, function.__closure__)
    renamed.__kwdefaults__ = function.__kwdefaults__
    return renamed


def _traceable(processor: TensorProcessor) -> Callable[..., Any]:
    process = type(processor).process
    return MethodType(traceable(process), processor) if isinstance(process, FunctionType) else processor.process


class _TracedHistory(TensorHistory):
    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors

    @property
    def ids(self) -> torch.Tensor:  # type: ignore[override]
        return self._in_window(1)

    @property
    def lengths(self) -> torch.Tensor:  # type: ignore[override]
        return self._in_window(2)

    def _in_window(self, index: int) -> torch.Tensor:
        if not self._tensors[1].shape[-1]:
            raise InvalidArgument("history.ids and history.lengths are empty: set `window` of the class")
        return self._tensors[index].clone()

    def token_mask(self, *, generated_only: bool = False) -> torch.Tensor:
        return self._tensors[INPUTS.index(("token_mask", generated_only))].clone()

    def token_counts(self, *, generated_only: bool = False) -> torch.Tensor:
        return self._tensors[INPUTS.index(("token_counts", generated_only))].clone()


def _examples(cls: type[TensorProcessor], conditions: Conditions) -> list[torch.Tensor]:
    rows, width = conditions.rows, conditions.vocab_size
    mask, counts = torch.zeros(rows, width, dtype=torch.bool), torch.zeros(rows, width, dtype=torch.int64)
    return [
        torch.zeros(rows, width, dtype=conditions.dtype),
        torch.zeros(rows, cls.window, dtype=torch.int64),
        torch.zeros(rows, dtype=torch.int64),
        mask,
        mask.clone(),
        counts,
        counts.clone(),
        *(torch.zeros(_shape(parameter, rows), dtype=_DTYPES[parameter.element]) for parameter in cls.parameters()),
    ]


def _shape(parameter: Parameter, rows: int) -> tuple[int, ...]:
    return (rows, parameter.length) if parameter.length else (rows,)


@contextmanager
def _other_world(conditions: Conditions, cls: type[TensorProcessor]) -> Iterator[None]:
    """Seed the random generators and shift the clock, for a while. Raises NotCapturable if Python's or numpy's is used.

    Numbers that are equal under two seeds, such as most of `randint(0, 1)`, would not be seen in the programs.
    """
    states = random.getstate(), np.random.get_state()
    shifted = time.time() + conditions.seconds
    with torch.random.fork_rng(devices=[]), mock.patch("time.time", return_value=shifted):
        random.seed(conditions.seed)
        np.random.seed(conditions.seed)
        torch.manual_seed(conditions.seed)
        seeded = random.getstate(), repr(np.random.get_state())
        try:
            yield
            drawn = seeded != (random.getstate(), repr(np.random.get_state()))
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
    if drawn:
        line = next((one.where for one in find(cls, {DRAW})), definition(cls))
        raise NotCapturable(
            f"{line}: the code draws a random number, and a program is computed once, for all requests: use a "
            "parameter; sampling belongs to the engine"
        )


@contextmanager
def refused_as(describe: Callable[[], str]) -> Iterator[None]:
    """Convert any exception to NotCapturable. Used inside torch, too, which prints its graph for its own exceptions."""
    try:
        yield
    except Exception as error:
        if isinstance(error, NotCapturable) and error.message.partition(":")[0].endswith(".py"):
            raise
        raise NotCapturable(f"{_author_line(error) or describe()}: {_reason(error)}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's own warnings, and its logs of what is refused here with a reason."""
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _author_line(error: BaseException) -> str:
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(_OURS):
            return f"{frame.filename}:{frame.lineno}: `{frame.line}`"
    return ""


def _reason(error: Exception) -> str:
    text = str(error)
    if isinstance(error, GuardOnDataDependentSymNode):
        return "Python code depends on a value of a tensor (if, while, float(), .item()): write torch.where"
    if "Constraints violated (rows" in text:
        return (
            "the code fixes the number of rows, or reads it (a loop over rows, an index of a row, `if` on shape[0]): "
            "compute all rows with one operator, along the last axis"
        )
    if "Constraints violated" in text:
        return (
            "the code fixes the width of the logits (`if` on shape[-1], a tensor as wide as one vocabulary, one_hot): "
            "make tensors of logits.shape[-1], or scatter into zeros_like(logits)"
        )
    if isinstance(error, NotCapturable):
        return error.message
    if "must match the size of tensor" in text:
        return (
            f"{text.splitlines()[0].rstrip(')')}: a parameter is [rows], and logits are [rows, vocab]: write x[:, None]"
        )
    kind = "" if isinstance(error, LogitportError) else f"{type(error).__name__}: "
    return f"process cannot be traced: {kind}{text.splitlines()[0] if text else 'no message'}"
