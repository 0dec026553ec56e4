"""Hooks of engines that pass whole histories at every step: their rows as requests, padding, and counters."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.errors import InvalidArgument, RequestsFailed
from logitport.integrations.common import environment
from logitport.integrations.common.circuit_breaker import Breaker, is_session_error
from logitport.shipping.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence

    from numpy.typing import NDArray
    from typing_extensions import Self

    from logitport.client.client import Client
    from logitport.integrations.common.chains import Chain
    from logitport.report import Report
    from logitport.session import Handle, PendingStep, Session


class SequenceHook:
    """Holds the open sequences of a hook, each with its own session, and counts the steps served.

    Args:
        client: the connection; not closed by this object. None for one by the environment's variables, see
            `environment.client`.
        sequences: an empty mapping from the engine's keys to open sequences; each has a `close` method.
        tokenizer_id: the model's tokenizer.

    Attributes:
        steps, rows_applied, seconds, reports: as documented by the hook.
    """

    def __init__(self, client: Client | None, sequences: MutableMapping[Any, Any], tokenizer_id: str) -> None:
        self.steps = 0
        self.rows_applied: Counter[str] = Counter()
        self.seconds = 0.0
        self._latest: HistoryBatch | None = None
        self._client = environment.client_of(self, client)
        self._breaker = Breaker()
        self._sequences = sequences
        self._tokenizer_id = tokenizer_id

    @property
    def reports(self) -> list[Report]:
        """The report of each row of the latest call, in the order of its rows. Empty before the first step."""
        return [] if self._latest is None else self._latest.reports

    def close(self) -> None:
        """End all open sequences; the next call starts a new one. The client stays open."""
        for key in list(self._sequences):
            self._end(key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, prompts: NDArray[np.int64], **options: Any) -> HistoryBatch:
        """Open a session for these prompts, int64[rows, prompt_length], with options of `Client.session`."""
        rows, tokenizer_id = len(prompts), self._tokenizer_id
        session = self._breaker.attempt(
            lambda: self._client.session(max_requests=rows, tokenizer_id=tokenizer_id, **options)
        )
        self._latest = HistoryBatch(session, prompts)
        return self._latest

    def _apply(self, pending: PendingStep, logits: Any, denied: Callable[[int], InvalidArgument]) -> None:
        """Process logits in place, one row for each request of the step.

        Raises:
            RequestsFailed: a processor failed.
            InvalidArgument: the processors of a row deny every id; `denied` makes the error.
        """
        result = pending.apply(logits, check=False)
        if result.failures:
            raise RequestsFailed(result.failures, result)
        if result.all_denied_rows:
            raise denied(result.all_denied_rows[0])
        self.rows_applied.update(result.rows_applied)

    def _end(self, key: object) -> None:
        sequence = self._sequences.pop(key, None)
        if sequence is not None:
            sequence.close()

    def _record_success(self, began: float) -> None:
        """Count a step that began at this `time.perf_counter`."""
        self._breaker.record_success()
        self.steps += 1
        self.seconds += time.perf_counter() - began

    def _record_failure(self, key: object, error: BaseException) -> None:
        """End the sequence after its step raised this error."""
        self._end(key)
        if is_session_error(error):
            self._breaker.record_failure(error, self._client.timeout)


class HistoryBatch:
    """One batch, from its prompts to its last step, in its own session.

    Between steps, rows may change places and histories may be cut back: each row keeps a matching request.

    Args:
        session: has no requests yet; closed by `close`.
        prompts: int64[rows, prompt_length], padding included.

    Attributes:
        session: as given.
        prompt_length: width of `prompts`.
    """

    def __init__(self, session: Session, prompts: NDArray[np.int64]) -> None:
        self.session = session
        self.prompt_length = prompts.shape[1]
        self._prompts = prompts.copy()
        self._length = self.prompt_length
        self._handles: list[Handle] = []
        self._prompt_groups: list[list[int]] = []

    def admit(self, is_token: NDArray[np.bool_], chains: Sequence[Chain], tenants: Sequence[str]) -> None:
        """Add a request for each row. Raises the errors of `Session.add`.

        Args:
            is_token: bool[rows, prompt_length], false for padding.
            chains: each row's processors.
            tenants: each row's tenant.
        """
        group: defaultdict[tuple[bytes, int, str], list[int]] = defaultdict(list)
        for row, (prompt, chain, tenant) in enumerate(zip(self._prompts, chains, tenants, strict=True)):
            ids = prompt[is_token[row]].tolist()
            request = Request(ids, processors=chain, request_id=f"row {row}", tenant=tenant)
            self._handles.append(self.session.add(request))
            group[prompt.tobytes(), id(chain), tenant].append(row)
        self._prompt_groups = list(group.values())

    def continues_with(self, ids: NDArray[np.int64]) -> bool:
        """Return whether int64[rows, length] can be the next step: same prompts, at most one id more than before."""
        return (
            len(ids) == len(self._prompts)
            and self.prompt_length < ids.shape[1] <= self._length + 1
            and np.array_equal(ids[:, : self.prompt_length], self._prompts)
        )

    def new_ids(self, ids: NDArray[np.int64], rows: Sequence[int]) -> dict[Handle, list[int]]:
        """Return the `Session.step` argument for these rows of int64[rows, length]. Rewinds histories that differ."""
        self._length = ids.shape[1]
        outputs = ids[:, self.prompt_length :]
        for group in self._prompt_groups:
            self._reassign(group, outputs)
        new_ids = {}
        for row in rows:
            handle = self._handles[row]
            known = handle.history.output_token_ids
            common = _common_prefix(known, outputs[row])
            if common < len(known):
                self.session.rewind(handle, handle.history.prompt_length + common)
            new_ids[handle] = outputs[row, common:].tolist()
        return new_ids

    @property
    def reports(self) -> list[Report]:
        """The report of each row. Rows that change places keep theirs."""
        return [handle.report for handle in self._handles]

    def close(self) -> None:
        """Close the session."""
        self.session.close()

    def _reassign(self, group: Sequence[int], outputs: NDArray[np.int64]) -> None:
        """Give each row of one prompt the request that shares most of its history, since beams are reordered."""
        known = {row: self._handles[row].history.output_token_ids for row in group}
        if all(_common_prefix(known[row], outputs[row]) == len(known[row]) for row in group):
            return
        pairs = [(row, other) for row in group for other in group]
        pairs.sort(key=lambda pair: _common_prefix(known[pair[1]], outputs[pair[0]]), reverse=True)
        unassigned = set(group)
        handles = {row: self._handles[row] for row in group}
        for row, other in pairs:
            if row in unassigned and other in handles:
                unassigned.remove(row)
                self._handles[row] = handles.pop(other)


def _common_prefix(one: NDArray[Any], other: NDArray[Any]) -> int:
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if different.size else length


def tokens_by_id(prompts: NDArray[np.int64], pad_token_id: int | None) -> NDArray[np.bool_]:
    """Return bool[rows, prompt_length]: false for leading ids of a prompt that equal `pad_token_id`; else true."""
    if pad_token_id is None:
        return np.ones(prompts.shape, bool)
    padding: NDArray[np.bool_] = np.logical_and.accumulate(prompts == pad_token_id, axis=1)
    return ~padding


def running_rows(outputs: NDArray[np.int64], eos_token_ids: Sequence[int], pad_token_id: int | None) -> list[int]:
    """Return the rows of int64[rows, output_length] that contain no end-of-sequence id.

    Args:
        outputs: sampled ids, with padding after an end-of-sequence id.
        eos_token_ids: the ids that end a row; empty if no id does.
        pad_token_id: the padding; None for the first end-of-sequence id, as in transformers.

    Raises:
        InvalidArgument: a row continues after an end-of-sequence id with something other than padding.
    """
    ended = np.logical_or.accumulate(np.isin(outputs, eos_token_ids), axis=1)
    if not ended.any():
        return list(range(len(outputs)))
    padding = eos_token_ids[0] if pad_token_id is None else pad_token_id
    invalid = np.argwhere(ended[:, :-1] & (outputs[:, 1:] != padding))
    if invalid.size:
        row, index = invalid[0].tolist()
        raise InvalidArgument(
            f"row {row} continues with {outputs[row, index + 1]} after its end-of-sequence id; expected padding, "
            f"{padding}. Pass eos_token_id and pad_token_id as generate() has them, or leave eos_token_id out"
        )
    return np.flatnonzero(~ended[:, -1]).tolist()
