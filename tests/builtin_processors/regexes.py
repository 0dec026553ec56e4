"""Small regular expressions and the possible continuations of a text, by derivatives instead of an automaton.

Source: J. A. Brzozowski, Derivatives of Regular Expressions, JACM 11 (1964).
"""

from __future__ import annotations

from functools import reduce
from typing import TypeAlias

from hypothesis import strategies as st

ALPHABET = "abc"

# A kind, then its parts. Kinds: never, empty; char: letters; then, or: left, right; star: inner.
Regex: TypeAlias = tuple  # type: ignore[type-arg]

NEVER: Regex = ("never",)
EMPTY: Regex = ("empty",)


def then(left: Regex, right: Regex) -> Regex:
    if NEVER in (left, right):
        return NEVER
    return right if left == EMPTY else left if right == EMPTY else ("then", left, right)


def either(left: Regex, right: Regex) -> Regex:
    return right if left == NEVER else left if right in (NEVER, left) else ("or", left, right)


def star(inner: Regex) -> Regex:
    return EMPTY if inner in (EMPTY, NEVER) else ("star", inner)


def nullable(regex: Regex) -> bool:
    kind, *parts = regex
    if kind == "then":
        return nullable(parts[0]) and nullable(parts[1])
    if kind == "or":
        return nullable(parts[0]) or nullable(parts[1])
    return kind in ("empty", "star")


def derive(regex: Regex, char: str) -> Regex:
    """The expression of what may follow `char`."""
    kind, *parts = regex
    if kind == "char":
        return EMPTY if char in parts[0] else NEVER
    if kind == "or":
        return either(derive(parts[0], char), derive(parts[1], char))
    if kind == "star":
        return then(derive(parts[0], char), regex)
    if kind == "then":
        first = then(derive(parts[0], char), parts[1])
        return either(first, derive(parts[1], char)) if nullable(parts[0]) else first
    return NEVER


def after(regex: Regex, text: str) -> Regex:
    return reduce(derive, text, regex)


def forced(regex: Regex) -> bool:
    """Whether every word continues with the same character."""
    return not nullable(regex) and sum(derive(regex, char) != NEVER for char in ALPHABET) == 1


def as_regex(regex: Regex) -> str:
    kind, *parts = regex
    if kind == "char":
        return parts[0] if len(parts[0]) == 1 else f"[{parts[0]}]"
    if kind == "then":
        return as_regex(parts[0]) + as_regex(parts[1])
    if kind == "or":
        return f"({as_regex(parts[0])}|{as_regex(parts[1])})"
    return f"({as_regex(parts[0])})*" if kind == "star" else "()"


def as_ebnf(regex: Regex) -> str:
    kind, *parts = regex
    if kind == "char":
        return f'"{parts[0]}"' if len(parts[0]) == 1 else f"[{parts[0]}]"
    if kind == "then":
        return f"{as_ebnf(parts[0])} {as_ebnf(parts[1])}"
    if kind == "or":
        return f"({as_ebnf(parts[0])} | {as_ebnf(parts[1])})"
    return f"({as_ebnf(parts[0])})*" if kind == "star" else '""'


CHARS = st.sampled_from(["a", "b", "c", "ab", "bc", "abc"]).map(lambda letters: ("char", letters))
REGEXES = st.recursive(
    CHARS | st.just(EMPTY),
    lambda inner: (
        st.builds(then, inner, inner)
        | st.builds(either, inner, inner)
        | inner.map(star)
        | inner.map(lambda once: either(once, EMPTY))
        | st.tuples(inner, st.integers(1, 3)).map(lambda pair: reduce(then, [pair[0]] * pair[1]))
    ),
    max_leaves=8,
)
