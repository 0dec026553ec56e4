"""The C++ of a program. It has numbers and names of its own only: no text of the program reaches it."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

from logitport.programs.fused.functions import SOURCE
from logitport.programs.fused.nodes import BOOL, FLOAT, INT

if TYPE_CHECKING:
    from logitport.programs.fused.nodes import Node
    from logitport.programs.fused.phases import Phase, Phases

ENTRY = "logitport_fused"
# Of the status of a row.
HAS_NAN, UNFIT = 1, 2

_TYPES = {FLOAT: "float", INT: "i64", BOOL: "bool"}
# Elements that are summed before they are added to the sum of the row, so that few roundings accumulate.
_CHUNK = 4096

_INFIX = {
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "and": "&",
    "or": "|",
    "xor": "^",
}
_FLOAT_INFIX = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
_FLOAT_CALLS = {
    "exp": "f_exp",
    "log": "f_log",
    "sigmoid": "f_sigmoid",
    "tanh": "f_tanh",
    "minimum": "f_minimum",
    "maximum": "f_maximum",
    "sqrt": "__builtin_sqrtf",
    "floor": "__builtin_floorf",
    "ceil": "__builtin_ceilf",
    "absolute": "__builtin_fabsf",
    "negate": "-",
}
_INITIAL = {
    ("sum", FLOAT): "0.0f",
    ("sum", INT): "0",
    ("amax", FLOAT): "-INF",
    ("amin", FLOAT): "INF",
    ("amax", INT): "(-0x7fffffffffffffffLL - 1)",
    ("amin", INT): "0x7fffffffffffffffLL",
    ("has_nan", BOOL): "0",
    ("first", INT): "width",
}
_CLAUSES = {"sum": "+", "amax": "max", "amin": "min", "has_nan": "|", "first": "min"}

# The function that the engine calls. Rows are taken one by one by the threads of `parallel`, GOMP_parallel of libgomp.
_ENTRY = f"""
struct Job {{
  float *logits;
  i64 stride, width, count, columns, next;
  const i64 *rows, *params;
  u8 *status;
}};

static void work(void *pointer) {{
  Job *job = (Job *)pointer;
  for (;;) {{
    const i64 at = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
    if (at >= job->count) return;
    job->status[at] = one_row(job->logits + job->rows[at] * job->stride, job->width, job->params + at * job->columns);
  }}
}}

typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned);

