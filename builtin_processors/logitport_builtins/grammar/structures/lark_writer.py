"""Writes grammars in llguidance's Lark from literal texts, JSON schemas and free text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable

_FREE = "FREE"
_ANY = "/(?s:.*)/"
_BLANKS = r"/[\s\x1c-\x1f]*/"  # all that str.strip() removes, as parsers of tool calls do


class SpecialToken(NamedTuple):
    """A special token of a tokenizer: its id and its text."""

    token_id: int
    text: str


Split = Callable[[str], Sequence["str | SpecialToken"]]


def unsplit(text: str) -> Sequence[str | SpecialToken]:
    """Treat a text as one without special tokens."""
    return [text] if text else []


class LarkWriter:
    """Collects the rules of one grammar. Each method returns an expression for use in a rule.

    Free text holds no special token of the tokenizer: llguidance's regular expressions do not match them. It does not
    spell a special token of a trigger by other ids either, because engines look for the text of tool calls.

    Args:
        split: splits a text at the special tokens of the tokenizer.
    """

    free = _FREE

    def __init__(self, split: Split) -> None:
        self._split = split
        self._rules: dict[str, str] = {}  # names by their rules, so that equal rules are one
        self._unspelled: dict[str, None] = {}

    def literal(self, text: str) -> str:
        """Match this text, with its special tokens as ids. It may be empty."""
        return _sequence(self._split(text))

    def json(self, schema: str) -> str:
        """Match a JSON value of this schema, a JSON text."""
        return f"%json {schema}"

    def any_of(self, expressions: Iterable[str]) -> str:
        """Match one of these expressions."""
        return self._named("any", " | ".join(expressions))

    def free_then(self, trigger: str, text: str) -> str:
        """Match free text up to the first `trigger`, and then `text`, which begins with the trigger.

        A trigger that begins with a special token is that token, however the trigger goes on.
        """
        first, *rest = self._split(text)
        if isinstance(first, SpecialToken):
            self._unspelled[first.text] = None
            return _sequence([first, *rest], before=_FREE)
        if len(first) < len(trigger):  # a special token ends the free text
            special = next(piece.text for piece in rest if isinstance(piece, SpecialToken))
            self._unspelled[first + special] = None
            return _sequence(rest, before=self._named("FREE", f"{_FREE} {_quoted(first)}"))
        until = self._named("until", f"{_FREE} {_quoted(trigger)}", "[lazy]")
        return _sequence([first[len(trigger) :], *rest], before=until)

    def free_without(self, trigger: str) -> str:
        """Match free text in which the trigger does not occur."""
        self._unspelled[trigger] = None
        return _FREE

    def free_not_at_start(self, text: str) -> str:
        """Match free text whose first character, after whitespace, is not the first one of `text`."""
        first = self._split(text)[0]
        if isinstance(first, SpecialToken):
            return _FREE
        return self._named("FREE", f"{_FREE} & ~({_BLANKS} {_quoted(first[0])} {_FREE})")

    def grammar(self, start: str) -> str:
        """Return the grammar whose outputs match this expression."""
        spelled = " | ".join(map(_quoted, self._unspelled))
        free = f"{_FREE}: {_ANY} & ~({_ANY} ({spelled}) {_ANY})" if spelled else f"{_FREE}: {_ANY}"
        return "\n".join([f"start: {start}", free, *(name + rule for rule, name in self._rules.items()), ""])

    def _named(self, prefix: str, body: str, options: str = "") -> str:
        """Return the name of a rule, or of a terminal if the prefix is in capitals."""
        return self._rules.setdefault(f"{options}: {body}", f"{prefix}_{len(self._rules)}")


def _sequence(pieces: Iterable[str | SpecialToken], before: str = "") -> str:
    written = (
        f"<[{piece.token_id}]>" if isinstance(piece, SpecialToken) else _quoted(piece) for piece in pieces if piece
    )
    return " ".join([*([before] if before else []), *written]) or '""'


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode().replace("\x7f", "\\u007f")  # JSON allows this character, Lark does not
