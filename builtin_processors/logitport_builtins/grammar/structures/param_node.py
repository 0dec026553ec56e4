"""Reads nested JSON parameters. Each error names the path of the value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from logitport.errors import InvalidArgument
from logitport_builtins.grammar.structures import json_whitespace

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_SHOWN = 100
_MAX_ITEMS = 256
# The fields of OpenAI's response_format and of its json_schema. As a schema, they would allow any JSON.
_INNER = frozenset({"schema", "json_schema"})
_RESPONSE_FORMAT = _INNER | {"type", "name", "description", "strict"}
_MAX_CHARACTERS = 4096  # of a text of a tag or a call


class ParamNode:
    """A value inside a parameter.

    Attributes:
        value: the value; None if it is absent.
        path: where it is, such as `tools[0].function`.
    """

    def __init__(self, value: Any, path: str) -> None:
        self.value = value
        self.path = path

    def error(self, message: str) -> InvalidArgument:
        """Create the exception for a `message` about this value."""
        return InvalidArgument(f"grammar: {self.path} {message}")

    def parsed(self) -> ParamNode:
        """Return the value that a JSON text holds; another value as it is. Raises InvalidArgument."""
        if not isinstance(self.value, str):
            return self
        try:
            return ParamNode(orjson.loads(self.value), self.path)
        except ValueError as error:
            raise self.error(f"is not JSON: {error}") from error

    def fields(self, *keys: str, others: bool = False) -> dict[str, ParamNode]:
        """Read the fields of an object.

        Args:
            keys: the known fields; absent ones are nodes without value.
            others: whether further fields are ignored. By default only unset ones are: null, false and [].

        Raises:
            InvalidArgument: not an object, or an unknown field.
        """
        if not isinstance(self.value, dict):
            raise self.error(f"must be an object, not {short(self.value)}" if self.value is not None else "is missing")
        unknown = [key for key, value in self.value.items() if key not in keys and value not in (None, False, [])]
        if unknown and not others:
            raise self.error(f"has {short(unknown[0])}, which is not supported; supported: {', '.join(keys)}")
        return {key: ParamNode(self.value.get(key), f"{self.path}.{key}") for key in keys}

    def items(self) -> list[ParamNode]:
        """Read a list of one item or more. Raises InvalidArgument."""
        if not isinstance(self.value, (list, tuple)) or not self.value:
            raise self.error(f"must be a list of one item or more, not {short(self.value)}")
        if len(self.value) > _MAX_ITEMS:
            raise self.error(f"has {len(self.value)} items; the limit is {_MAX_ITEMS}")
        return [ParamNode(item, f"{self.path}[{at}]") for at, item in enumerate(self.value)]

    def text(self, *, may_be_empty: bool = False) -> str:
        """Read a string. Raises InvalidArgument."""
        if not isinstance(self.value, str):
            raise self.error(f"must be a string, not {short(self.value)}" if self.value is not None else "is missing")
        if not self.value and not may_be_empty:
            raise self.error("is empty; it must have at least one character")
        if len(self.value) > _MAX_CHARACTERS:
            raise self.error(f"has {len(self.value)} characters; the limit is {_MAX_CHARACTERS}")
        try:
            self.value.encode()
        except UnicodeEncodeError as error:
            raise self.error(f"is not valid Unicode text: {error}") from error
        return self.value

    def one_of(self, *known: str, default: str | None = None) -> str:
        """Read one of these strings; the default if it is absent. Raises InvalidArgument."""
        value = default if self.value is None else self.value
        if value not in known:
            raise self.error(f"must be one of {', '.join(known)}, not {short(value)}")
        return str(value)

    def flag(self, *, default: bool) -> bool:
        """Read a boolean. Raises InvalidArgument."""
        if not isinstance(self.value, (bool, type(None))):
            raise self.error(f"must be true or false, not {short(self.value)}")
        return default if self.value is None else self.value

    def schema(self, whitespace: Mapping[str, Any] | None) -> str:
        """Read a JSON schema, an object or the text of one, and return its text with llguidance's options.

        Args:
            whitespace: options for whitespace between JSON tokens; None bounds it, unless the schema has options.

        Raises:
            InvalidArgument: not JSON, not a schema, or one that nothing matches.
        """
        schema = self.parsed().value
        if not isinstance(schema, (dict, bool)):
            raise self.error(f"must be a JSON schema, an object, or the text of one, not {short(self.value)}")
        if schema is False:
            raise self.error("is false, which nothing matches; give another schema")
        schema = {} if schema is True else schema
        if schema.keys() <= _RESPONSE_FORMAT and not _INNER.isdisjoint(schema):
            raise self.error(
                "has the form of OpenAI's response_format: give the schema alone, the object under 'schema'"
            )
        own = schema.get("x-guidance", {})
        if not isinstance(own, dict):
            raise self.error(f"has an 'x-guidance' that is not an object: {short(own)}")
        if whitespace is None:
            whitespace = {} if any(key in own for key in json_whitespace.OPTIONS) else json_whitespace.bound()
        try:
            return orjson.dumps({**schema, "x-guidance": {"coerce_one_of": True, **own, **whitespace}}).decode()
        except (TypeError, ValueError) as error:
            raise self.error(f"is not JSON: {error}") from error


def short(value: Any) -> str:
    """Return a value as an error message shows it."""
    try:
        text = repr(value)
    except RecursionError:
        return "a deeply nested value"
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + " [...]"
