"""The operator's tokenizers: from the server, which reads their files, to zygotes, whose workers share them.

A tokenizer of 150,000 ids takes 0.2 GB. The zygote creates it before it forks, so that workers share its memory. The
files travel in sealed memory, because the sandbox has no files of the host.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

from logitport import tokenizers
from logitport.errors import LogitportError, PayloadError
from logitport.tokenizers import TokenizerFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logitport.tokenizers import Tokenizer


def open_tokenizers(options: Iterable[str]) -> dict[str, int]:
    """Read tokenizers into sealed memory. Returns its descriptors by the operator's names.

    Raises:
        PayloadError: a file cannot be read.
    """
    opened: dict[str, int] = {}
    try:
        for option in options:
            name, _, path = option.partition("=")
            opened[name] = _sealed(TokenizerFile.read(name, Path(path)).pack())
    except LogitportError:
        close_tokenizers(opened.values())
        raise
    return opened


def close_tokenizers(descriptors: Iterable[int]) -> None:
    """Close the descriptors of `open_tokenizers`. Processes that have read them are not affected."""
    for descriptor in descriptors:
        os.close(descriptor)


def load_tokenizers(named: Sequence[str]) -> None:
    """In a zygote: create the tokenizers, for all workers that it will fork, and close their descriptors.

    A tokenizer that this Python cannot load is reported to the processors that use it.

    `named` has NAME=FD for each.
    """
    loaded: dict[str, Tokenizer | LogitportError] = {}
    for option in named:
        name, _, descriptor = option.partition("=")
        try:
            loaded[name] = tokenizers.Tokenizer(name, TokenizerFile.unpack(_contents(int(descriptor))))
        except PayloadError as error:
            loaded[name] = error
    tokenizers.configure(loaded)


def _sealed(data: bytes) -> int:
    descriptor = os.memfd_create("logitport-tokenizer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def _contents(descriptor: int) -> bytes:
    try:
        with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapped:
            return mapped[:]
    finally:
        os.close(descriptor)
