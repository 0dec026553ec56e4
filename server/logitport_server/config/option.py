"""Metadata of options, besides their pydantic fields: flags, headings, and how values are written."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

_OF_TYPES = {int: "COUNT", float: "NUMBER", str: "TEXT"}
_T = TypeVar("_T")


class Metavar(NamedTuple):
    """Metadata of a type: how its values are written in the help, such as "FILE"."""

    text: str


class Unit(NamedTuple):
    """Metadata of a type: the unit of a number without one, "s", "ms" or "B"."""

    name: str


class Flag(NamedTuple):
    """Metadata of a field: its flag, such as "--json". A bool has no --no-... then."""

    name: str


class _Positional:
    """Metadata of a field: an argument without a flag."""


Argument = Annotated[_T, _Positional]


class OptionGroup(BaseModel):
    """Base of options that the help shows under one heading."""

    # A validator of each group, and of each command, would be built at its import: it takes time and memory.
    model_config = ConfigDict(defer_build=True)

    heading: ClassVar[str] = "Options"


def flag_of(name: str) -> str:
    """Return the flag of a field that has no `Flag`."""
    return "--" + name.replace("_", "-")


def heading_of(model: type[BaseModel], name: str) -> str:
    """Return the heading of a field: the heading of the class that defines it."""
    owner = next(base for base in model.__mro__ if name in inspect.get_annotations(base))
    return getattr(owner, "heading", OptionGroup.heading)


def metadata_of(field: FieldInfo) -> list[object]:
    """Return the metadata of the field, and the types and metadata in its annotation; outer ones first."""
    return [*field.metadata, *_parts(field.annotation)]


def metavar_of(field: FieldInfo) -> str | None:
    """Return how a value of the field is written in the help; None for an argument that is written as its name."""
    parts = metadata_of(field)
    if metavars := [each.text for each in parts if isinstance(each, Metavar)]:
        return metavars[0]
    if is_positional(field):
        return None
    if choices := choices_of(field):
        return f"{{{','.join(choices)}}}"
    return next((_OF_TYPES[kind] for kind in parts if isinstance(kind, type) and kind in _OF_TYPES), "VALUE")


def choices_of(field: FieldInfo) -> list[str]:
    """Return the values that the field may have, if its type lists them; otherwise nothing."""
    return [value for kind in metadata_of(field) if get_origin(kind) is Literal for value in get_args(kind)]


def is_positional(field: FieldInfo) -> bool:
    """Whether the field is an argument without a flag."""
    return _Positional in field.metadata


def is_list(field: FieldInfo) -> bool:
    """Whether the field has several values."""
    return get_origin(field.annotation) is list


def _parts(annotation: object) -> Iterator[object]:
    if get_origin(annotation) is Annotated:
        yield from annotation.__metadata__  # type: ignore[attr-defined] # of Annotated
    if get_origin(annotation) is Literal or not get_args(annotation):
        yield annotation
    else:
        for part in get_args(annotation):
            yield from _parts(part)
