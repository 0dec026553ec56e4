"""A step's masks from the built-in `grammar`, compared with llguidance in the engine's process.

`python -m benchmarks.grammar`: JSON arrays of strings and of objects at 151,936 ids, over a vocabulary of the pieces
that are most frequent in the Python sources at hand. Both sides follow the same ids, which are allowed and random.
"""

from __future__ import annotations

import json
import sysconfig
import tempfile
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import fill_next_token_bitmask_par

from benchmarks.servers import connected
from logitport import Request
from logitport.core.edits import bitmask_words
from logitport_builtins.grammar import tokenizers
from tests.tokenizer_files import write_vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport import Client
    from logitport_builtins.grammar.tokenizers import Tokenizer

VOCAB_SIZE = 151_936
PIECES = 151_643
STEPS, WARM = 60, 10

ITEM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "size": {"type": "integer"}, "kind": {"enum": ["a", "b"]}},
    "required": ["name", "size", "kind"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": {"anyOf": [{"type": "string"}, ITEM]}, "minItems": 1_000_000}


def main() -> None:
    """Measure, and print a table."""
    with tempfile.TemporaryDirectory() as folder:
        write_vocabulary(Path(folder), list(islice(pieces(), PIECES)))
        tokenizer = tokenizers.load("python", Path(folder))
        print(f"{tokenizer.vocab_size:,} ids in the tokenizer; medians of {STEPS} steps, by turns\n")
        print("| rows | llguidance in process | until logitport's edits are here | CPU time: here, client, server |")
        print("|---|---|---|---|")
        with connected("--device", "cpu", "--tokenizer", f"python={folder}") as (server, client):
            for rows in (8, 64):
                before = server.cpu_seconds
                here, there, here_cpu, client_cpu = measure(client, tokenizer, sample(tokenizer, rows))
                server_cpu = (server.cpu_seconds - before) / (WARM + STEPS) * 1e6
                spent = ", ".join(f"{microseconds:,.0f}" for microseconds in (here_cpu, client_cpu, server_cpu))
                print(f"| {rows} | {here:,.0f} µs | {there:,.0f} µs | {spent} µs |", flush=True)


def pieces() -> Iterator[str]:
    """ASCII characters, then pieces of words, the most frequent first."""
    counted: Counter[str] = Counter()
    for file in islice(Path(sysconfig.get_path("purelib")).rglob("*.py"), 4000):
        for word in file.read_text(errors="ignore").split(" "):
            if word.isascii() and 1 < len(word) < 12 and word.isprintable():
                counted.update(word[:end] for end in range(2, 1 + len(word)))
                counted[" " + word] += 1
    yield from map(chr, range(128))
    yield from (piece for piece, _ in counted.most_common())


class Library:
    """A batch of llguidance's matchers, and their masks, int32[rows, words]."""

    def __init__(self, tokenizer: Tokenizer, rows: int) -> None:
        grammar = LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"whitespace_flexible": False})
        self._executor = LLExecutor()
        self._matchers = [LLMatcher(tokenizer.trie, grammar) for _ in range(rows)]
        self._places = [(matcher, row) for row, matcher in enumerate(self._matchers)]
        self.masks = np.zeros((rows, bitmask_words(tokenizer.vocab_size + 1)), np.int32)
        self.fill()

    def fill(self) -> None:
        fill_next_token_bitmask_par(self._executor, self._places, self.masks)

    def step(self, token_ids: list[int]) -> None:
        for matcher, token_id in zip(self._matchers, token_ids, strict=True):
            matcher.consume_token(token_id)
        self.fill()


def sample(tokenizer: Tokenizer, rows: int) -> list[list[int]]:
    """Ids by step and row, sampled from random logits."""
    random, library = np.random.default_rng(0), Library(tokenizer, rows)
    sampled = []
    for _ in range(WARM + STEPS):
        bits = np.unpackbits(library.masks.view(np.uint8), axis=1, bitorder="little")
        sampled.append([int(random.choice(np.flatnonzero(row))) for row in bits])
        library.step(sampled[-1])
    return sampled


def measure(client: Client, tokenizer: Tokenizer, sampled: list[list[int]]) -> tuple[float, ...]:
    """Microseconds of a step, in process and with the server, and the processor time of both."""
    library = Library(tokenizer, len(sampled[0]))
    params: dict[str, Any] = {"json_schema": json.dumps(SCHEMA), "disable_any_whitespace": True}
    spent = []
    with client.session(vocab_size=VOCAB_SIZE, eos_token_ids=[tokenizer.vocab_size - 1]) as session:
        handles = [session.add(Request(processors=[("grammar", params)])) for _ in sampled[0]]
        session.step({handle: [] for handle in handles}).edits()
        for token_ids in sampled:
            began, began_cpu = time.perf_counter(), time.process_time()
            library.step(token_ids)
            turn, turn_cpu = time.perf_counter(), time.process_time()
            new = {handle: [token_id] for handle, token_id in zip(handles, token_ids, strict=True)}
            edits = session.step(new).edits()
            ended, ended_cpu = time.perf_counter(), time.process_time()
            spent.append((turn - began, ended - turn, turn_cpu - began_cpu, ended_cpu - turn_cpu))
            assert len(edits) == len(handles)
    return tuple(np.median(spent[WARM:], axis=0) * 1e6)


if __name__ == "__main__":
    main()
