"""An engine with two servers, one of which is killed while requests are generated."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from logitport import CustomLogitProcessor
from logitport.integrations.sglang import RemoteLogitProcessor
from tests.end_to_end.engines import kill, sessions_of
from tests.engines.checkpoint import EOS
from tests.engines.sglang.conftest import GUARDED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.conftest import RunningServer
    from tests.engines.sglang.conftest import Engine

STEPS, KILLED_AFTER = 240, 40
REMOTE = RemoteLogitProcessor.to_str()
CHAINS = [
    ["disallowed_tokens", {"token_ids": list(range(2, 500, 3))}],
    ["no_repeat_ngram", {"ngram_size": 1, "window_size": 30}],
    ["no_repeat_ngram", {"ngram_size": 2, "window_size": 200}],
]
PROMPTS = [[20 + place, 30, 40 + 2 * place, 7] for place in range(6)]


class Shift(CustomLogitProcessor):
    """Reads logits: adds shifted logits."""

    def __call__(self, logits, custom_param_list):
        import torch

        return logits + torch.roll(logits, 1, -1)


READS_LOGITS = [Shift.to_str(), {}]


@pytest.fixture
def cluster(start_server: Callable[..., RunningServer]) -> list[RunningServer]:
    return [start_server("--enable-custom-logit-processor") for _ in range(2)]


@pytest.fixture
def engine(sglang: Callable[..., AbstractContextManager[Engine]], cluster: list[RunningServer]) -> Iterator[Engine]:
    with sglang(GUARDED, LOGITPORT_TARGET=",".join(server.target for server in cluster)) as running:
        yield running


def stream(engine: Engine, place: int, chain: Any, reached: Callable[[], object]) -> dict[str, Any]:
    """Return the last chunk of a prompt's response; `reached` is called in the middle of it."""
    params = {"custom": {"logitport": [chain]}, "max_new_tokens": STEPS}
    last: dict[str, Any] = {}
    called = False
    with engine.post(PROMPTS[place], REMOTE, stream=True, **params) as response:
        for line in response:
            if line.startswith(b"data: {"):
                last = json.loads(line[6:])
                if len(last["output_ids"]) >= KILLED_AFTER and not called:
                    called = True
                    reached()
    return last


def generate(engine: Engine, then: Callable[[], object] = lambda: None) -> list[dict[str, Any]]:
    """Generate for all prompts at the same time, and do something when all are in the middle. The last reads logits."""
    middle = threading.Barrier(len(PROMPTS), action=then)
    chains = [CHAINS[place % len(CHAINS)] for place in range(len(PROMPTS) - 1)] + [READS_LOGITS]
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        running = [
            threads.submit(stream, engine, place, chain, lambda: middle.wait(120)) for place, chain in enumerate(chains)
        ]
        return [one.result() for one in running]


def test_a_server_is_killed(engine: Engine, cluster: list[RunningServer]) -> None:
    undisturbed = generate(engine)
    assert {chunk["meta_info"]["finish_reason"]["type"] for chunk in undisturbed} == {"length"}
    killed_with: list[int] = []

    def kill_the_one_in_use() -> None:
        killed = max(cluster, key=lambda server: sessions_of(server)[1])
        killed_with.append(sessions_of(killed)[1])
        kill(killed)

    *others, reads_logits = generate(engine, kill_the_one_in_use)
    *expected, whole = undisturbed
    assert killed_with == [len(PROMPTS)]
    assert [chunk["output_ids"] for chunk in others] == [chunk["output_ids"] for chunk in expected]
    # Its processor may have state that only the killed server had: it ends with an error, and its tokens are right.
    reason = reads_logits["meta_info"]["finish_reason"]
    assert reason["type"] == "abort"
    assert "StateLost" in reason["message"]
    *tokens, end = reads_logits["output_ids"]
    assert end == EOS
    assert tokens == whole["output_ids"][: len(tokens)]
