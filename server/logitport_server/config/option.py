"""Metadata for the help and the completion of an option, besides its pydantic field."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, get_args, get_origin

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

_OF_TYPES = {int: "COUNT", float: "NUMBER", str: "TEXT"}


@dataclass(frozen=True)
class Metavar:
    """Metadata of a type: how its values are written in the help.

    Attributes:
        text: for example "FILE".
    """

    text: str


@dataclass(frozen=True)
class Unit:
    """Metadata of a type: the unit of a number without one.

    Attributes:
        name: "s", "ms" or "B".
    """

    name: str


class FlagOnly:
    """Metadata of a field that only a flag sets: not the environment, and not the configuration file.

    The class itself, because some versions of pydantic-settings accept only classes as metadata of a bool.
    """


class OptionGroup(BaseModel):
    """Base of options that the help shows under one heading; by default, the one of -h."""

    heading: ClassVar[str] = "options"


def heading_of(model: type[BaseModel], name: str) -> str:
    """Return the heading of a field: that of the class which defines it."""
    for base in model.__mro__:
        if name in inspect.get_annotations(base):
            return getattr(base, "heading", OptionGroup.heading)
    return OptionGroup.heading


def metadata_of(field: FieldInfo) -> list[object]:
    """Return the metadata of the field, and of the types in its annotation; outer ones first."""
    return [*field.metadata, *_metadata(field.annotation)]


def metavar_of(field: FieldInfo) -> str:
    """Return how a value of the field is written in the help."""
    for each in metadata_of(field):
        if isinstance(each, Metavar):
            return each.text
    if choices := choices_of(field):
        return f"{{{','.join(choices)}}}"
    return next((_OF_TYPES[kind] for kind in _types(field.annotation) if kind in _OF_TYPES), "VALUE")


def has_metavar(field: FieldInfo) -> bool:
    """Whether the field, or a type in its annotation, states how its values are written."""
    return any(isinstance(each, Metavar) for each in metadata_of(field))


def choices_of(field: FieldInfo) -> list[str]:
    """Return the values that the field may have, if its type lists them; otherwise nothing."""
    return [value for kind in _types(field.annotation) if get_origin(kind) is Literal for value in get_args(kind)]


def is_flag_only(field: FieldInfo) -> bool:
    """Whether only a flag sets the field."""
    return FlagOnly in field.metadata


def _metadata(annotation: object) -> Iterator[object]:
    if get_origin(annotation) is Literal:
        return
    if get_origin(annotation) is Annotated:
        yield from annotation.__metadata__  # type: ignore[attr-defined] # of Annotated
    for part in get_args(annotation):
        yield from _metadata(part)


def _types(annotation: object) -> Iterator[object]:
    """Yield the types in an annotation, without metadata, None and containers."""
    if get_origin(annotation) is Annotated:
        yield from _types(get_args(annotation)[0])
    elif get_origin(annotation) is Literal or not get_args(annotation):
        if annotation is not NoneType:
            yield annotation
    else:
        for part in get_args(annotation):
            yield from _types(part)
