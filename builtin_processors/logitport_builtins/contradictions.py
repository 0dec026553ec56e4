"""Chains whose parameters contradict each other, so that a row would have no id left."""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from logitport.errors import InvalidArgument, LogitportError
from logitport.phases import PHASES, PhaseTracker, known_tags, read_phase
from logitport.phases.phase_tags import ANSWER, THINKING, TOOL_CALL
from logitport.processors import EditProcessor
from logitport.tokenizers import operator_tokenizer
from logitport_builtins.bad_words import BadWords
from logitport_builtins.disallowed_tokens import DisallowedTokens
from logitport_builtins.grammar import Grammar
from logitport_builtins.loop_guard import LoopGuard
from logitport_builtins.loop_guard.rule import read_rule
from logitport_builtins.min_tokens import MinTokens
from logitport_builtins.thinking_budget import ThinkingBudget, ThinkingLimit
from logitport_builtins.thinking_budget.blocks import tracked_tags
from logitport_builtins.thinking_budget.thinking_limit import read_limit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from logitport.core.history import History
    from logitport.phases import PhaseChoice
    from logitport_builtins.thinking_budget import ThinkingTags

# Grammars of texts, which no special token is a part of.
_OF_TEXTS = ("json_schema", "json_object", "regex", "choice", "ebnf")


class _Forced(NamedTuple):
    """The parameter and the processor that force an id, in a block with so many ids or more."""

    key: str
    closer: str
    budget: int


def check_chain(
    chain: Sequence[tuple[object, Mapping[str, Any]]],
    history: History,
    tokenizer_id: str,
    eos_token_ids: Iterable[int],
) -> None:
    """Check the chain of a request: its processors with their parameters, which each of them accepts.

    A forced id discards the edits of earlier processors, so only later ones can deny it. `eos_token_ids` are
    the session's.

    Raises:
        InvalidArgument: a later processor denies an id that `thinking_budget`, or `loop_guard` with `end_thinking`,
            forces. The message names both parameters.
        InvalidArgument: `loop_guard` with `end` allows only ids that other processors deny. The message names the
            parameters.
        InvalidArgument: a grammar holds in the thinking block that the history leaves open.
        InvalidArgument: a grammar of tools would not hold in their calls.
        InvalidArgument: a processor that closes thinking blocks holds in a phase without them.
    """
    forced: dict[int, _Forced] = {}
    closers: dict[ThinkingTags, str] = {}
    for processor, params in chain:  # each is read once, however many others there are
        if forced:
            _check_later(forced, processor, params)
        limit = _closing_limit(processor, params, tokenizer_id)
        if limit is not None:
            name = getattr(processor, "builtin_name", "")
            _check_phase(name, limit.tags, params, tokenizer_id)
            for one, key in _forced(limit, "preset" in params):
                if one not in forced or limit.budget < forced[one].budget:
                    forced[one] = _Forced(key, name, limit.budget)
            closers[limit.tags] = name
    _check_ends(chain, frozenset(eos_token_ids))
    grammars = [params for processor, params in chain if isinstance(processor, Grammar)]
    for params in grammars:
        _check_tools(params, tokenizer_id)
    texts = [own for own in map(_of_thinking, grammars) if not own.keys().isdisjoint(_OF_TEXTS)]
    for tags, name in closers.items() if texts else ():
        if _is_open(tags, history):
            for own in texts:
                _check_grammar(name, tags, own, tokenizer_id)


def _check_phase(closer: str, tags: ThinkingTags, params: Mapping[str, Any], tokenizer_id: str) -> None:
    choice = read_phase(params)[0]
    if choice.phase in (None, THINKING):
        return
    known = choice.tags or known_tags(tokenizer_id)
    # Other tags may mark blocks within the phase.
    if known is not None and any(tag.begins == THINKING and tag.ids == tags.start for tag in known.tags):
        raise InvalidArgument(
            f"{closer} closes thinking blocks, and no thinking is in the phase {params['phase']}: leave phase out"
        )


def _check_tools(params: Mapping[str, Any], tokenizer_id: str) -> None:
    choice, own = read_phase(params)
    if "tools" not in own or choice.phase != ANSWER or choice.joins_calls:
        return
    tags = choice.tags or known_tags(tokenizer_id)
    if tags is not None and any(tag.begins == TOOL_CALL for tag in tags.tags):
        raise InvalidArgument(
            "grammar: a call of a tool is a phase of its own for this model, so tools have no effect in the phase "
            "answer: set phase to after_thinking"
        )


def _closing_limit(processor: object, params: Mapping[str, Any], tokenizer_id: str) -> ThinkingLimit | None:
    """The limit of a processor that closes thinking blocks; None for another."""
    if type(processor) is ThinkingBudget:
        limit = read_limit(read_phase(params)[1])
    elif type(processor) is LoopGuard and (tags := read_rule(read_phase(params)[1]).tags) is not None:
        limit = ThinkingLimit(0, tags)
    else:
        return None
    with suppress(LogitportError):  # the processor reports it when it starts
        return limit.with_ids_of(lambda: operator_tokenizer(tokenizer_id))
    return limit


