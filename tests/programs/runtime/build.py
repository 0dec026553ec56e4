"""Writes programs by hand."""

from __future__ import annotations

from typing import Any

from logitport_programs.program import Parameter, Program, Value
from logitport_programs.types import VOCAB, Element, Size
from logitport_programs.verifier import Verified, verify

K = 4


class Writer:
    """Collects values; each call returns the position of the new one."""

    def __init__(self) -> None:
        self.values: list[Value] = []

    def __call__(self, operator: str, *inputs: int, **fields: Any) -> int:
        self.values.append(Value(operator, inputs, **fields))
        return len(self.values) - 1

    def verified(self, *parameters: Parameter, window: int = 0, name: str = "test") -> Verified:
        return verify(Program(name, tuple(self.values), parameters, window))

    def full(self, number: float, element: Element = Element.LOGITS, shape: tuple[Size, ...] = ()) -> int:
        return self("full", element=element, shape=shape, number=number)

    def parameter(self, name: str) -> int:
        """A float parameter as a number for each row, in the type of the logits."""
        return self("unsqueeze", self("cast", self("parameter", parameter=name), element=Element.LOGITS), axis=1)


def temperature() -> Verified:
    write = Writer()
    logits = write("logits")
    write("divide", logits, write.parameter("temperature"))
    return write.verified(Parameter("temperature", Element.FLOAT32, 1.0, 0.01, 100.0), name="temperature")


def min_p() -> Verified:
    write = Writer()
    logits = write("logits")
    probabilities = write("softmax", logits, axis=1)
    least = write("multiply", write("amax", probabilities, axis=1, flag=True), write.parameter("min_p"))
    write("where", write("less", probabilities, least), write.full(float("-inf")), logits)
    return write.verified(Parameter("min_p", Element.FLOAT32, None, 0.0, 1.0), name="min_p")


def top_k(k: int = K) -> Verified:
    write = Writer()
    logits = write("logits")
    index = write("top_k", logits, integer=k)
    kept = write("gather_or", logits, index)
    nothing = write.full(float("-inf"), shape=(VOCAB,))
    write("scatter_drop", nothing, index, kept)
    return write.verified(name="top_k")


def top_p() -> Verified:
    write = Writer()
    logits = write("logits")
    order = write("argsort", logits, flag=True)
    ordered = write("gather_or", logits, order)
    probabilities = write("softmax", write("cast", ordered, element=Element.FLOAT32), axis=1)
    before = write("subtract", write("cumsum", probabilities, axis=1), probabilities)
    limit = write("unsqueeze", write("parameter", parameter="top_p"), axis=1)
    cut = write("where", write("greater", before, limit), write.full(float("-inf")), ordered)
    write("scatter_drop", logits, order, cut)
    return write.verified(Parameter("top_p", Element.FLOAT32, None, 0.0, 1.0), name="top_p")


def entropy_gate() -> Verified:
    """Divides the logits by a temperature in the rows of an entropy above a threshold."""
    write = Writer()
    logits = write("logits")
    wide = write("cast", logits, element=Element.FLOAT32)
    log_p = write("log_softmax", wide, axis=1)
    entropy = write("negate", write("sum", write("multiply", write("exp", log_p), log_p), axis=1, flag=True))
    threshold = write("unsqueeze", write("parameter", parameter="threshold"), axis=1)
    gate = write("greater", entropy, threshold)
    write("where", gate, write("divide", logits, write.parameter("temperature")), logits)
    return write.verified(
        Parameter("threshold", Element.FLOAT32, 1.0, 0.0, 100.0),
        Parameter("temperature", Element.FLOAT32, 2.0, 0.01, 100.0),
        name="entropy_gate",
    )


def repetition_penalty(window: int) -> Verified:
    write = Writer()
    logits, history = write("logits"), write("history")
    score, penalty = write("gather_or", logits, history), write.parameter("penalty")
    positive = write("greater", score, write.full(0.0))
    changed = write("where", positive, write("divide", score, penalty), write("multiply", score, penalty))
    write("scatter_drop", logits, history, changed)
    return write.verified(Parameter("penalty", Element.FLOAT32, 1.0, 0.01, 100.0), window=window, name="repetition")


def shifted_by_int64() -> Verified:
    """Adds the parameter `shift`, as an int64. A later value gets the memory that the cast used."""
    write = Writer()
    logits = write("logits")
    whole = write("cast", write("parameter", parameter="shift"), element=Element.INT64)
    doubled = write("subtract", logits, write("negate", logits))
    added = write("cast", whole, element=Element.LOGITS)
    write("add", write("add", logits, doubled), write("unsqueeze", added, axis=1))
    return write.verified(Parameter("shift", Element.FLOAT32, None, -3e38, 3e38), name="shifted")
