"""Decoding with a server. The writer ran it on an old version; the tests run it on the current one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport import LogitportError, Request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport import Client, ProcessorRef
    from logitport.session import Handle, Session

    Chain = Sequence[tuple[Any, Mapping[str, Any]]]

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
VOCAB = 24
PROMPT = (5, 7, 2)
# The ids appended to the history before each step.
STEPS = ((), (7,), (2, 7))
OPENING = {
    "vocab_size": VOCAB,
    "model_name": "a model",
    "tokenizer_id": "a tokenizer",
    "eos_token_ids": [1, 2],
    "max_requests": 3,
    "max_draft_tokens": 2,
    "engine": "an engine 1.0",
    "transport": "grpc",
}


def sample_logits(rows: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return float32[rows, VOCAB] of distinct multiples of 1/8, for which simple arithmetic is exact."""
    return (np.arange(rows * VOCAB, dtype=np.float32) / 8 - 4).reshape(rows, VOCAB)


def describe(ref: ProcessorRef) -> dict[str, Any]:
    """Return the fields of a registered processor that the registry must preserve."""
    kept = ("digest", "names", "python", "dill", "size_bytes", "registered_at", "owner", "shared")
    fields = {name: getattr(ref, name) for name in (*kept, "class_name", "dialect")}
    return fields | {"names": list(ref.names)}


def rows_of(
    client: Client, chain: Chain, sampling_params: Mapping[str, Any] | None = None, **options: Any
) -> list[list[float]]:
    """Return the row of each of STEPS for a request with this chain, in a session with these options."""
    rows = []
    with client.session(vocab_size=VOCAB, **options) as session:
        handle = session.add(Request(PROMPT, processors=chain, sampling_params=sampling_params or {}))
        for new in STEPS:
            logits = sample_logits(1)
            session.step({handle: new}).apply(logits)
            rows.append(logits[0].tolist())
    return rows


def converse(session: Session, chains: Mapping[str, Chain]) -> list[dict[str, Any]]:
    """Run a session. Returns, for each step, the rows of each request, or the name of its error.

    Requests are added, speculate, are rewound, skip a step, and are removed and replaced.

    Args:
        session: opened with OPENING.
        chains: three, by request id. An id that ends with "?" selects on_error="skip".
    """

    def add(request_id: str, prompt: Sequence[int]) -> Handle:
        on_error: Any = "skip" if request_id.endswith("?") else "abort"
        return session.add(Request(prompt, processors=chains[request_id], request_id=request_id, on_error=on_error))

    seen = []

    def step(new: dict[Handle, Sequence[int]], drafts: Mapping[Handle, Sequence[int]] | None = None) -> None:
        owners = [handle for handle in new for _ in range(1 + len((drafts or {}).get(handle, ())))]
        logits = sample_logits(len(owners))
        failures = session.step(new, drafts=drafts).apply(logits, check=False).failures
        rows: dict[str, Any] = {handle.request_id: [] for handle in new}
        for owner, row in zip(owners, logits.tolist(), strict=True):
            rows[owner.request_id].append(row)
        seen.append(rows | {handle.request_id: type(error).__name__ for handle, error in failures.items()})

    first, second, third = (add(request_id, PROMPT) for request_id in chains)
    step({first: [], second: [], third: []})
    step({first: [3], second: [4], third: [5]}, drafts={first: [7, 2], second: [8]})
    step({first: [7], second: [9], third: [5]})
    session.rewind(first, len(PROMPT) + 1)
    step({first: [2], third: [6]})
    session.remove(second)
    try:
        session.add(Request(PROMPT, processors=[("no_such_builtin", {})]))
    except LogitportError as error:
        seen.append({"refused": type(error).__name__})
    again = add(second.request_id, (9, 4))
    step({third: [7], again: [], first: []})
    return seen
