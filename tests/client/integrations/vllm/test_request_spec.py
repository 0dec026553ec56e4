"""What a request of vLLM asks; whatever it is, reading it ends one request at most."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from logitport.errors import InvalidParams
from logitport.integrations.vllm.request_spec import asked_of, ending_id


def params(**said: Any) -> Any:
    return SimpleNamespace(**{"extra_args": None, "stop_token_ids": [], "eos_token_id": None, **said})


def test_a_request_ends_by_the_id_that_it_names_or_by_one_that_ends_it_anyway() -> None:
    assert ending_id(params(extra_args={"logitport_failure_id": 7}, stop_token_ids=[5, 7], eos_token_id=2), [3]) == 7
    assert ending_id(params(stop_token_ids=[5], eos_token_id=2), [3]) == 2
    assert ending_id(params(stop_token_ids=[5]), [3]) == 5
    assert ending_id(params(), [3]) == 3
    assert ending_id(params(), []) == 0


@pytest.mark.parametrize("wrong", [9, "7", True, 7.0, [7]])
def test_a_wrong_failure_id_is_the_fault_of_its_request_alone(wrong: Any) -> None:
    asking = params(extra_args={"logitport": [], "logitport_failure_id": wrong}, stop_token_ids=[7], eos_token_id=2)

    assert ending_id(asking, [3]) == 2
    with pytest.raises(InvalidParams, match="logitport_failure_id"):
        asked_of(asking, (), [1], [], "r")
