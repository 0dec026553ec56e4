"""Lowers a graph of torch's operators to a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from logitport.errors import InvalidArgument, NotCapturable
from logitport_programs.capturing import elementwise, indexing, reductions
from logitport_programs.capturing.builder import Builder
from logitport_programs.capturing.lowering import Lowered, Lowering
from logitport_programs.capturing.operator_tracing import INPUTS, line_of
from logitport_programs.program import MAX_BYTES
from logitport_programs.types import Element, Size

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

    from logitport_programs.program import Parameter, Program

_OPERATORS = elementwise.OPERATORS | reductions.OPERATORS | indexing.OPERATORS
# Checks that torch adds, of what is checked here.
_IGNORED = frozenset({"_assert_tensor_metadata", "sym_constrain_range_for_size", "sym_constrain_range"})
_ADVICE = {
    **dict.fromkeys(
        ("item", "_local_scalar_dense"),
        "a value of a tensor becomes a Python number (.item(), float(), int()): compute with the tensor",
    ),
    **dict.fromkeys(
        ("_assert_scalar", "_assert_async", "nonzero", "masked_select", "unique_consecutive", "_unique2"),
        "a size or a check depends on values: write torch.where(mask, x, y)",
    ),
    "transpose": "a transposition: rows must stay dimension 0, and each operator has a dim",
    "permute": "a permutation of dimensions: rows must stay dimension 0",
    "t": "a transposition: rows must stay dimension 0",
    "scatter_add": "scatter_add: use history.token_counts(), or multiply a mask",
    "scatter_reduce": "scatter_reduce: use history.token_counts(), or multiply a mask",
    "log1p": "log1p: write torch.log(1 + x)",
    "expm1": "expm1: write torch.exp(x) - 1",
    "remainder": "remainder: write x - torch.floor(x / y) * y",
    "round": "round: write torch.floor(x + 0.5)",
    "kthvalue": "kthvalue: use topk, or sort and gather",
    "prod": "prod: write torch.exp(torch.log(x).sum(-1))",
}


class Graph:
    """A graph of torch's operators, which is lowered to a program.

    Args:
        exported: the result of `operator_tracing.trace`.
        parameters: those that a request may set.
        window: the number of ids in the history.
        line: where the author defines `process`, for what has no line of its own.
    """

    def __init__(self, exported: ExportedProgram, parameters: tuple[Parameter, ...], window: int, line: str) -> None:
        self._exported = exported
        self._window = window
        self._line = line
        self._build = Builder({parameter.name: parameter for parameter in parameters}, window, line)
        signature = exported.graph_signature
        names = [spec.arg.name for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
        self._inputs = dict(zip(names, [*INPUTS, *(parameter.name for parameter in parameters)], strict=True))
        self._constants = {spec.arg.name: spec.target for spec in signature.input_specs if spec.target is not None}
        (self._output,) = [spec.arg.name for spec in signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
        (logits,) = [node for node in exported.graph.nodes if node.name == names[0]]
        self._low = Lowering(self._build, logits.meta["val"])
        self._lowered: dict[Node, Any] = {}

    def program(self, name: str) -> tuple[Program, list[str]]:
        """Return the program, not verified, and the author's line of each of its values.

        Raises:
            NotCapturable: the graph has an operator that programs lack, or mixes rows.
        """
        result: Lowered | None = None
        for node in self._exported.graph.nodes:
            if node.op == "output":
                break
            self._build.line = line_of(node.stack_trace) or self._line
            try:
                self._lowered[node] = self._lower(node)
            except InvalidArgument as error:
                if isinstance(error, NotCapturable):
                    raise
                self._low.refuse(f"{_name(node)}: {error.message}")
            if node.name == self._output:
                result = self._lowered[node]
        return self._build.program(name, self._result(result))

    def _result(self, result: Lowered | None) -> int:
        self._build.line = self._line
        if result is None:
            self._low.refuse("process returns a number or a constant: return logits")
        found = self._low.type_of(result)
        if result.rowed != self._low.has_rows or found.shape != (Size(vocab=1),) or not found.element.is_float:
            self._low.refuse(f"process returns {found}; it must return the logits, float[rows, vocab]")
        return self._build.with_rows(self._build.cast(result.value, Element.LOGITS))

    def _lower(self, node: Node) -> Any:
        if node.op == "placeholder":
            return self._input(node)
        if node.op != "call_function":
            self._low.refuse(f"{node.op} {node.target}, which programs lack: compute with tensors only")
        name = _name(node)
        if name in _ADVICE:
            self._low.refuse(_ADVICE[name])
        if name == "getitem":
            return self._argument(node.args[0])[node.args[1]]
        described = node.meta.get("val")
        if name in _IGNORED or not isinstance(described, torch.Tensor | tuple | list):
            return described  # a size
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            self._low.refuse(f"{name} is random: a program is deterministic; sampling belongs to the engine")
        if name not in _OPERATORS:
            self._low.refuse(f"{name} ({node.target}) is an operator that programs lack; docs/programs.md lists them")
        metas = [described] if isinstance(described, torch.Tensor) else described
        checked = [self._low.describe(one) for one in metas]
        self._low.meta = checked[0]
        result = _OPERATORS[name](self._low, self._arguments(node))
        results = [result] if isinstance(result, Lowered) else result
        for one, meta in zip(results, checked, strict=True):
            self._low.checked(one, meta)
        return result

    def _arguments(self, node: Node) -> dict[str, Any]:
        """The arguments by their names in the schema."""
        schema = node.target._schema  # type: ignore[union-attr]
        arguments = {}
        for index, argument in enumerate(schema.arguments):
            if index < len(node.args):
                given = node.args[index]
            elif argument.name in node.kwargs:
                given = node.kwargs[argument.name]
            else:
                given = argument.default_value
            arguments[argument.name] = self._argument(given)
        return arguments

    def _argument(self, given: Any) -> Any:
        if isinstance(given, torch.fx.Node):
            return self._lowered[given]
        if isinstance(given, list | tuple):
            return [self._argument(one) for one in given]
        return given

    def _input(self, node: Node) -> Any:
        if node.name in self._constants:
            return self._constant(node)
        source = self._inputs[node.name]
        if not node.users:
            return None
        build = self._build
        if isinstance(source, str):
            return self._low.new(build.emit("parameter", parameter=source), rowed=self._low.has_rows)
        operator, generated_only = source
        if operator.startswith("token"):
            return self._low.new(build.emit(operator, flag=generated_only), rowed=self._low.has_rows)
        value = build.emit(operator)
        if operator == "history":  # torch records the window as a number, and a size of 1 is broadcast
            value = build.emit("slice", value, axis=1, begin=Size(), end=Size(constant=self._window))
        return self._low.new(value, rowed=self._low.has_rows)

    def _constant(self, node: Node) -> Lowered:
        tensor = {**self._exported.state_dict, **self._exported.constants}[self._constants[node.name]]
        if node.users:
            self._build.line = line_of(next(iter(node.users)).stack_trace) or self._line
        if not isinstance(tensor, torch.Tensor):
            self._low.refuse(f"a constant of type {type(tensor)}")
        element = self._low.element(tensor.dtype)
        if tensor.dim() == 0:
            return self._low.scalar(tensor.item(), element)
        if element is Element.LOGITS:
            self._low.refuse("a constant has the dtype of the logits: make it float32")
        if tensor.numel() * tensor.element_size() > MAX_BYTES - (MAX_BYTES >> 4):
            self._low.refuse(
                f"a constant of {list(tensor.shape)} {tensor.dtype}; a program has at most {MAX_BYTES} bytes"
            )
        array = tensor.detach().cpu().contiguous().numpy()
        shape = tuple(Size(constant=size) for size in tensor.shape)
        data = array.astype(array.dtype.newbyteorder("<")).tobytes()
        value = self._build.emit("constant", element=element, shape=shape, data=data)
        return Lowered(value, tensor.dim(), False)


def _name(node: Node) -> str:
    """Name of the operator without its overload."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target._schema.name).partition("::")[2]
    return str(getattr(target, "__name__", target))
