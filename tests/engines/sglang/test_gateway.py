"""SGLang behind a gateway: what its clients may name, and their tenants, which this service requires."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from logitport.integrations.sglang import RemoteLogitProcessor
from tests.engines.sglang.conftest import GUARDED, Engine, Refused
from tests.shipped_processors import TiltByLastId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

REMOTE = RemoteLogitProcessor.to_str()
PROMPT = [5, 6, 7]
DENIED = {"logitport": [["disallowed_tokens", {"token_ids": list(range(2, 500))}]]}
ACME = {"X-Logitport-Tenant": "acme"}


@pytest.fixture(scope="module")
def engine(sglang: Callable[..., AbstractContextManager[Engine]], serving: Callable[..., Any]) -> Iterator[Engine]:
    """An engine with the default of what requests may name."""
    with serving("--enable-custom-logit-processor", "--require-tenant") as service:
        variables = {"LOGITPORT_TARGET": service.target, "LOGITPORT_REQUEST_PROCESSORS": ""}
        with sglang(GUARDED, **variables) as engine:
            yield engine


@pytest.mark.parametrize("n", [1, 2])
def test_the_gateways_header_is_the_tenant(engine: Engine, n: int) -> None:
    answers = engine.answer(PROMPT, REMOTE, DENIED, headers=ACME, n=n, temperature=1.0)
    for answer in answers if n > 1 else [answers]:
        assert not set(answer["output_ids"]) & set(range(2, 500))


def test_a_batch_has_one_tenant(engine: Engine) -> None:
    rows = engine.answer([PROMPT, PROMPT], REMOTE, DENIED, headers=ACME)  # type: ignore[list-item]
    assert len(rows) == 2


@pytest.mark.parametrize("forged", [{}, {"logitport_tenant": "acme"}])
def test_a_client_cannot_choose_a_tenant(engine: Engine, forged: dict[str, str]) -> None:
    with pytest.raises(Refused, match="--require-tenant") as refused:
        engine.generate(PROMPT, REMOTE, DENIED | forged)
    assert refused.value.status == 400


def test_requests_ship_nothing_by_default(engine: Engine) -> None:
    with pytest.raises(Refused, match=r"is a shipped processor.*LOGITPORT_REQUEST_PROCESSORS") as refused:
        engine.generate(PROMPT, REMOTE, {"logitport": [[TiltByLastId.to_str(), {"by": 4.0}]]}, headers=ACME)
    assert refused.value.status == 400
