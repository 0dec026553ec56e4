"""The processor: reads the parameters, follows thinking blocks, and forces the ids that close one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.processors import EditProcessor
from logitport_builtins.params import check_in_vocabulary
from logitport_builtins.thinking_budget.blocks import ThinkingBlocks
from logitport_builtins.thinking_budget.limits import ThinkingLimit, read_limit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport.core.edits import RowEdits
    from logitport.processors import EditRequest


class ThinkingBudget(EditProcessor):
    """Closes a thinking block that has used up its budget: forces the newline, then the end tag, one id per step.

    Parameters:
        thinking_budget: how many ids may follow the start tag, 0 or more.
        preset: `qwen3`, `deepseek_r1`, `glm4_moe` or `inkling`; or instead of it
        thinking_start_ids: list of the ids of the start tag,
        thinking_end_ids: list of the ids of the end tag, and
        newline_id: optional id to write before the end tag, unless it was the last to be sampled.

    Tags of the prompt and of the output count alike, and the tag completed last decides. A start tag opens a block; a
    start tag within a block restarts its count. An end tag closes the block. If both tags end at the same id, the
    longer one counts, or the start tag if they are equal. For tags of one id this is the behaviour of SGLang 0.5.23's
    `ThinkingBudgetLogitProcessor`. If the last ids of a block are the beginning of the end tag, only the rest of the
    tag is forced, without a newline.
    """

    builtin_name = "thinking_budget"

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        """Raises InvalidParams."""
        read_limit(params)

    def limit(self, request: EditRequest) -> ThinkingLimit:
        """Read the request's limit. Raises InvalidParams, InvalidTokenId."""
        limit = read_limit(request.params)
        newline = [] if limit.tags.newline is None else [limit.tags.newline]
        check_in_vocabulary("thinking_budget", [*limit.tags.start, *limit.tags.end, *newline], request.vocab_size)
        return limit

    def start(self, request: EditRequest) -> None:
        """Find all tags of the history. Raises InvalidParams, InvalidTokenId."""
        request.state = ThinkingBlocks(self.limit(request), request.history)

    def advance(self, request: EditRequest, token_id: int) -> None:
        """Record a tag that `token_id` completes."""
        blocks: ThinkingBlocks = request.state
        if token_id in blocks.last_ids:
            blocks.record_tag(request.history)

    def rewind(self, request: EditRequest) -> None:
        """Remove the tags that were cut off."""
        request.state.rewind(len(request.history))

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        """FORCE, once the open block has used up its budget."""
        blocks: ThinkingBlocks = request.state
        if request.history.length >= blocks.due:
            edits.force(blocks.closing_id(request.history))
