"""The rows of a batch in which SGLang verifies draft tokens: processes them, and ends requests without an id."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from logitport.errors import LogitportError
from logitport.integrations.common.engine_step import leave_only
from logitport.integrations.common.statuses import all_denied
from logitport.integrations.sglang import RemoteLogitProcessor, _hook
from logitport.integrations.sglang.draft_trees import read_trees
from logitport.integrations.sglang.requests import end, ending_id, ends_within, request_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from logitport.integrations.sglang.draft_trees import DraftTree


class DraftRows:
    """The rows of one batch.

    Args:
        verify_input: the drafts, as SGLang has them.
        info: the batch's `SamplingBatchInfo`.
        read: returns the tree of each request.
        is_refused: whether a request with these parameters is not processed; ends it.

    Attributes:
        denied: rows after a draft in which processors deny every id, with SGLang's requests.
    """

    def __init__(
        self,
        verify_input: Any,
        info: Any,
        read: Callable[[Any], list[DraftTree]] = read_trees,
        is_refused: Callable[[Any], bool] = lambda params: False,  # noqa: ARG005
    ) -> None:
        self._verify_input = verify_input
        self._info = info
        self._read = read
        self._is_refused = is_refused
        self.denied: dict[int, Any] = {}

    def process(self, logits: torch.Tensor) -> None:
        """Apply the processors to float[requests * nodes, vocab_size] in place. Does not raise."""
        for entry in self._info.custom_logit_processor.values():
            params = [self._info.custom_params[request] for request in entry.rows]
            if isinstance(entry.processor, RemoteLogitProcessor):
                of_requests = zip(entry.rows, params, strict=True)
                self._process(logits, {row: one for row, one in of_requests if not self._is_refused(one)})
            else:  # the guard's, which ends the requests
                entry.processor(logits, params)

    def _process(self, logits: torch.Tensor, params: Mapping[int, Any]) -> None:
        """Process the rows of requests, which `params` has by their index in the batch. Does not raise."""
        try:
            nodes = self._verify_input.draft_token_num
            trees = dict(zip(range(0, len(logits), nodes), self._read(self._verify_input), strict=True))
        except Exception as error:  # noqa: BLE001 - an exception would end the engine
            failure = LogitportError(f"the drafts of this SGLang cannot be read ({error!r})")
            nodes = max(1, len(logits) // len(self._info.custom_params))
            for index, of_request in params.items():
                req = request_of(of_request)
                end(req, failure)
                # Its ids are not sampled without its processors.
                leave_only(logits, slice(index * nodes, (index + 1) * nodes), ending_id(req))
            return
        rows = [params.get(row // nodes) if row in trees else None for row in range(len(logits))]
        self.denied |= _hook().process(logits, rows, trees)

    def end_denied(self, predict: torch.Tensor, accept_index: torch.Tensor) -> None:
        """End the requests that continue after a draft whose row the processors deny completely.

        Args:
            predict: int[requests * nodes], the id that each row leads to.
            accept_index: int[requests, depth], the accepted rows in their order, then -1.
        """
        if not self.denied:
            return
        predicted = predict.tolist()
        for rows in accept_index.tolist():
            before = list(itertools.takewhile(lambda row: row not in self.denied, rows))
            if len(before) < len(rows):
                req = self.denied[rows[len(before)]]
                if not ends_within(req, [predicted[row] for row in before if row >= 0]):
                    end(req, all_denied("SGLang"))
