"""How a vLLM request's parameters are read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from logitport.integrations.vllm.request_spec import ending_id


def params(**values: Any) -> Any:
    return SimpleNamespace(**{"extra_args": None, "stop_token_ids": [], "eos_token_id": None, **values})


def test_the_ending_id_ends_the_request() -> None:
    assert ending_id(params(stop_token_ids=[5], eos_token_id=2), [3]) == 2
    assert ending_id(params(stop_token_ids=[5]), [3]) == 5
    assert ending_id(params(), [3]) == 3
    assert ending_id(params(), []) == 0
