"""Reads the programs' files, each at its first use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources

from logitport_builtins import sampling
from logitport_programs.program import Program

FOLDER = resources.files("logitport_builtins.programs")
SUFFIX = ".program"

CLASSES = {getattr(sampling, name).builtin_name: getattr(sampling, name) for name in sampling.__all__}


class _Files(Mapping[str, Program]):
    """The programs by the names that requests use."""

    def __getitem__(self, name: str) -> Program:
        if name not in CLASSES:
            raise KeyError(name)
        return _read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(CLASSES)

    def __len__(self) -> int:
        return len(CLASSES)

    def __contains__(self, name: object) -> bool:
        return name in CLASSES


@cache
def _read(name: str) -> Program:
    return Program.from_bytes(FOLDER.joinpath(name + SUFFIX).read_bytes())


BUILTIN_PROGRAMS: Mapping[str, Program] = _Files()
