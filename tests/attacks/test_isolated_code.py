"""Malicious code in a worker: it disables the worker's checks, or blocks the server."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from logitport import Client, CustomLogitProcessor, EditProcessor, EditRequest, ProcessorFailed, Request, RowEdits

VOCAB = 64
SECONDS = 1.0


class DisablesChecks(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        from logitport_server.worker import call_loop
        from logitport_session.dialects import results

        for module in (results, call_loop):
            module.check_result = lambda *_: None  # type: ignore[attr-defined]
        logits[0] = float("nan")
        return logits


@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_a_worker_without_checks_sends_no_nan(start_server: Any, transport: Any) -> None:
    with Client(start_server("--enable-custom-logit-processor").target) as client:
        session = client.session(vocab_size=VOCAB, dtype=torch.float32, transport=transport)
        handles = [session.add(Request([1], processors=[(DisablesChecks, {})])) for _ in range(3)]
        for new in ([], [2]):
            result = session.step(dict.fromkeys(handles[1:] if new else handles, new)).apply(
                torch.zeros(2 if new else 3, VOCAB), check=False
            )
            (failed,) = result.failures
            assert failed is handles[bool(new)]
            assert isinstance(result.failures[failed], ProcessorFailed)
            assert "NaN" in result.failures[failed].message


def sleeper(number: int) -> type[EditProcessor]:
    class Sleeps(EditProcessor):
        def edit(self, request: EditRequest, edits: RowEdits) -> None:
            del request, edits
            time.sleep(3600 + number)

    return Sleeps


def test_hanging_processors_wait_in_parallel(start_server: Any) -> None:
    server = start_server("--enable-custom-logit-processor", "--processor-timeout-seconds", str(SECONDS))
    with Client(server.target) as client, client.session(vocab_size=VOCAB, dtype=torch.float32) as session:
        good = session.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [3]})]))
        bad = [session.add(Request([1], processors=[(sleeper(number), {})], tenant="bad")) for number in range(12)]
        logits = torch.zeros(1 + len(bad), VOCAB)
        began = time.monotonic()
        result = session.step(dict.fromkeys([good, *bad], ())).apply(logits, check=False)
        assert time.monotonic() - began < len(bad) * SECONDS * 0.75
        assert result.failures.keys() == set(bad)
        assert logits[0].isinf().nonzero().tolist() == [[3]]
