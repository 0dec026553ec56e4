"""The memory of a principal's process after its last session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from logitport import Client, Request
from tests.processes import principal_processes, private_bytes
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RunningServer

VOCAB = 50_000
CHAIN = [("no_repeat_ngram", {"ngram_size": 3}), ("frequency_penalty", {"frequency_penalty": 1.0})] * 4
BIASES = ("logit_bias", {"logit_bias": {str(token_id): 0.5 for token_id in range(VOCAB)}})
# The process has imported and cached what chains need, once.
MAX_GROWTH_BYTES = 32 << 20
MIN_USED_BYTES = 64 << 20


@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_memory_of_long_chains_and_histories_is_returned(
    start_server: Callable[..., RunningServer], transport: str
) -> None:
    running = start_server("--max-principal-memory", "1GiB")
    history = np.random.default_rng(1).integers(0, VOCAB, 200_000, dtype=np.int32)
    with Client(running.target) as client:
        with client.session(vocab_size=VOCAB, dtype="float32"):
            (process,) = principal_processes(running.process.pid)
            idle = private_bytes(process)
        with client.session(vocab_size=VOCAB, dtype="float32", transport=transport) as session:  # type: ignore[arg-type]
            handles = [session.add(Request(history, processors=CHAIN)) for _ in range(4)]
            handles += [session.add(Request([1], processors=[BIASES])) for _ in range(4)]
            assert private_bytes(process) > idle + MIN_USED_BYTES
            for handle in handles:
                session.remove(handle)
        wait_until(
            lambda: private_bytes(process) < idle + MAX_GROWTH_BYTES,
            lambda: f"{private_bytes(process) >> 20} MiB after the last session, {idle >> 20} MiB before the first",
        )
