"""The tags of a model, read from the chat template of its tokenizer."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from logitport.errors import InvalidArgument
from logitport.phases.phase_tags import PhaseTags, harmony_tags, thinking_tags

if TYPE_CHECKING:
    from logitport.tokenizers import Tokenizer

# How models mark their thinking. `<|channel>` is Gemma's, which has no other channel than thoughts.
_PAIRS = (
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|channel>", "<channel|>"),
)
_TOOL_CALL = ("<tool_call>", "</tool_call>")
_HARMONY = ("<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")


def tags_in(template: str) -> tuple[str, ...]:
    """Return the texts that mark thinking in a chat template: a start and an end tag, or those of harmony's channels.

    A template often names only one of the two: it opens the block of the present answer, or removes earlier ones.

    Raises:
        InvalidArgument: it has none that are known, or those of several models.
    """
    found: list[tuple[str, ...]] = [pair for pair in _PAIRS if any(tag in template for tag in pair)]
    if all(tag in template for tag in (*_HARMONY, "analysis", "commentary", "final")):
        found.append(_HARMONY)
    if len(found) == 1:
        return found[0]
    if found:
        raise InvalidArgument(f"its chat template has the tags of several models: {found[0][0]} and {found[1][0]}")
    raise InvalidArgument(
        f"its chat template has no tags of thinking that are known: {', '.join(start for start, _ in _PAIRS)}, or the "
        "channels of harmony"
    )


@lru_cache(8)
def tags_of_tokenizer(tokenizer: Tokenizer) -> PhaseTags:
    """Return the tags in the chat template of an operator's tokenizer.

    Where an output starts follows from its prompt: a template that opens the block there leaves it open.

    Raises:
        InvalidArgument: there is no template, or no tags that are known; or a tag has no id of its own.
    """
    try:
        if not tokenizer.chat_template:
            raise InvalidArgument("it has no chat template beside it")
        texts = tags_in(tokenizer.chat_template)
        if texts is _HARMONY:
            return _harmony(tokenizer)
        start, end = (_id(tokenizer, text) for text in texts)
        newline = tokenizer.encode("\n", add_special_tokens=False)
        tags = thinking_tags([start], [end], newline[0] if len(newline) == 1 else None)
        has_tool_call = all(text in tokenizer.chat_template for text in _TOOL_CALL)
        if not has_tool_call or None in tokenizer.convert_tokens_to_ids(list(_TOOL_CALL)):
            return tags
        return tags.with_tool_call(*([_id(tokenizer, text)] for text in _TOOL_CALL))
    except InvalidArgument as error:
        raise InvalidArgument(f"tokenizer {tokenizer.name!r}: {error.message}") from None


def _harmony(tokenizer: Tokenizer) -> PhaseTags:
    channel, message, *ends = (_id(tokenizer, text) for text in _HARMONY)
    names = [tokenizer.encode(name, add_special_tokens=False) for name in ("analysis", "final", "commentary")]
    return harmony_tags(channel, message, names, ends)


def _id(tokenizer: Tokenizer, text: str) -> int:
    token_id = tokenizer.convert_tokens_to_ids(text)
    if not isinstance(token_id, int):
        raise InvalidArgument(f"its chat template has the tag {text}, for which it has no single id")
    return token_id