extern "C" __attribute__((visibility("default"))) void {ENTRY}(
    void *parallel, i64 threads, float *logits, i64 stride, i64 width, const i64 *rows, i64 count,
    const i64 *params, i64 columns, u8 *status) {{
  Job job = {{logits, stride, width, count, columns, 0, rows, params, status}};
  if (parallel != nullptr && threads > 1)
    ((Parallel)parallel)(work, &job, (unsigned)threads, 0);
  else
    work(&job);
}}
"""


def source_of(phases: Phases) -> str:
    """Generate the source: a file that includes nothing, with one function, ENTRY.

    It takes the address of GOMP_parallel, or null; the number of threads; float32 logits, with the distance of their
    rows in elements, and their width; the rows, and their number; for each of them the parameters, as int64 with the
    bits of a float32 or the number; their count; and uint8[rows] for the status of each row: HAS_NAN, UNFIT.
    """
    lines = ["static u8 one_row(float *row, const i64 width, const i64 *params) {", "  i32 nan = 0, bad = 0;"]
    for number, phase in enumerate(phases.passes):
        lines += _pass(phases, phase, is_last=number == len(phases.passes) - 1)
    lines += [f"  return (u8)((nan ? {HAS_NAN} : 0) | (bad ? {UNFIT} : 0));", "}"]
    return SOURCE + "\n" + "\n".join(lines) + "\n" + _ENTRY


def _pass(phases: Phases, phase: Phase, *, is_last: bool) -> list[str]:
    nodes = phases.nodes
    lines = [line for place in phase.scalars for line in _computed(nodes, place, "  ")]
    clauses, before, after, accumulated = ["reduction(|:bad)"], [], [], []
    for place in phase.reductions:
        node, name = nodes[place], f"n{place}"
        initial = _INITIAL[node.operator, node.type]
        type_ = "i32" if node.type == BOOL else _TYPES[node.type]
        lines.append(f"  {type_} {name} = {initial};")
        if node.operator == "sum":
            before.append(f"    {type_} c{place} = 0;")
            after.append(f"    {name} = {_total(node, name, f'c{place}')};")
            name = f"c{place}"
        clauses.append(f"reduction({_CLAUSES[node.operator]}:{name})")
        accumulated.append(f"      {name} = {_accumulated(node, name)};")
    if is_last:
        clauses.append("reduction(|:nan)")
        accumulated += [
            f"      const float result = n{phases.result};",
            "      nan |= result != result;",
            "      row[i] = result;",
        ]
    lines += [
        f"  for (i64 begin = 0; begin < width; begin += {_CHUNK}) {{",
        f"    const i64 end = width - begin < {_CHUNK} ? width : begin + {_CHUNK};",
        *before,
        f"#pragma omp simd {' '.join(clauses)}",
        "    for (i64 i = begin; i < end; ++i) {",
        *(line for place in phase.vectors for line in _computed(nodes, place, "      ")),
        *accumulated,
        "    }",
        *after,
        "  }",
    ]
    return lines


def _total(node: Node, one: str, other: str) -> str:
    return f"i_add({one}, {other})" if node.type == INT else f"{one} + {other}"


def _accumulated(node: Node, name: str) -> str:
    (source,) = (f"n{place}" for place in node.inputs)
    if node.operator == "sum":
        return _total(node, name, source)
    if node.operator == "has_nan":
        return f"{name} | ({source} != {source})"
    if node.operator == "first":
        return f"{source} && i < {name} ? i : {name}"
    sign = ">" if node.operator == "amax" else "<"
    return f"{source} {sign} {name} ? {source} : {name}"


def _computed(nodes: list[Node], place: int, indent: str) -> list[str]:
    """The statements that compute a node."""
    node = nodes[place]
    lines = [f"{indent}const {_TYPES[node.type]} n{place} = {_expression(nodes, node)};"]
    if node.operator == "cast" and node.type == INT and nodes[node.inputs[0]].type == FLOAT:
        lines.append(f"{indent}bad |= unfit(n{node.inputs[0]});")
    return lines


def _expression(nodes: list[Node], node: Node) -> str:
    operator = node.operator
    inputs = [f"n{place}" for place in node.inputs]
    if not inputs:
        return _source(node)
    if operator == "where":
        return "{} ? {} : {}".format(*inputs)
    if operator == "not":
        return f"!{inputs[0]}"
    if operator == "is_nan":
        return "{0} != {0}".format(*inputs)
    if operator == "cast":
        source = nodes[node.inputs[0]].type
        if node.type == BOOL:
            return f"{inputs[0]} != 0"
        return f"truncated({inputs[0]})" if (source, node.type) == (FLOAT, INT) else f"({_TYPES[node.type]}){inputs[0]}"
    if operator in _INFIX:
        return f"{inputs[0]} {_INFIX[operator]} {inputs[1]}"
    if node.type == INT:
        return f"i_{operator}({', '.join(inputs)})"
    if operator in _FLOAT_INFIX:
        return f"{inputs[0]} {_FLOAT_INFIX[operator]} {inputs[1]}"
    return f"{_FLOAT_CALLS[operator]}({', '.join(inputs)})"


def _source(node: Node) -> str:
    if node.operator == "logits":
        return "row[i]"
    if node.operator == "arange":
        return "i"
    if node.operator == "width":
        return "width"
    if node.operator == "parameter":
        slot = f"params[{node.number:d}]"
        return {FLOAT: f"float_in({slot})", INT: slot, BOOL: f"{slot} != 0"}[node.type]
    if node.type != FLOAT:
        return f"({_TYPES[node.type]}){node.number & (2**64 - 1):#x}ULL"
    (number,) = struct.unpack("<f", struct.pack("<I", node.number))
    if math.isnan(number):
        return '__builtin_nanf("")'
    if math.isinf(number):
        return "INF" if number > 0 else "-INF"
    return f"{number.hex()}f"
