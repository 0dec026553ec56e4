"""The parts of the core, each in Python and compiled, for the tests that compare both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logitport.core import compiled
from logitport.core.edits import Edits
from logitport.core.history import History, PythonHistory
from logitport.ops import apply_edits
from logitport.ops.apply_edits import cpu
from logitport_builtins.bad_words import PythonBannedSequences
from logitport_builtins.constant_edits import PythonBiasList, PythonTokenList
from logitport_builtins.loop_guard.loop_breaker import PythonLoopBreaker
from logitport_builtins.no_repeat_ngram.index import PythonNGramIndex
from logitport_builtins.penalties import PythonPenalty
from logitport_builtins.thinking_budget.blocks import PythonThinkingBlocks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Implementation:
    """One of the two. A new part of the core gets a field here."""

    name: str
    history: type[PythonHistory]
    check_edits: Callable[[Edits, int, int], None]
    apply_edits: Callable[[Edits, Any], None]
    states: Mapping[str, Callable[..., Any]]


_PYTHON_STATES = {
    "TokenList": PythonTokenList,
    "BiasList": PythonBiasList,
    "NGramIndex": PythonNGramIndex,
    "ThinkingBlocks": PythonThinkingBlocks,
    "BannedSequences": PythonBannedSequences,
    "LoopBreaker": PythonLoopBreaker,
    "Penalty": PythonPenalty,
}
PYTHON = Implementation(
    "python", history=PythonHistory, check_edits=Edits.python_check, apply_edits=cpu.apply_edits, states=_PYTHON_STATES
)


def compiled_implementation() -> Implementation | None:
    """The compiled one; None where the core is not installed or not chosen."""
    if (core := compiled.core) is None:
        return None
    return Implementation(
        "compiled",
        history=History,
        check_edits=Edits.check,
        apply_edits=apply_edits,
        states={name: getattr(core, name) for name in _PYTHON_STATES},
    )
