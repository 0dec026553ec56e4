"""SGLang's own overlap loop with drafts, processors and a small model. On a CPU, SGLang turns the loop off."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest

from logitport.integrations.sglang import speculation
from tests.client.integrations.sglang.overlap_loop import OverlapLoop
from tests.client.integrations.sglang.test_speculation import hook
from tests.client.integrations.sglang.test_speculation_overlap import CHAINS, without_drafts

if TYPE_CHECKING:
    from logitport.integrations.sglang.hook import Hook

__all__ = ["hook"]  # a fixture


@pytest.fixture(scope="module")
def loops() -> list[type[OverlapLoop]]:
    """Loops with SGLang's methods, with the plugin's patch and without."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SGLang warns of what a CPU lacks
        from sglang.srt.managers.scheduler import Scheduler

    class SGLangLoop(OverlapLoop):
        event_loop_overlap = Scheduler.event_loop_overlap
        is_disable_overlap_for_batch = Scheduler.is_disable_overlap_for_batch

    class PatchedLoop(SGLangLoop):
        is_disable_overlap_for_batch = speculation.wrap_overlap(Scheduler.is_disable_overlap_for_batch)

    return [PatchedLoop, SGLangLoop]


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain[0][0])
def test_the_ids_are_those_without_drafts(
    hook: Hook, monkeypatch: pytest.MonkeyPatch, loops: list[type[OverlapLoop]], chain: list[Any]
) -> None:
    for name, value in (("published_names", dict), ("max_draft_tokens", lambda: 5), ("is_disaggregated", bool)):
        monkeypatch.setattr(f"logitport.integrations.sglang.hook.{name}", value)
    patched, unpatched = loops
    loop = patched(*chain)
    expected = without_drafts(hook, loop, *chain)
    assert loop.outputs() == expected
    assert unpatched(*chain).outputs() != expected
