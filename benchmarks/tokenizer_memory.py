"""The memory of workers that use a tokenizer: the operator's, which they share, or one that each creates.

    python -m benchmarks.tokenizer_memory --workers 8

The tokenizer is byte-level BPE with 150,000 random merges. Memory is the sum of the proportional set sizes of workers
and zygote, in MiB: pages that processes share count once.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from logitport import EditProcessor, History, payload
from logitport.tokenizers import operator_tokenizer
from logitport_server.dialects import RequestContext
from logitport_server.executors import Deadlines, ProcessExecutor
from logitport_server.principals import Party, TrustDomain
from logitport_server.registry.source import Source
from logitport_server.sandbox import LAYERS
from logitport_server.worker.start import start_zygote
from logitport_server.worker.tokenizers import open_tokenizers

if TYPE_CHECKING:
    from collections.abc import Sequence

VOCAB = 152_000


def write_tokenizer(folder: Path, size: int = 150_000) -> None:
    """Write a tokenizer.json of byte-level BPE with this many ids."""
    generator = random.Random(0)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {char: token_id for token_id, char in enumerate(alphabet)}
    letters = [char for char in alphabet if char.isascii() and char.isalpha()] + ["Ġ"]
    pieces, merges = list(letters), []
    while len(vocabulary) < size:
        pair = generator.choice(pieces), generator.choice(letters)
        if len("".join(pair)) < 14 and "".join(pair) not in vocabulary:
            vocabulary["".join(pair)] = len(vocabulary)
            merges.append(pair)
            pieces.append("".join(pair))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))


class UsesNone(EditProcessor):
    """Uses no tokenizer."""

    def edit(self, request: Any, edits: Any) -> None:  # noqa: ARG002
        edits.deny([0])


class UsesOperators(EditProcessor):
    """Uses the operator's tokenizer."""

    def edit(self, request: Any, edits: Any) -> None:  # noqa: ARG002
        tokenizer = operator_tokenizer()
        tokenizer.decode(tokenizer.encode("some words, and some more words"))
        edits.deny(tokenizer.ids_containing("ab"))


def creates_own(text: str) -> type[EditProcessor]:
    """Return a class that creates a tokenizer in each worker."""

    class CreatesOwn(EditProcessor):
        def __init__(self) -> None:
            from tokenizers import Tokenizer as Library

            self.tokenizer = Library.from_str(text)

        def edit(self, request: Any, edits: Any) -> None:  # noqa: ARG002
            self.tokenizer.decode(self.tokenizer.encode("some words, and some more words").ids)
            edits.deny([0])

    return CreatesOwn


def measure(processor: type[EditProcessor], workers: int, tokenizers: Sequence[str]) -> tuple[float, float, float]:
    """Return the MiB of the zygote alone, of the zygote and its workers, and the seconds to start the zygote."""
    missing = [layer.name for layer in LAYERS if layer.missing() is not None]
    began = time.monotonic()
    first = start_zygote(sys.executable, without=missing, threads=32, tokenizers=open_tokenizers(tokenizers))
    executor = ProcessExecutor(Deadlines(60, 200), 3, without=missing, first=first)
    try:
        executor.ready()
        seconds = time.monotonic() - began
        alone = memory(descendants())
        shipped = payload.parse(payload.dumps(processor))
        kept = []
        for number in range(workers):
            domain = TrustDomain("engine", Party("engine", str(number)))
            dialect = executor.host_shipped(Source(shipped.digest, payload=shipped, domain=domain))
            state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), {})
            dialect.edit([state])
            kept.append((dialect, state))
        return alone, memory(descendants()), seconds
    finally:
        executor.close()


def descendants() -> list[int]:
    """The pids of all processes below this one."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found = {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= new
    return sorted(found - {os.getpid()})


def memory(pids: list[int]) -> float:
    """The sum of the proportional set sizes in MiB."""
    total = 0
    for pid in pids:
        with suppress(OSError):  # a process that has ended
            lines = (Path("/proc") / str(pid) / "smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        option = f"big={folder}"
        own = creates_own((Path(folder) / "tokenizer.json").read_text())
        cases = {"none": (UsesNone, []), "the operator's": (UsesOperators, [option]), "one each": (own, [])}
        print("tokenizer, workers, MiB of the zygote, MiB of all, MiB for each worker, seconds to start")
        for name, (processor, options) in cases.items():
            for workers in arguments.workers:
                alone, total, seconds = measure(processor, workers, options)
                numbers = np.round([alone, total, (total - alone) / workers], 1)
                print(f"{name}, {workers}, {', '.join(map(str, numbers))}, {seconds:.1f}")


if __name__ == "__main__":
    main()
