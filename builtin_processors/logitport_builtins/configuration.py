"""The operator's options for the built-ins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from logitport_builtins.grammar import tokenizers

if TYPE_CHECKING:
    from collections.abc import Sequence


class BuiltinOptions(Protocol):
    """The options that built-ins read; a server's configuration has them."""

    @property
    def tokenizer(self) -> Sequence[str]:
        """NAME=PATH for each tokenizer that grammars may use."""


def configure(options: BuiltinOptions) -> None:
    """Configure the built-ins of this process, and replace any earlier configuration.

    Raises:
        LoadFailed: a tokenizer cannot be read; the earlier configuration stays.
    """
    paths = dict(option.split("=", 1) for option in options.tokenizer)
    tokenizers.configure({name: Path(path) for name, path in paths.items()})
