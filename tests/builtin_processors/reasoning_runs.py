"""Runs of a chain with a random model that thinks, and with drafts, as a session makes them."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.core.edits import Edits, RowEdits
from logitport.core.history import History
from logitport.ops import apply_edits
from logitport_builtins import BUILTIN_EDITS
from logitport_session.dialects.base import RequestContext, by_row
from logitport_session.dialects.edit_dialect import EditDialect
from logitport_session.requests.active_request import ActiveRequest, ChainEntry

if TYPE_CHECKING:
    from collections.abc import Sequence

# Characters of JSON, some pieces of several, the tags, and the end of the sequence.
PIECES = [
    *'{}[]:," \n-0123456789abcdefghijklmnopqrstuvwxyz.',
    *('":', '",', '{"', '"}', "tru", "fal", "nul", "ab", "12", "},", "]}"),
]
START, END, EOS = range(len(PIECES), len(PIECES) + 3)
NEWLINE = PIECES.index("\n")
SPECIAL = ["<think>", "</think>", "<|end|>"]
VOCAB_SIZE = EOS + 6  # padded
TAGS = {"thinking_start_ids": [START], "thinking_end_ids": [END], "newline_id": NEWLINE}


class NoIdLeft(Exception):
    """The chain denies all ids of a row."""


class Run:
    """One request.

    Args:
        chain: names of built-ins with parameters.
        thinking: probability of an id of a thinking block to be its end.
    """

    def __init__(
        self, chain: Sequence[tuple[str, dict[str, Any]]], prompt: Sequence[int], seed: int, thinking: float = 0.05
    ) -> None:
        self._random = random.Random(seed)
        self._thinking = thinking
        history = History(prompt)
        context = RequestContext("request", history, {}, VOCAB_SIZE, "", (EOS,))
        entries = []
        for name, params in chain:
            dialect = EditDialect(BUILTIN_EDITS[name](), name, shipped=False)
            dialect.validate(dict(params), {})
            entries.append(ChainEntry(dialect, dialect.start(context, dict(params)), name))
        self.request = ActiveRequest(0, 0, history, entries, skip=False)
        self._new: list[int] = []

    @property
    def output(self) -> list[int]:
        return [*self.request.history.output_token_ids.tolist(), *self._new]

    @property
    def answer(self) -> str:
        """The text after the last thinking block."""
        ids = self.output
        begin = max([at + 1 for at, one in enumerate(ids) if one == END], default=0)
        return "".join(PIECES[one] for one in ids[begin:] if one < len(PIECES))

    def step(self, max_drafts: int) -> bool:
        """Make one step. Returns whether the output has ended."""
        request, base = self.request, self.request.history.length
        request.synchronize(base, request.history.crc(), self._new)
        self._new = []
        base = request.history.length
        accepted: list[int] = []
        rejected = False
        for _ in range(self._random.randint(0, max_drafts)):
            sampled = self._random.randrange(VOCAB_SIZE) if rejected else self._sample()
            draft = sampled if self._random.random() < 0.7 else self._random.randrange(VOCAB_SIZE)
            if not rejected:
                accepted.append(sampled)  # the id that is sampled at the first rejected draft replaces it
            rejected = rejected or draft != sampled
            request.append([draft])
            self.allowed()
        self._new = accepted if rejected else [*accepted, self._sample()]
        request.rewind(base)
        if EOS in self._new:
            self._new = self._new[: self._new.index(EOS) + 1]
        return EOS in self._new

    def finish(self, max_ids: int, max_drafts: int) -> None:
        """Make steps until the output ends. Raises AssertionError if it does not."""
        while not self.step(max_drafts):
            assert len(self.output) < max_ids, self.output

    def allowed(self) -> np.ndarray[Any, Any]:
        """The ids that the chain allows next, int64[n]."""
        edits = RowEdits()
        for entry in self.request.chain:
            edits.extend(by_row(entry.dialect.edit([entry.state]), 1)[0])
        logits = np.zeros((1, VOCAB_SIZE), np.float32)
        apply_edits(Edits.pack([(0, edits)], VOCAB_SIZE), logits)
        return np.flatnonzero(np.isfinite(logits[0]))

    def _sample(self) -> int:
        allowed = self.allowed()
        if not allowed.size:
            raise NoIdLeft(self.request.history.output_token_ids.tolist())
        if allowed.size == 1:
            return int(allowed[0])
        ids = self.request.history.token_ids.tolist()
        opened = max([at for at, one in enumerate(ids) if one == START], default=-1)
        is_thinking = opened > max([at for at, one in enumerate(ids) if one == END], default=-1)
        usual = [one for one in allowed.tolist() if one < len(PIECES)] or allowed.tolist()
        if is_thinking:
            return END if END in allowed and self._random.random() < self._thinking else self._random.choice(usual)
        if START in allowed and len(ids) == self.request.history.prompt_length and self._random.random() < 0.8:
            return START
        if EOS in allowed:
            return EOS
        return self._random.choice(usual)


def schema(source: random.Random, depth: int = 0) -> dict[str, Any]:
    """A random JSON schema of values that end soon."""
    kinds = ["integer", "boolean", "enum", "string", "array", *(["object"] if depth < 2 else [])]
    kind = source.choice(kinds) if depth else "object"
    if kind == "enum":
        return {"enum": source.sample(["a", "ab", "zz", "x1", 7], source.randint(1, 3))}
    if kind == "string":
        return {"type": "string", "maxLength": source.randint(0, 4)}
    if kind == "integer":
        low = source.randint(-20, 20)
        return {"type": "integer", "minimum": low, "maximum": low + source.randint(0, 200)}
    if kind == "array":
        return {"type": "array", "items": schema(source, depth + 1), "maxItems": source.randint(0, 2)}
    if kind == "object":
        names = source.sample("abcdefgh", source.randint(1, 3))
        found = {name: schema(source, depth + 1) for name in names}
        return {"type": "object", "properties": found, "required": names, "additionalProperties": False}
    return {"type": kind}


def fits(value: Any, wanted: dict[str, Any]) -> bool:
    """Whether a value is one of such a schema."""
    if "enum" in wanted:
        return value in wanted["enum"]
    kind = wanted["type"]
    if kind == "object":
        names = wanted["properties"]
        return (
            isinstance(value, dict)
            and value.keys() == names.keys()
            and all(fits(value[one], names[one]) for one in names)
        )
    if kind == "array":
        return (
            isinstance(value, list)
            and len(value) <= wanted["maxItems"]
            and all(fits(one, wanted["items"]) for one in value)
        )
    if kind == "string":
        return isinstance(value, str) and len(value) <= wanted["maxLength"]
    if kind == "boolean":
        return isinstance(value, bool)
    return type(value) is int and wanted["minimum"] <= value <= wanted["maximum"]


def is_valid(text: str, wanted: dict[str, Any]) -> bool:
    """Whether a text is JSON of a schema."""
    try:
        return fits(json.loads(text), wanted)
    except ValueError:
        return False
