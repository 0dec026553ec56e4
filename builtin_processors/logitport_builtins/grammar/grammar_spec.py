"""The grammar and the tokenizer in a request's parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import orjson

from logitport_builtins.params import Params

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping


Kind = Literal["json_schema", "regex", "choice", "ebnf"]

MAX_TEXT_LENGTH = 128 << 10  # of a grammar, in bytes

_ANY_OBJECT = '{"type":"object"}'
_FORMS = ("json_schema", "json_object", "regex", "choice", "ebnf")
_JSON_OPTIONS = ("disable_any_whitespace", "whitespace_pattern")


@dataclass(frozen=True)
class GrammarSpec:
    """A grammar as a request describes it.

    Attributes:
        kind: language of `text`.
        text: a JSON schema, a regular expression, a JSON list of choices, or EBNF.
        whitespace: regular expression for whitespace between JSON tokens; "" for none, None for any.
        tokenizer: the operator's name of a tokenizer; "" for the session's.
        caller: the party that owns the request; ignored in comparisons, so that callers share compiled grammars.
    """

    kind: Kind
    text: str
    whitespace: str | None = None
    tokenizer: str = ""
    caller: Hashable = field(default=None, compare=False)


def read_grammar(params: Mapping[str, Any], caller: Hashable = None) -> GrammarSpec:
    """Read the parameters of `grammar`. Checks types and lengths; the grammar itself is not parsed.

    Raises:
        InvalidArgument: a parameter is missing, unknown or invalid, or the grammar is too long.
    """
    given = Params("grammar", params, (*_FORMS, *_JSON_OPTIONS, "tokenizer"))
    forms = [form for form in _FORMS if form in given]
    if len(forms) != 1:
        raise given.error(f"give exactly one of {', '.join(_FORMS)}, not {' and '.join(forms) or 'none'}")
    kind, text = _READERS[forms[0]](given, forms[0], params[forms[0]])
    whitespace = _read_whitespace(given, kind, params)
    try:
        length = len(text.encode()) + len((whitespace or "").encode())
    except UnicodeEncodeError as error:
        raise given.error(f"{forms[0]} is not valid Unicode text: {error}") from error
    if length > MAX_TEXT_LENGTH:
        raise given.error(f"{forms[0]} is longer than {MAX_TEXT_LENGTH} bytes; write a shorter one")
    tokenizer = given.string("tokenizer") if "tokenizer" in given else ""
    return GrammarSpec(kind, text, whitespace, tokenizer, caller)


def _read_schema(given: Params, key: str, value: Any) -> tuple[Kind, str]:
    try:
        schema = orjson.loads(value) if isinstance(value, str) else value
        text = orjson.dumps(schema).decode()
    except (TypeError, ValueError) as error:
        raise given.error(f"{key} is not JSON: {error}") from error
    if not isinstance(schema, (dict, bool)):
        raise given.error(f"{key} must be a JSON schema, an object, or the text of one, not {_short(value)}")
    if schema is False:
        raise given.error(f"{key} is false, which nothing matches; give another schema")
    return "json_schema", "{}" if schema is True else text


def _read_json_object(given: Params, key: str, value: Any) -> tuple[Kind, str]:
    if value is not True:
        raise given.error(f"{key} must be true (any JSON object) or absent, not {_short(value)}")
    return "json_schema", _ANY_OBJECT


def _read_choice(given: Params, key: str, value: Any) -> tuple[Kind, str]:
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(item, str) for item in value):
        raise given.error(f"{key} must be a list of one string or more, not {_short(value)}")
    try:
        return "choice", orjson.dumps(value).decode()
    except TypeError as error:
        raise given.error(f"{key} holds a string that is not valid Unicode text: {error}") from error


def _read_regex(given: Params, key: str, value: Any) -> tuple[Kind, str]:  # noqa: ARG001 - same signature as the other readers
    return "regex", given.string(key)


def _read_ebnf(given: Params, key: str, value: Any) -> tuple[Kind, str]:  # noqa: ARG001 - as above
    return "ebnf", given.string(key)


_READERS: Mapping[str, Callable[[Params, str, Any], tuple[Kind, str]]] = {
    "json_schema": _read_schema,
    "json_object": _read_json_object,
    "regex": _read_regex,
    "choice": _read_choice,
    "ebnf": _read_ebnf,
}


def _read_whitespace(given: Params, kind: Kind, params: Mapping[str, Any]) -> str | None:
    options = [option for option in _JSON_OPTIONS if option in given]
    if not options:
        return None
    if kind != "json_schema":
        raise given.error(f"{options[0]} applies only to JSON, but the grammar is of kind {kind}; leave it out")
    if len(options) > 1:
        raise given.error(f"{options[0]} and {options[1]} exclude each other: leave one of them out")
    if options == ["whitespace_pattern"]:
        return given.string("whitespace_pattern")
    disabled = params["disable_any_whitespace"]
    if not isinstance(disabled, bool):
        raise given.error(f"disable_any_whitespace must be true or false, not {_short(disabled)}")
    return "" if disabled else None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:100] + " [...]"
