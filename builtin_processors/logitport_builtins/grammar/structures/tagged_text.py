"""Structural tags: free text, in which tags hold JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logitport_builtins.grammar.structures.lark_writer import LarkWriter
from logitport_builtins.grammar.structures.param_node import short

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport_builtins.grammar.structures.lark_writer import Split
    from logitport_builtins.grammar.structures.param_node import ParamNode

_FORMAT = "triggered_tags"


@dataclass(frozen=True)
class TextTag:
    """One tag: its begin, JSON or any text, and its end.

    Attributes:
        begin: its first text, never empty.
        ends: its last text is one of these.
        schema: text of the JSON schema of what is between them; "" for nothing.
        any_text: whether there is any text between them, up to the first of `ends`.
    """

    begin: str
    ends: tuple[str, ...]
    schema: str = ""
    any_text: bool = False


@dataclass(frozen=True)
class TaggedText:
    """Free text with tags in it. Where a trigger occurs in the text, a tag that begins with it must follow.

    Attributes:
        tags: the tags.
        triggers: each tag begins with one of them.
        at_least_one: whether the output begins with a tag.
        stop_after_first: whether the output ends after the first tag.
    """

    tags: tuple[TextTag, ...]
    triggers: tuple[str, ...]
    at_least_one: bool = False
    stop_after_first: bool = False

    def schemas(self) -> list[tuple[str, str]]:
        """Return the schemas, each after its name for errors."""
        return [(f"the schema of {short(tag.begin)}", tag.schema) for tag in self.tags if tag.schema]

    def to_lark(self, split: Split) -> str:
        """Write the grammar. `split` splits a text at the special tokens of the tokenizer."""
        lark = LarkWriter(split)
        bodies = [(tag, _body(lark, tag)) for tag in self.tags]
        in_text = lark.any_of(f"{lark.free_then(self.trigger(tag.begin), tag.begin)} {body}" for tag, body in bodies)
        rest = "" if self.stop_after_first else f"{in_text}* {lark.free}"
        if self.at_least_one:
            return lark.grammar(lark.any_of(f"{lark.literal(tag.begin)} {body}" for tag, body in bodies) + " " + rest)
        return lark.grammar(rest or f"{in_text} | {lark.free}")

    def trigger(self, begin: str) -> str:
        """Return the trigger of a tag that begins like this; "" if there is none."""
        return next(filter(begin.startswith, self.triggers), "")


def read_tags(node: ParamNode, whitespace: Mapping[str, Any] | None) -> TaggedText:
    """Read the parameter `structural_tag`, in the legacy form or in xgrammar's; as an object or as JSON text.

    Args:
        node: the parameter.
        whitespace: as for `ParamNode.schema`.

    Raises:
        InvalidArgument: it is malformed, or of a format that is not supported.
    """
    root = node.parsed()
    fields = root.fields("type", "format", "structures", "triggers")
    fields["type"].one_of("structural_tag")
    if (fields["format"].value is None) == (fields["structures"].value is None):
        raise root.error("must have either 'format', or 'structures' and 'triggers'")
    if fields["format"].value is None:
        tags = (_read_structure(item, whitespace) for item in fields["structures"].items())
        return _checked(fields["triggers"], TaggedText(tuple(tags), _read_triggers(fields["triggers"])))
    kind = fields["format"].fields("type", others=True)["type"]
    if kind.value != _FORMAT:
        raise kind.error(f"must be '{_FORMAT}', not {short(kind.value)}; write other formats as `lark`")
    fields = fields["format"].fields("type", "triggers", "tags", "at_least_one", "stop_after_first")
    tags = (_read_tag(item, whitespace) for item in fields["tags"].items())
    options = {key: fields[key].flag(default=False) for key in ("at_least_one", "stop_after_first")}
    return _checked(fields["triggers"], TaggedText(tuple(tags), _read_triggers(fields["triggers"]), **options))


def _body(lark: LarkWriter, tag: TextTag) -> str:
    if tag.any_text:
        return lark.any_of(lark.free_then(end, end) for end in tag.ends)
    content = lark.json(tag.schema) if tag.schema else ""
    return lark.any_of([f"{content} {lark.any_of(map(lark.literal, tag.ends))}"])


def _read_structure(node: ParamNode, whitespace: Mapping[str, Any] | None) -> TextTag:
    fields = node.fields("begin", "schema", "end")
    end = fields["end"].text(may_be_empty=True)
    return TextTag(fields["begin"].text(), (end,), fields["schema"].schema(whitespace))


def _read_tag(node: ParamNode, whitespace: Mapping[str, Any] | None) -> TextTag:
    fields = node.fields("type", "begin", "content", "end")
    fields["type"].one_of("tag", default="tag")
    begin, content = fields["begin"].text(), fields["content"]
    ends = fields["end"].items() if isinstance(fields["end"].value, (list, tuple)) else [fields["end"]]
    kind = content.fields("type", others=True)["type"].one_of("json_schema", "const_string", "any_text")
    texts = tuple(end.text(may_be_empty=kind != "any_text") for end in ends)
    if kind == "any_text":
        content.fields("type")
        return TextTag(begin, texts, any_text=True)
    if kind == "const_string":
        return TextTag(begin + content.fields("type", "value")["value"].text(may_be_empty=True), texts)
    of_json = content.fields("type", "json_schema", "style")
    of_json["style"].one_of("json", default="json")
    return TextTag(begin, texts, of_json["json_schema"].schema(whitespace))


def _read_triggers(node: ParamNode) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item.text() for item in node.items()))


def _checked(node: ParamNode, tagged: TaggedText) -> TaggedText:
    """Check the triggers against each other and against the tags. Raises InvalidArgument."""
    begins = [tag.begin for tag in tagged.tags]
    for trigger in tagged.triggers:
        inside = [other for other in tagged.triggers if trigger in other and trigger != other]
        if inside:
            raise node.error(f"has {short(trigger)}, which is a part of {short(inside[0])}; leave one of them out")
        if not any(begin.startswith(trigger) for begin in begins):
            raise node.error(f"has {short(trigger)}, with which no tag begins")
    without = [begin for begin in begins if not tagged.trigger(begin)]
    if without:
        raise node.error(f"has none with which the tag {short(without[0])} begins; add one")
    return tagged
