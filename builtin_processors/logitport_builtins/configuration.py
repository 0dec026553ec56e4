"""The operator's options for the built-ins."""

from __future__ import annotations

import importlib.util
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from logitport import tokenizers as shared
from logitport.errors import PayloadError
from logitport.tokenizers import read_tokenizer
from logitport_builtins.grammar import grammar_tokenizer as of_grammars

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from logitport.errors import LogitportError
    from logitport.tokenizers import Tokenizer

_added: Counter[str] = Counter()


class BuiltinOptions(Protocol):
    """The options that built-ins read; a server's configuration has them."""

    @property
    def tokenizer(self) -> Sequence[str]:
        """NAME=PATH for each tokenizer that processors may use."""


def configure(options: BuiltinOptions) -> None:
    """Configure the built-ins of this process and `operator_tokenizer`, and replace any earlier configuration.

    Of the packages llguidance, for grammars, and tokenizers, for other processors, one may be missing.

    Raises:
        PayloadError: a tokenizer cannot be read; the earlier configuration stays.
    """
    named = dict(option.split("=", 1) for option in options.tokenizer)
    paths = {name: Path(path) for name, path in named.items()}
    has_library = importlib.util.find_spec("tokenizers") is not None
    loaded: Mapping[str, Tokenizer | LogitportError] = (
        {name: read_tokenizer(name, path) for name, path in paths.items()}
        if has_library
        else dict.fromkeys(paths, PayloadError(shared.MISSING))
    )
    if not has_library or importlib.util.find_spec("llguidance") is not None:
        of_grammars.configure(paths)
    shared.configure(loaded)


def add_tokenizers(paths: Mapping[str, Path]) -> None:
    """Add tokenizers that are read when a processor uses them, which gets the error if one cannot be read.

    A processor must name them: none is the default. They stay until `remove_tokenizers` is called as often.
    """
    for name, path in paths.items():
        if not _added[name]:
            of_grammars.add(name, path)
            shared.add(name, partial(read_tokenizer, name, path))
        _added[name] += 1


def remove_tokenizers(names: Iterable[str]) -> None:
    """Remove tokenizers that were added."""
    for name in names:
        if _added[name] == 1:
            of_grammars.remove(name)
            shared.remove(name)
        _added[name] = max(0, _added[name] - 1)
