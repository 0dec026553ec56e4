"""Texts that repeat themselves without being loops: of this machine's files, and generated ones. Ids of them."""

from __future__ import annotations

import base64
import math
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from itertools import cycle, islice
from pathlib import Path
from random import Random

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

_ROOT = Path(__file__).parents[1]
_LIBRARY = Path(sysconfig.get_path("stdlib"))
_PACKAGES = Path(sysconfig.get_path("purelib"))
_VOCABULARY = 32_000
_COUNT = 1200  # of generated tables and drawings
_MAX_CHARACTERS = 400_000  # of a file
_MAX_OF_KIND = 8_000_000


def kinds() -> Mapping[str, Iterable[str]]:
    """The texts by kind."""
    code = sorted(_LIBRARY.rglob("*.py"))
    ordinary = [path for path in code if not path.is_relative_to(_PACKAGES) and not _is_test(path)]
    prose = [
        path
        for root in (_ROOT / "docs", _PACKAGES)
        for ending in ("md", "rst")  # files of packages that end in .txt also have data, such as stacks of a profiler
        for path in root.rglob(f"*.{ending}")
    ]
    return {
        "code": _read(ordinary),
        "prose": _read([*sorted(prose), *_LIBRARY.joinpath("pydoc_data").glob("*.py")]),
        "tables of zeros": [_zeros(Random(seed)) for seed in range(_COUNT)],
        "base64": [base64.encodebytes(data).decode() for data in _binaries()],
        "ASCII art": [_drawing(Random(seed)) for seed in range(_COUNT)],
        "code of tests": _read([path for path in code if _is_test(path) and not path.is_relative_to(_PACKAGES)]),
    }


def train(texts: Iterable[str]) -> Tokenizer:
    """Train a byte-level BPE, as that of GPT-2 and its successors, on a third of the texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(islice(texts, 0, None, 3), trainer)
    return tokenizer


def _is_test(path: Path) -> bool:
    return any(part in {"test", "tests", "idle_test"} for part in path.relative_to(_LIBRARY).parts)


def _read(paths: list[Path]) -> list[str]:
    """Read files at random, up to a limit."""
    texts: list[str] = []
    left = _MAX_OF_KIND
    for path in Random(0).sample(paths, len(paths)):
        texts.append(path.read_text(errors="replace")[:_MAX_CHARACTERS])
        left -= len(texts[-1])
        if left <= 0:
            break
    return texts


def _binaries() -> Iterator[bytes]:
    """Random bytes, and compiled modules, which have pages of zeros."""
    yield from (Random(seed).randbytes(30_000) for seed in range(40))
    modules = sorted(_LIBRARY.joinpath("lib-dynload").glob("*.so"))[:40]
    yield from (path.read_bytes()[:60_000] for path in modules)


def _zeros(random: Random) -> str:
    """A table of up to 40 x 26 zeros, some with numbered rows, brackets, other numbers, or a diagonal of ones."""
    rows, columns = random.randint(2, 40), random.randint(2, 26)
    separator, zero = random.choice([", ", " ", ",", "\t", " | "]), random.choice(["0", "0.0", "0.00", "0x00"])
    kind = random.choice(["alone", "numbered", "brackets", "sparse", "identity"])
    lines = []
    for row in range(rows):
        cells = [zero] * columns
        if kind == "sparse" and random.random() < 0.3:
            cells[random.randrange(columns)] = str(random.randint(1, 99))
        elif kind == "identity" and row < columns:
            cells[row] = "1"
        line = separator.join(cells)
        lines.append({"numbered": f"{row}{separator}{line}", "brackets": f"    [{line}],"}.get(kind, line))
    return "\n".join(lines)


def _drawing(random: Random) -> str:
    width, height = random.randint(8, 76), random.randint(3, 40)
    kind = random.choice(["box", "triangle", "rules", "grid", "sine", "tree", "empty table"])
    if kind == "box":
        return "\n".join([f"+{'-' * width}+", *[f"|{' ' * width}|"] * height, f"+{'-' * width}+"])
    if kind == "triangle":
        return "\n".join(" " * (height - row) + "*" * (2 * row + 1) for row in range(height))
    if kind == "rules":
        return "\n".join(random.choice("-=*#~_") * width for _ in range(height))
    if kind == "grid":
        return "\n".join(islice(cycle(["+---" * (width // 4) + "+", "|   " * (width // 4) + "|"]), height))
    if kind == "sine":
        return "\n".join(" " * int(width / 2 * (1 + math.sin(row / 3))) + "*" for row in range(2 * height))
    if kind == "tree":
        return "\n".join("|   " * random.randint(0, 4) + f"+-- node{random.randint(0, 999)}" for _ in range(height))
    return "\n".join([f"| {' | '.join(['   '] * (width // 6))} |"] * height)
