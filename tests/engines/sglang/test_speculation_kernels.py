"""SGLang with drafts and without logitport. Only the kernels are not SGLang's own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tests.engines.sglang.conftest import KERNELS, NGRAM, PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from tests.engines.sglang.conftest import Engine

PROMPTS = [[20, 30, last] for last in range(40, 60)]


def test_the_ids_are_those_without_drafts(
    native: Engine, sglang: Callable[..., AbstractContextManager[Engine]]
) -> None:
    """The second time, SGLang drafts the outputs of the first."""
    with ThreadPoolExecutor(8) as threads, sglang(PLAIN, *NGRAM, **KERNELS) as engine:
        expected = list(threads.map(native.generate, PROMPTS))
        for is_known in (False, True):
            answers: list[Any] = list(threads.map(engine.answer, PROMPTS))
            assert [answer["output_ids"] for answer in answers] == expected
            if is_known:
                assert all(answer["meta_info"]["spec_accept_length"] > 2 for answer in answers)
