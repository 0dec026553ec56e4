"""Errors in options, one line each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from logitport_server.command_line.fields import field_of, is_positional, model_in
from logitport_server.config.sources import flag_of, key_of, origins, variable_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import BaseModel, ValidationError


def problems(error: ValidationError, model: type[BaseModel], flags: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each invalid value, with the flag, variable or file that it comes from.

    Args:
        error: of the validation.
        model: the class of the options.
        flags: values of the command line, by field.
    """
    found = origins(model, flags)
    for problem in error.errors():
        message = problem["msg"].removeprefix("Value error, ")
        owner, name = _field_in(problem["loc"], model)
        if not name:
            yield message
            continue
        if is_positional(field_of(owner, name)):
            yield f"{name.upper()}: {message}"
            continue
        origin = found.get(name, flag_of(name))
        if origin == variable_of(name) and problem["type"] == "list_type":
            example = problem["input"] if isinstance(problem["input"], str) else "..."
            message = f"write a JSON list, such as {json.dumps([example])}"
        elif origin != variable_of(name) and not origin.startswith("--"):  # a file
            origin = f"{origin}: {key_of(name)}"
        yield f"{origin}: {message}"


def _field_in(location: tuple[int | str, ...], model: type[BaseModel]) -> tuple[type[BaseModel], str]:
    """Return the class and the field of a location, without what is inside the field; "" if it has no field."""
    for part in location:
        inner = model_in(field_of(model, str(part)).annotation)
        if inner is None:
            return model, str(part)
        model = inner
    return model, ""
