"""How a vLLM request's parameters are read: an error in them affects only that request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from logitport.errors import InvalidParams
from logitport.integrations.vllm.request_spec import ending_id, make_request


def params(**values: Any) -> Any:
    return SimpleNamespace(**{"extra_args": None, "stop_token_ids": [], "eos_token_id": None, **values})


def test_the_ending_id_is_the_named_one_or_another_that_ends_the_request() -> None:
    assert ending_id(params(extra_args={"logitport_failure_id": 7}, stop_token_ids=[5, 7], eos_token_id=2), [3]) == 7
    assert ending_id(params(stop_token_ids=[5], eos_token_id=2), [3]) == 2
    assert ending_id(params(stop_token_ids=[5]), [3]) == 5
    assert ending_id(params(), [3]) == 3
    assert ending_id(params(), []) == 0


@pytest.mark.parametrize("wrong", [9, "7", True, 7.0, [7]])
def test_a_wrong_failure_id_fails_only_its_request(wrong: Any) -> None:
    request = params(extra_args={"logitport": [], "logitport_failure_id": wrong}, stop_token_ids=[7], eos_token_id=2)

    assert ending_id(request, [3]) == 2
    with pytest.raises(InvalidParams, match="logitport_failure_id"):
        make_request(request, (), [1], [], "r")
