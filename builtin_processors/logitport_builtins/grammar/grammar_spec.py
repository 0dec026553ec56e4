"""The grammar and the tokenizer in a request's parameters."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import orjson

from logitport_builtins.grammar.structures import ParamNode, read_tags, read_tool_calls, short, unsplit
from logitport_builtins.params import Params

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from logitport_builtins.grammar.structures import Split, TaggedText, ToolCalls


Kind = Literal["json_schema", "regex", "choice", "ebnf", "lark", "structural_tag", "tools"]

MAX_TEXT_LENGTH = 128 << 10  # of a grammar, in bytes

_FORMS = ("json_schema", "json_object", "regex", "choice", "ebnf", "lark", "structural_tag", "tools")
_JSON_OPTIONS = ("disable_any_whitespace", "whitespace_pattern")
_JSON_FORMS = ("json_schema", "json_object", "structural_tag", "tools")
_TOOL_OPTIONS = ("tool_choice", "tool_format", "parallel_tool_calls")

# Strings, comments and regular expressions in Lark, and rule options that masks cannot carry out. Unclosed strings end
# with the text: without that, a search would start at each of their characters.
_LARK_PARTS = re.compile(
    r'"(?:\\.?|[^"\\])*(?:"|\Z)|//[^\n]*|#[^\n]*|/(?:\\.?|[^/\\])*(?:/|\Z)'
    r"|(?<![\w-])(?P<option>stop|max_tokens|temperature)\s*=",
    re.DOTALL,
)
_INSTEAD_OF = {
    "stop": "it takes back ids; write `suffix` or `lazy`",
    "max_tokens": "drafts could not be taken back; bound the characters, as in /(?s:.{0,400})/",
    "temperature": "grammars do not sample; add the processor `temperature`",
}


@dataclass(frozen=True)
class GrammarSpec:
    """A grammar as a request describes it.

    Attributes:
        kind: the parameter that describes it; "json_schema" for `json_object`, too.
        text: a JSON schema, a regular expression, a JSON list of choices, EBNF, or Lark for all other kinds.
        tagged: for structural tags and tool calls, what `text` was written from.
        parts: names, kinds and texts of the parts of `text` that the request gave, for errors.
        tokenizer: the operator's name of a tokenizer; "" for the session's.
        caller: the party that owns the request; ignored in comparisons, so that callers share compiled grammars.
    """

    kind: Kind
    text: str
    tagged: TaggedText | ToolCalls | None = None
    parts: tuple[tuple[str, Kind, str], ...] = field(default=(), compare=False)
    tokenizer: str = ""
    caller: Hashable = field(default=None, compare=False)

    def with_special_tokens(self, split: Split) -> GrammarSpec:
        """Return the grammar for a tokenizer, which splits a text at its special tokens."""
        return self if self.tagged is None else replace(self, text=self.tagged.to_lark(split))


def read_grammar(params: Mapping[str, Any], caller: Hashable = None) -> GrammarSpec:
    """Read the parameters of `grammar`. Checks types and lengths; the grammar itself is not parsed.

    Raises:
        InvalidArgument: a parameter is missing, unknown or invalid, or the grammar is too long.
    """
    given = Params("grammar", params, (*_FORMS, *_JSON_OPTIONS, *_TOOL_OPTIONS, "tokenizer"))
    forms = [form for form in _FORMS if form in given]
    if len(forms) != 1:
        raise given.error(f"give exactly one of {', '.join(_FORMS)}, not {' and '.join(forms) or 'none'}")
    form = forms[0]
    others = [option for option in _TOOL_OPTIONS if option in given]
    if others and form != "tools":
        raise given.error(f"{others[0]} applies only to tools, but the grammar is of kind {form}; leave it out")
    whitespace = _read_whitespace(given, form, params)
    spec = _read(given, form, params, whitespace)
    try:
        length = len(spec.text.encode())
    except UnicodeEncodeError as error:
        raise given.error(f"{form} is not valid Unicode text: {error}") from error
    if length > MAX_TEXT_LENGTH:
        raise given.error(f"{form} is longer than {MAX_TEXT_LENGTH} bytes; write a shorter one")
    parts: list[tuple[str, Kind, str]] = []
    if spec.tagged is not None:
        parts += ((name, "json_schema", schema) for name, schema in spec.tagged.schemas())
    if whitespace and "whitespace_pattern" in whitespace:
        parts.insert(0, ("whitespace_pattern", "regex", whitespace["whitespace_pattern"]))
    tokenizer = given.string("tokenizer") if "tokenizer" in given else ""
    return replace(spec, parts=tuple(parts), tokenizer=tokenizer, caller=caller)


def _read(given: Params, form: str, params: Mapping[str, Any], whitespace: Mapping[str, Any] | None) -> GrammarSpec:
    node = partial(_node, params)
    if form == "json_schema":
        return GrammarSpec("json_schema", node(form).schema(whitespace))
    if form == "json_object":
        if params[form] is not True:
            raise given.error(f"{form} must be true (any JSON object) or absent, not {short(params[form])}")
        return GrammarSpec("json_schema", ParamNode({"type": "object"}, form).schema(whitespace))
    if form == "choice":
        return GrammarSpec("choice", _read_choice(given, form, params[form]))
    if form == "lark":
        return GrammarSpec("lark", _read_lark(given, form))
    if form == "structural_tag":
        return _tagged("structural_tag", read_tags(node(form), whitespace))
    if form == "tools":
        choice, tool_format, parallel = map(node, _TOOL_OPTIONS)
        return _tagged("tools", read_tool_calls(node(form), choice, tool_format, parallel, whitespace))
    return GrammarSpec(cast("Kind", form), given.string(form))


def _node(params: Mapping[str, Any], key: str) -> ParamNode:
    return ParamNode(params.get(key), key)


def _tagged(kind: Kind, tagged: TaggedText | ToolCalls) -> GrammarSpec:
    return GrammarSpec(kind, tagged.to_lark(unsplit), tagged)


def _read_choice(given: Params, key: str, value: Any) -> str:
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(item, str) for item in value):
        raise given.error(f"{key} must be a list of one string or more, not {short(value)}")
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        raise given.error(f"{key} holds a string that is not valid Unicode text: {error}") from error


def _read_lark(given: Params, key: str) -> str:
    text = given.string(key)
    if text.lstrip().startswith("{"):
        raise given.error(
            f"{key} must be Lark, not a JSON list of grammars; write %json {{...}} or %lark {{...}} in it"
        )
    options = (match["option"] for match in _LARK_PARTS.finditer(text))
    option = next(filter(None, options), None)
    if option:
        raise given.error(f"{key}: the rule option {option}= is not supported: {_INSTEAD_OF[option]}")
    return text


def _read_whitespace(given: Params, form: str, params: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return llguidance's options for whitespace in JSON; None if the request has none."""
    options = [option for option in _JSON_OPTIONS if option in given]
    if not options:
        return None
    if form not in _JSON_FORMS:
        raise given.error(f"{options[0]} applies only to JSON, but the grammar is of kind {form}; leave it out")
    if len(options) > 1:
        raise given.error(f"{options[0]} and {options[1]} exclude each other: leave one of them out")
    if options == ["whitespace_pattern"]:
        pattern = given.string("whitespace_pattern")
        return {"whitespace_pattern": pattern} if pattern else {"whitespace_flexible": False}
    disabled = params["disable_any_whitespace"]
    if not isinstance(disabled, bool):
        raise given.error(f"disable_any_whitespace must be true or false, not {short(disabled)}")
    return {"whitespace_flexible": not disabled}
