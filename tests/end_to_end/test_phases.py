"""Phases on a real server: a shipped class in its worker, and built-ins in the core, with drafts that are rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport import EditProcessor, EditRequest, Request, RowEdits

if TYPE_CHECKING:
    from logitport import Client

VOCAB = 48
START, END = 40, 41
ANSWER = {"phase": "answer", "phase_tags": {"thinking_start_ids": [START], "thinking_end_ids": [END]}}


class ForcesOutputLength(EditProcessor):
    """Forces the number of the ids in the output, or 30 if it does not know that this is the answer."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.force(len(request.history.output_token_ids) if request.phase == "answer" else 30)


def test_a_shipped_class_and_built_ins_hold_in_the_answer(client: Client) -> None:
    shipped: list[tuple[Any, dict[str, Any]]] = [(ForcesOutputLength, ANSWER)]
    builtin: list[tuple[Any, dict[str, Any]]] = [("min_tokens", {"min_tokens": 2, "stop_token_ids": [5], **ANSWER})]
    with client.session(vocab_size=VOCAB, max_draft_tokens=4) as session:
        handles = [session.add(Request([1, START], processors=chain)) for chain in (shipped, builtin)]

        def left(new_ids: list[int], drafts: list[int]) -> list[list[list[int]]]:
            """For each request and each of its rows the ids that are left, or [] for all."""
            rows = len(drafts) + 1
            logits = np.zeros((2 * rows, VOCAB), np.float32)
            session.step(dict.fromkeys(handles, new_ids), drafts=dict.fromkeys(handles, drafts)).apply(logits)
            ids = [np.flatnonzero(np.isfinite(row)).tolist() for row in logits]
            found = [each if len(each) < VOCAB else [] for each in ids]
            return [found[:rows], found[rows:]]

        no_end = [one for one in range(VOCAB) if one != 5]
        assert left([], [7, END, 8, START]) == [[[], [], [0], [1], []], [[], [], no_end, no_end, []]]
        assert left([7, END, 9], []) == [[[1]], [no_end]]
        assert left([9], []) == [[[2]], [[]]]
