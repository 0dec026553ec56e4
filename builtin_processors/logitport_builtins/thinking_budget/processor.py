"""The processor: reads the parameters. `blocks` follows thinking blocks, and forces the ids that close one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.stateful import StatefulEditProcessor
from logitport_builtins.params import check_in_vocabulary
from logitport_builtins.thinking_budget.blocks import PythonThinkingBlocks, ThinkingBlocks
from logitport_builtins.thinking_budget.thinking_limit import NO_LIMIT, ThinkingLimit, read_limit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport.processors import EditRequest


class ThinkingBudget(StatefulEditProcessor):
    """Closes a thinking block that has used up its budget: forces the newline, then the end tag, one id per step.

    Parameters:
        thinking_budget: how many ids may follow the start tag, 0 or more.
        preset: `qwen3`, `deepseek_r1`, `glm4_moe` or `inkling`; or instead of it
        thinking_start_ids: list of the ids of the start tag, at most 64,
        thinking_end_ids: list of the ids of the end tag, at most 64, and
        newline_id: optional id to write before the end tag, unless it was the last to be sampled. Without a preset and
            these three, the tags are those in the chat template of the session's tokenizer.
        end_text: optional list of at most 256 ids to write between the newline and the end tag; or a text of at most
            4 KiB, for which the operator's tokenizer of the session has ids.
        soft_from: optional, less than `thinking_budget`: from so many ids on the end tag has a bias, so that a block
            ends where a sentence does. It grows with each id by the same amount, up to 20 at the last id before the
            budget.
        min_thinking: optional, at most `thinking_budget`: the first id of the end tag is denied before so many ids.

    Tags of the prompt and of the output count alike, and the tag completed last decides. A start tag opens a block; a
    start tag within a block restarts its count. An end tag closes the block. If both tags end at the same id, the
    longer one counts, or the start tag if they are equal. For tags of one id this is the behaviour of SGLang 0.5.23's
    `ThinkingBudgetLogitProcessor`. If the last ids of a block are the beginning of the end tag, only the rest of the
    tag is forced, without a newline and text.
    """

    builtin_name = "thinking_budget"
    only_denies = ("soft_from",)
    bytes_per_id = 16

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        """Raises InvalidArgument."""
        read_limit(params)

    def limit(self, request: EditRequest) -> ThinkingLimit:
        """Read the request's limit. Raises InvalidArgument."""
        limit = read_limit(request.params).with_ids_of(lambda: request.tokenizer)
        check_in_vocabulary("thinking_budget", limit.ids, request.vocab_size)
        return limit

    def start(self, request: EditRequest) -> None:
        """Find all tags of the history. Raises InvalidArgument."""
        limit = self.limit(request)
        tags, budget = limit.tags, min(limit.budget, NO_LIMIT)
        # The ids of a subclass may be outside the vocabulary. Then forcing one is an error, which `RowEdits` keeps for
        # the end of the step.
        kind = ThinkingBlocks if max(tags.ids) < request.vocab_size else PythonThinkingBlocks
        more = limit.end_ids, min(limit.soft_from, NO_LIMIT), min(limit.min_thinking, NO_LIMIT)
        request.state = kind(request.history, budget, tags.start, tags.end, tags.newline, *more)
