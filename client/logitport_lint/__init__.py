"""Reads a processor's source for lines that cannot do what their author means.

author_code  finds the functions of a processor, and what the names in them refer to
stores       finds changes of variables that outlive a call
draws        finds random numbers without a seed
discards     finds results that are never used

The code is read, not run. What cannot be read, for example code without a source file, has no findings: nothing here
refuses a processor.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from logitport_lint.author_code import AuthorFunction, Finding, functions_of
from logitport_lint.discards import discards
from logitport_lint.draws import draws
from logitport_lint.stores import stores

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["CHANGES", "DISCARD", "DRAW", "SHARED", "Finding", "find"]

# Kinds of findings.
DRAW, DISCARD = "draw", "discard"
# Changes of variables that all requests share, and that no server saves.
SHARED = frozenset({"class attribute", "global", "enclosed variable"})
# Those, and changes of the instance.
CHANGES = SHARED | {"attribute"}


def find(processor: Any, kinds: Collection[str]) -> tuple[Finding, ...]:
    """Find suspect lines of a processor and of the functions that it calls by name, in the order of the lines.

    Args:
        processor: a class, an instance or a function of any dialect, or `InDialect` or a partial of one. Another
            object, such as a string, has no findings.
        kinds: those to find: some of `DRAW`, `DISCARD` and `CHANGES`.
    """
    try:
        functions = functions_of(processor)
        seeds = any(function.seeds for function in functions)
        found = [one for function in functions for one in _found_in(function, seeds=seeds) if one.kind in kinds]
    except Exception:  # noqa: BLE001 - the author's module may hold any object, and looking at it may raise anything
        return ()
    return tuple(sorted(set(found), key=lambda one: (one.file, one.line)))


def _found_in(function: AuthorFunction, *, seeds: bool) -> chain[Finding]:
    return chain(stores(function), () if seeds else draws(function), discards(function))
