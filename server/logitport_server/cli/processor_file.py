"""Processors in Python files of an author, and in files of payloads."""

from __future__ import annotations

import importlib.util
import sys
from functools import reduce
from pathlib import Path
from types import FunctionType
from typing import Any

from logitport.dialects import missing_methods, recognise
from logitport.payload import seal_program
from logitport.payload.portability import travels_by_value
from logitport_server.lifecycle.start_errors import StartupError, UsageError, proposal

# Field 1 of the message Program, which canonical bytes begin with. No text begins with it.
_PROGRAM_BEGINS = b"\x08"


def read_payload(path: str) -> str:
    """Return the text of a file, or of stdin for "-". Canonical bytes of a program become text. Raises StartupError."""
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return seal_program(content, "") if content.startswith(_PROGRAM_BEGINS) else content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"cannot read a payload from {path}: {error}") from error


def read_processor(source: str) -> Any:
    """Return the class or function that FILE:CLASS names, or the text of the payload in FILE; "-" for stdin.

    The file is executed like a module that is imported from its folder.

    Raises:
        UsageError: `source` is neither a file nor FILE:CLASS.
        StartupError: the file cannot be read or executed, or has no such class.
    """
    file, separator, name = source.rpartition(":")
    if not separator or (source == "-" or Path(source).is_file()):
        if source != "-" and source.endswith(".py"):
            raise UsageError(f"{source} is a Python file; name its class, too, as in {source}:CLASS")
        return read_payload(source)
    if not (file and all(part.isidentifier() for part in name.split("."))):
        raise UsageError(f"{source!r} is not FILE:CLASS; write, for example, ban.py:BanFrench")
    module = _execute(Path(file))
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError:
        names = [one for one in vars(module) if not one.startswith("_")]
        raise StartupError(f"{file} has no {name}{proposal(name, names)}") from None


def read_processors(source: str) -> dict[str, Any]:
    """Return the classes and functions of a Python file that are processors, by their names.

    The file is executed like a module that is imported from its folder.

    Raises:
        StartupError: the file cannot be read or executed, or has no processor.
    """
    module = _execute(Path(source))
    found = {name: one for name, one in vars(module).items() if _is_processor(one, module.__name__)}
    if not found:
        raise StartupError(f"{source} defines no processor; derive a class from logitport.EditProcessor")
    return found


def _is_processor(value: Any, module: str) -> bool:
    if not isinstance(value, type | FunctionType) or value.__module__ != module or value.__name__.startswith("_"):
        return False
    try:
        return not missing_methods(recognise(value)[0])
    except TypeError:
        return False


def _execute(path: Path) -> Any:
    name = path.stem
    if name in sys.modules or not travels_by_value(name, name):
        raise StartupError(f"{path}: there is another module {name}, which would be used in its place; rename the file")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise StartupError(f"{path} is no Python file; write FILE.py:CLASS")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))  # as Python does for a script
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise StartupError(f"cannot execute {path}: {type(error).__name__}: {error}{_line(error, path)}") from error
    return module


def _line(error: BaseException, path: Path) -> str:
    """Return the last line of the file that the error passed through, as text, or ""."""
    line, at = "", error.__traceback__
    while at is not None:
        if Path(at.tb_frame.f_code.co_filename).name == path.name:
            line = f" (line {at.tb_lineno})"
        at = at.tb_next
    return line
