"""Random structural tags, and plain checks of texts with them."""

from __future__ import annotations

import json
import re
from itertools import product
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from tests.builtin_processors.structures.outputs import SPECIAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# Schemas of contents, and plain checks.
CONTENTS: dict[str, tuple[dict[str, Any], Callable[[Any], bool]]] = {
    "object": (
        {
            "type": "object",
            "properties": {"n": {"$ref": "#/$defs/small"}, "ok": {"type": "boolean"}},
            "required": ["n"],
            "additionalProperties": False,
            "$defs": {"small": {"type": "integer", "minimum": 0, "maximum": 120}},
        },
        lambda value: (
            isinstance(value, dict)
            and {"n"} <= set(value) <= {"n", "ok"}
            and type(value["n"]) is int
            and 0 <= value["n"] <= 120
            and isinstance(value.get("ok", True), bool)
        ),
    ),
    "list": (
        {"type": "array", "items": {"enum": ["a", "<f="]}, "maxItems": 3},
        lambda value: isinstance(value, list) and len(value) <= 3 and set(value) <= {"a", "<f="},
    ),
}
VALUES = {"object": ['{"n":7}', '{"n": 120, "ok": true}', '{\n  "n": 0\n}'], "list": ["[]", '["a", "<f="]']}
NAMES = ["a", "ab", "b"]
# Begin, trigger, end, and the text where a tag must begin: of text, of special tokens, of a special token after text.
SHAPES = [
    ("<f={}>", "<f=", "</f>", "<f="),
    ("<f {}>", "<f", "", "<f"),
    ("<tool_call>\n{}:", "<tool_call>", "</tool_call>", "<tool_call>"),
    ("[TOOL_CALLS]{} ", "[TOOL_CALLS]", "\n", "[TOOL_CALLS]"),
    ("!<|call|>{}", "!<|call|>", "<|call|>", "!<|call|>"),
    ("<tool_call>{}", "<tool", "\n</tool_call>", "<tool_call>"),
]
STRUCTURES = st.builds(
    lambda shapes, contents, one, stop: (shapes, contents, one, stop),
    st.sampled_from([[0], [2], [3], [4], [5], [0, 2], [0, 3], [3, 4], [1, 2, 3]]),
    st.lists(st.sampled_from(["object", "list", "any", "const"]), min_size=3, max_size=3),
    st.booleans(),
    st.booleans(),
)


class Tagged:
    """Structural tags of some shapes and contents: the parameter, and a plain check of texts."""

    def __init__(self, shapes: list[int], contents: list[str], at_least_one: bool, stop_after_first: bool) -> None:
        self.at_least_one, self.stop_after_first = at_least_one, stop_after_first
        self.triggers, self.found = ([SHAPES[shape][at] for shape in shapes] for at in (1, 3))
        self.tags: list[tuple[str, str, str]] = []
        for (begin, _, end, _), (name, content) in product(
            (SHAPES[shape] for shape in shapes), zip(NAMES, contents, strict=True)
        ):
            self.tags.append((begin.format(name), "object" if content == "any" and not end else content, end))

    @property
    def param(self) -> dict[str, Any]:
        tags = [
            {"type": "tag", "begin": begin, "content": self._content(content), "end": end}
            for begin, content, end in self.tags
        ]
        options = {"at_least_one": self.at_least_one, "stop_after_first": self.stop_after_first}
        tags_format = {"type": "triggered_tags", "triggers": self.triggers, "tags": tags, **options}
        return {"type": "structural_tag", "format": tags_format}

    def _content(self, content: str) -> dict[str, Any]:
        if content == "any":
            return {"type": "any_text"}
        if content == "const":
            return {"type": "const_string", "value": "yes"}
        return {"type": "json_schema", "json_schema": CONTENTS[content][0], "style": "json", "excludes": []}

    def is_output(self, text: str, at: int = 0, *, tags_before: int = 0) -> bool:
        """Whether the rest of a text is free text with whole tags."""
        if self.stop_after_first and tags_before:
            return at == len(text)
        found = [text.find(trigger, at) for trigger in self.found]
        begin = min((one for one in found if one >= 0), default=None)
        if self.at_least_one and not tags_before:
            begin = at
        if is_special(text[at:begin]):
            return False
        if begin is None:
            return True
        return any(
            self.is_output(text, end, tags_before=tags_before + 1)
            for tag in self.tags
            for end in ends(text, begin, tag)
        )


def is_special(text: str) -> bool:
    return any(special in text for special in SPECIAL)


def ends(text: str, at: int, tag: tuple[str, str, str]) -> Iterator[int]:
    """Yield where a tag ends that is at this index of a text."""
    begin, content, end = tag
    if not text.startswith(begin, at):
        return
    at += len(begin)
    if content == "any":
        if (found := text.find(end, at)) >= 0 and not is_special(text[at:found]):
            yield found + len(end)
        return
    if content == "const":
        whole = text.startswith("yes", at)
        at += 3
    else:
        try:
            value, after = json.JSONDecoder().raw_decode(text, at)
        except ValueError:
            return
        whole = CONTENTS[content][1](value) and not re.search(r"(\n\s*){3}", text[at:after])
        at = after
    if whole and text.startswith(end, at):
        yield at + len(end)
