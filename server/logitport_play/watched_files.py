"""Python files with processors, which are loaded again when they are saved."""

from __future__ import annotations

import inspect
import linecache
import sys
import time
import traceback
from itertools import count
from types import ModuleType
from typing import TYPE_CHECKING, Any

from logitport.dialects import InDialect, missing_methods, recognise
from logitport.errors import InvalidArgument
from logitport_server.reloaded import file_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_versions = count(1)


class WatchedFile:
    """A Python file. Loading it runs it, in this process.

    Attributes:
        path: absolute.
        processors: of the last version without an error, by the names of their variables.
        error: the traceback of the last version; "" if it has no error.
        version: another number after each load.

    Raises:
        InvalidArgument: there is no such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        if not self.path.is_file():
            raise InvalidArgument(f"{path}: there is no such file; write the path of a Python file with processors")
        self.processors: dict[str, Any] = {}
        self.error = ""
        self.version = 0
        self._saved: tuple[int, int, int, int] | None = None
        self._module = ""
        self.refresh()

    @property
    def name(self) -> str:
        """Its name without folders."""
        return self.path.name

    @property
    def seconds_since_saved(self) -> float:
        """Age of the last version that was loaded."""
        return max(0.0, time.time() - (self._saved[0] / 1e9 if self._saved is not None else 0.0))

    def refresh(self) -> None:
        """Load the file if it was saved since. Its last good version stays if it has an error."""
        saved = file_version(self.path)
        if saved is None or saved == self._saved:  # None: an editor replaces it
            return
        self._saved = saved
        self.version = next(_versions)
        try:
            self.processors = dict(_processors(self._load()))
            self.error = ""
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a file may raise anything, and may exit
            self.error = _trace(error, str(self.path))

    def _load(self) -> ModuleType:
        source = self.path.read_bytes()
        linecache.checkcache(str(self.path))  # tracebacks show the present lines
        folder = str(self.path.parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        # Compiled here, because Python's cache of compiled files does not see two versions of one second.
        code = compile(source, str(self.path), "exec", dont_inherit=True)
        module = ModuleType(f"{self.path.stem}_v{self.version}")
        module.__file__ = str(self.path)
        sys.modules[module.__name__] = module  # dataclasses and annotations look their module up
        try:
            exec(code, vars(module))  # noqa: S102 - the user's own file
        except BaseException:
            del sys.modules[module.__name__]
            raise
        sys.modules.pop(self._module, None)
        self._module = module.__name__
        return module


class Files:
    """All files.

    Raises:
        InvalidArgument: there is no such file, or two have one name.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._files: dict[str, WatchedFile] = {}
        for path in paths:
            file = WatchedFile(path)
            if file.name in self._files:
                raise InvalidArgument(f"{path}: another file has this name, too; rename one of them")
            self._files[file.name] = file

    def __iter__(self) -> Iterator[WatchedFile]:
        return iter(self._files.values())

    @property
    def version(self) -> int:
        """Another number after each load of a file."""
        return max((file.version for file in self), default=0)

    @property
    def paths(self) -> frozenset[str]:
        """The paths, as code of the files has them."""
        return frozenset(str(file.path) for file in self)

    def refresh(self) -> None:
        """Load the files that were saved since."""
        for file in self:
            file.refresh()

    def to_json(self) -> dict[str, Any]:
        """Load the files that were saved since, and list all: when each was saved, and its error."""
        self.refresh()
        return {
            "version": self.version,
            "files": [
                {"name": file.name, "seconds_since_saved": file.seconds_since_saved, "error": file.error}
                for file in self
            ],
        }

    def find(self, name: str) -> Any:
        """Return the processor `FILE.py:NAME`. Raises InvalidArgument if it does not exist."""
        file_name, _, variable = name.partition(":")
        file = self._files.get(file_name)
        if file is None:
            raise InvalidArgument(f"there is no processor {name!r}; add one of the list")
        if variable not in file.processors:
            known = ", ".join(file.processors) or "none"
            raise InvalidArgument(f"{file_name} has no processor {variable!r}; it has: {known}")
        return file.processors[variable]

    def path(self, name: str) -> Path:
        """Return the path of the file of `FILE.py:NAME`."""
        return self._files[name.partition(":")[0]].path


def _processors(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the processors that a module defines: classes, functions, instances, and partials of them."""
    for name, value in vars(module).items():
        if name.startswith("_") or not _defined_by(value, module):
            continue
        try:
            inner, _ = recognise(value)
        except TypeError:
            continue
        if not missing_methods(inner):
            yield name, value


def _defined_by(value: object, module: ModuleType) -> bool:
    if isinstance(value, type) or inspect.isfunction(value):
        return value.__module__ == module.__name__
    # Other objects may be made of classes of other modules.
    return isinstance(value, InDialect) or (callable(value) and not inspect.isbuiltin(value))


def _trace(error: BaseException, path: str) -> str:
    """The traceback from the file on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != path:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))
