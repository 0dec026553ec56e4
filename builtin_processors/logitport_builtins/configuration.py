"""The operator's options for the built-ins."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from logitport import tokenizers as shared
from logitport.errors import LoadFailed
from logitport.tokenizers import Tokenizer, TokenizerFile
from logitport_builtins.grammar import tokenizers as of_grammars

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport.errors import LogitportError


class BuiltinOptions(Protocol):
    """The options that built-ins read; a server's configuration has them."""

    @property
    def tokenizer(self) -> Sequence[str]:
        """NAME=PATH for each tokenizer that processors may use."""


def configure(options: BuiltinOptions) -> None:
    """Configure the built-ins of this process and `operator_tokenizer`, and replace any earlier configuration.

    Of the packages llguidance, for grammars, and tokenizers, for other processors, one may be missing.

    Raises:
        LoadFailed: a tokenizer cannot be read; the earlier configuration stays.
    """
    named = dict(option.split("=", 1) for option in options.tokenizer)
    paths = {name: Path(path) for name, path in named.items()}
    has_library = importlib.util.find_spec("tokenizers") is not None
    loaded: Mapping[str, Tokenizer | LogitportError] = (
        {name: Tokenizer(name, TokenizerFile.read(name, path)) for name, path in paths.items()}
        if has_library
        else dict.fromkeys(paths, LoadFailed(shared.MISSING))
    )
    if not has_library or importlib.util.find_spec("llguidance") is not None:
        of_grammars.configure(paths)
    shared.configure(loaded)