def _is_open(tags: ThinkingTags, history: History) -> bool:
    return PhaseTracker(history, tracked_tags(tags.start, tags.end), ANSWER).phase == THINKING


def _check_grammar(closer: str, tags: ThinkingTags, own: Mapping[str, Any], tokenizer_id: str) -> None:
    try:
        has_text = operator_tokenizer(own.get("tokenizer") or tokenizer_id).texts().of(tags.end[0])
    except LogitportError:
        return
    if not has_text:
        raise InvalidArgument(
            f"thinking_end_ids of {closer} end the open thinking block with token id {tags.end[0]}, which the "
            "grammar does not allow: set its phase to answer, so that it begins after the block"
        )


def _check_later(forced: Mapping[int, _Forced], processor: object, params: Mapping[str, Any]) -> None:
    if not isinstance(processor, EditProcessor):  # it may have a parameter `phase` of its own
        return
    own = _of_thinking(params)
    least = read_limit(own).min_thinking if own and isinstance(processor, ThinkingBudget) else None
    for token_id, key in _denied(processor, own):
        if token_id in forced and (least is None or least > forced[token_id].budget):
            name = getattr(processor, "builtin_name", type(processor).__name__)
            forcing, closer, _ = forced[token_id]
            raise InvalidArgument(
                f"{forcing} of {closer} forces token id {token_id}, and {key} of {name} denies it: "
                f"change {key}, put {name} before {closer}, or set its phase to answer"
            )


def _check_ends(chain: Sequence[tuple[object, Mapping[str, Any]]], ends: frozenset[int]) -> None:
    """Check that no row after a cycle has all of its ends denied."""
    shortest: dict[int, int] = {}  # the number of ids of the shortest cycle, by phase
    for processor, params in chain:
        if type(processor) is LoopGuard:
            choice, own = read_phase(params)
            rule = read_rule(own)
            for phase in _phases(choice) if rule.action == "end" else ():
                shortest[phase] = min(rule.shortest_cycle, shortest.get(phase, rule.shortest_cycle))
    left = {phase: set(ends) for phase in shortest if ends}
    denying: dict[int, list[str]] = {phase: [] for phase in left}
    for processor, params in chain if left else ():
        if not isinstance(processor, (BadWords, DisallowedTokens, MinTokens)):
            continue
        choice, own = read_phase(params)
        denied, key, until = _denied_ends(processor, own, ends)
        for phase in left.keys() & _phases(choice):
            if not (denied and shortest[phase] < until):
                continue
            left[phase].difference_update(denied)
            denying[phase].append(f"{key} of {processor.builtin_name}")
            if not left[phase]:
                fix = f"change {key}" if until == inf else f"set min_length of loop_guard to {until} or more"
                raise InvalidArgument(
                    "action of loop_guard allows only the ids that end a sequence, which are denied by "
                    f"{' and '.join(denying[phase])}: {fix}, or choose another action"
                )


def _phases(choice: PhaseChoice) -> set[int]:
    """The phases in which a processor holds."""
    if choice.phase is None:
        return set(range(len(PHASES)))
    return {choice.phase, TOOL_CALL} if choice.joins_calls else {choice.phase}


def _denied_ends(
    processor: BadWords | DisallowedTokens | MinTokens, params: Mapping[str, Any], ends: frozenset[int]
) -> tuple[frozenset[int], str, float]:
    """The ends that a processor denies, the parameter, and the number of ids after which it stops to deny them."""
    if isinstance(processor, MinTokens):
        return ends, "min_tokens", processor.read(params)[0]
    keys = {one: key for one, key in _denied(processor, params) if one in ends}
    return frozenset(keys), next(iter(keys.values()), ""), inf


def _of_thinking(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The own parameters of a processor that holds in thinking blocks; none of another."""
    choice, own = read_phase(params)
    return own if choice.phase in (None, THINKING) else {}


def _forced(limit: ThinkingLimit, from_preset: bool) -> Iterator[tuple[int, str]]:
    """The ids that close a block, each with its parameter."""
    for key, ids in (
        ("newline_id", () if limit.tags.newline is None else (limit.tags.newline,)),
        ("end_text", limit.end_ids),
        ("thinking_end_ids", limit.tags.end),
    ):
        for one in ids:
            yield one, "preset" if from_preset and key != "end_text" else key


def _denied(processor: object, params: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """The ids that a processor denies whatever the output is, at least at first, with their parameter."""
    if not params:
        return
    if isinstance(processor, DisallowedTokens):
        for one in processor.token_ids(params).tolist():
            yield one, "token_ids"
    elif isinstance(processor, BadWords):
        for sequence in processor.read(params)[0]:
            if len(sequence) == 1:
                yield sequence[0], "bad_words_ids"
    elif isinstance(processor, MinTokens):
        count, stop_ids = processor.read(params)
        for one in stop_ids.tolist() if count else ():
            yield one, "stop_token_ids"
    elif isinstance(processor, ThinkingBudget):
        limit = read_limit(params)
        if limit.min_thinking:
            yield limit.tags.end[0], "min_thinking"
