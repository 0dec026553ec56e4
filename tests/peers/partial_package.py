"""Imports single modules of a package that lacks most of what it depends on."""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path


class PartialPackage(MetaPathFinder, Loader):
    """Loads some modules of a package from their files. All its other modules have mocks of anything."""

    def __init__(self, folder: Path, name: str, modules: Collection[str]) -> None:
        """Load `modules`, full names, of the package `name` in `folder`."""
        self._folder, self._name, self._modules = folder, name, modules

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None):
        if fullname.partition(".")[0] != self._name:
            return None
        if fullname in self._modules:
            return spec_from_file_location(fullname, self._folder.joinpath(*fullname.split(".")).with_suffix(".py"))
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Mocks(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""

    def imported(self) -> Iterator[dict[str, ModuleType]]:
        """Import the modules, by their full names, for a fixture."""
        before = set(sys.modules)
        sys.meta_path.insert(0, self)
        try:
            yield {name: importlib.import_module(name) for name in self._modules}
        finally:
            sys.meta_path.remove(self)
            for name in set(sys.modules) - before:
                if name.partition(".")[0] == self._name:
                    del sys.modules[name]


class _Mocks(ModuleType):
    def __getattr__(self, name: str) -> MagicMock:
        if name.startswith("__"):
            raise AttributeError(name)
        mock = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, mock)
        return mock
