"""Makes programs of processors that were written for other contracts, if they only compute with tensors.

contracts   how the processors of each contract are called
parameters  the parameters of a class for SGLang, as symbols
known       processors of transformers that read the history, as tensor processors
comparison  a program and its processor, on the same logits
"""

from __future__ import annotations

import copy
import functools
import inspect
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from logitport import dialects
from logitport.errors import NotCapturable
from logitport.processors import CustomLogitProcessor
from logitport_programs.authoring.processor import TensorProcessor
from logitport_programs.capturing import capture, capture_as
from logitport_programs.capturing.operator_tracing import refused_as, state_refused
from logitport_programs.capturing.processor_state import State
from logitport_programs.lifting.comparison import check_equal
from logitport_programs.lifting.contracts import (
    Contract,
    OneRow,
    RowInPlace,
    SglangRows,
    TransformersScores,
    function_of,
    where_defined,
)
from logitport_programs.lifting.known import find_known

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_programs.program import Program

__all__ = ["lift"]

_CONTRACTS: dict[str, Callable[[Any], Contract]] = {
    dialects.SGLANG: SglangRows,
    dialects.TRANSFORMERS: TransformersScores,
    dialects.VLLM_REQUEST: OneRow,
    dialects.DYNAMO: RowInPlace,
}
_REASONS = {
    dialects.EDITS: "an EditProcessor reads no logits: register it as it is",
    dialects.VLLM_V1: (
        "update_state keeps a table of requests in Python, which a program cannot: write the tensor part of apply as "
        "a TensorProcessor, with params instead of sampling_params"
    ),
    dialects.VLLM_V2: (
        "add_request keeps a table of requests, which a program cannot: write the tensor part of apply as a "
        "TensorProcessor, with params instead of sampling_params"
    ),
}


_ACCEPTS_ALL = CustomLogitProcessor.validate_params.__func__  # type: ignore[attr-defined]


def lift(processor: Any) -> Program:
    """Make a program of a processor of any contract.

    A `TensorProcessor` is captured. Other processors are called with symbols, and the program is then compared with
    the processor on random logits of three dtypes: it is called about 40 times.

    Args:
        processor: as `Client.register` takes it: a class, an instance, a function, or `InDialect` of one.

    Raises:
        NotCapturable: it does more than compute with tensors, keeps state, or computes something else than the program.
            The message has the author's file and line, the cause, and what to do.
        TypeError: it is no processor, or its dialect cannot be recognized.
    """
    if isinstance(processor, type) and issubclass(processor, TensorProcessor):
        return capture(processor)
    plain, dialect = dialects.recognise(processor)
    author = dialects.author_of(plain)
    if isinstance(author, type) and issubclass(author, TensorProcessor):
        if getattr(plain, "__dict__", None) and not isinstance(plain, type):
            raise NotCapturable(
                f"{_described(author)}: an instance of a TensorProcessor with attributes: pass its class"
            )
        return capture(author)
    if dialect in _REASONS:
        raise NotCapturable(f"{_described(author)}: {_REASONS[dialect]}")
    validate = getattr(author, "validate_params", None)
    if validate is not None and getattr(validate, "__func__", validate) is not _ACCEPTS_ALL:
        raise NotCapturable(
            f"{_described(validate)}: validate_params is Python code, which a program has not: declare the "
            "limits as params of a TensorProcessor"
        )
    instance = _instance(plain, dialect)
    state = State(instance, inspect.unwrap(function_of(instance)))
    with state.isolated():
        try:
            # Distributions of torch check their arguments, which depends on values.
            unchecked = mock.patch.object(torch.distributions.Distribution, "_validate_args", False)
            with refused_as(lambda: _described(author)), unchecked:
                known = find_known(instance) if dialect == dialects.TRANSFORMERS else None
                contract = known or _CONTRACTS[dialect](instance)
                program = capture_as(
                    _as_tensor_processor(contract, author), one_row=contract.one_row, check_state=False
                )
            check_equal(contract, program)
        except NotCapturable as error:
            _check_unchanged(state, author, error)
            raise
        _check_unchanged(state, author)
    return program


def _check_unchanged(state: State, author: Any, cause: NotCapturable | None = None) -> None:
    if changed := state.changed():
        raise state_refused(author, changed, _described(author)) from cause


def _instance(processor: Any, dialect: str) -> Any:
    """The object to call: a new instance of a class, or a copy of an instance."""
    if not dialects.makes_instances(processor):
        if isinstance(processor, functools.partial):
            raise NotCapturable(f"{_described(processor.func)}: a partial of a function: write a function of it")
        try:
            return copy.deepcopy(processor)
        except Exception as error:
            raise NotCapturable(f"{_described(type(processor))}: the instance cannot be copied: {error}") from error
    author = dialects.author_of(processor)
    if dialect == dialects.VLLM_REQUEST and hasattr(author, "new_req_logits_processor"):
        raise NotCapturable(
            f"{_described(author)}: new_req_logits_processor makes Python functions of the parameters: write a "
            "TensorProcessor"
        )
    try:
        return processor()
    except Exception as error:
        advice = "lift an instance" if dialect != dialects.SGLANG else "give its parameters defaults"
        raise NotCapturable(
            f"{_described(author)}: cannot be instantiated without arguments ({type(error).__name__}: {error}): "
            f"{advice}"
        ) from error


def _as_tensor_processor(contract: Contract, author: Any) -> type[TensorProcessor]:
    def process(self: TensorProcessor, logits: torch.Tensor, params: Any, history: Any) -> torch.Tensor:  # noqa: ARG001
        return contract.process(logits, params, history)

    process.__wrapped__ = contract.function  # type: ignore[attr-defined] # where errors without a line point
    name = author.__name__ if author.__name__.isidentifier() else "Lifted"
    return type(name, (TensorProcessor,), {"process": process, "params": contract.params, "window": contract.window})


def _described(author: Any) -> str:
    function = author.__call__ if isinstance(author, type) else author
    return where_defined(function, getattr(author, "__qualname__", type(author).__qualname__))
