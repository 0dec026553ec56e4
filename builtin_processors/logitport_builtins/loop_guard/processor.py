"""The processor: reads the parameters. `loop_breaker` finds cycles and edits the rows after one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidArgument
from logitport.stateful import StatefulEditProcessor
from logitport_builtins.loop_guard.loop_breaker import LoopBreaker
from logitport_builtins.loop_guard.rule import ACTIONS, LoopRule, read_rule
from logitport_builtins.params import check_in_vocabulary
from logitport_builtins.thinking_budget.thinking_limit import ThinkingLimit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport.processors import EditRequest


class LoopGuard(StatefulEditProcessor):
    """Finds that the output cycles: its last ids are equal blocks, one after the other. Then breaks the cycle.

    An edit, because the ids decide.

    Parameters:
        action: what is done after a cycle: `end_thinking` forces the ids that close the thinking block, if one is open,
            until it is closed; `deny_next` denies the id that continues the cycle; `end` allows only the session's
            `eos_token_ids`; `report` changes nothing.
        repeats: optional, 3 by default, 2 or more: the number of equal blocks.
        max_period: optional, 512 by default, at most 8192: the number of ids of a block, at most.
        min_length: optional, 64 by default: the number of ids of a cycle, at least.
        plain_repeats: optional, 96 by default: the number of equal blocks if a block has fewer than 12 distinct ids, as
            those of a table of zeros or of a drawing. With 0, such a cycle is found as early as others.
        preset, thinking_start_ids, thinking_end_ids, newline_id: of the block, for `end_thinking` only, as in
            `thinking_budget`.

    Only ids of the output count. If several periods fit, the shortest counts. The state of a request has the attribute
    `cycle`: the period, and the position in the history of the cycle's first id; None without a cycle.
    """

    builtin_name = "loop_guard"
    only_denies = True
    bytes_per_id = 32

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        """Raises InvalidArgument."""
        read_rule(params)

    def start(self, request: EditRequest) -> None:
        """Find the cycle at the end of the history; for `end_thinking`, all cycles of the output.

        Raises:
            InvalidArgument: the parameters cannot be used, or an id of the tags is outside the vocabulary.
            InvalidArgument: the action is `end`, and no id that ends a sequence is known.
        """
        rule = read_rule(request.params)
        ends = _ending_ids(rule, request)
        tags = ThinkingLimit(0, rule.tags).with_ids_of(lambda: request.tokenizer).tags if rule.tags else None
        start, end, newline = (tags.start, tags.end, tags.newline) if tags else ((), (), None)
        check_in_vocabulary("loop_guard", tags.ids if tags else [], request.vocab_size)
        limits = rule.repeats, rule.max_period, rule.min_length, rule.plain_repeats
        request.state = LoopBreaker(request.history, *limits, ACTIONS.index(rule.action), ends, start, end, newline)


def _ending_ids(rule: LoopRule, request: EditRequest) -> list[int]:
    """The ids that end a sequence, for the action `end`. Raises InvalidArgument if there are none."""
    if rule.action != "end":
        return []
    ends = sorted({token_id for token_id in request.eos_token_ids if token_id < request.vocab_size})
    if not ends:
        raise InvalidArgument(
            "loop_guard: no id that ends a sequence is known for the action end: open the session with eos_token_ids, "
            "or choose another action"
        )
    return ends
