"""The tenant of an engine's request: a gateway's header, or the operator's function."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from logitport import InvalidArgument
from logitport.integrations.common.tenants import VARIABLE, EngineRequest, headers_of, tenant_of


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def operators(monkeypatch: pytest.MonkeyPatch, name: str, function: Any) -> None:
    """Make the operator's module, and name its function in the environment."""
    module = ModuleType("our_gateway")
    module.function = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "our_gateway", module)
    monkeypatch.setenv(VARIABLE, name)
    from logitport.integrations.common import tenants

    tenants._import.cache_clear()


def test_by_default_a_header_names_the_tenant() -> None:
    headers = headers_of([(b"Host", b"x"), (b"X-Logitport-Tenant", b"acme")])
    assert tenant_of(EngineRequest(headers)) == "acme"
    assert tenant_of(EngineRequest({"host": "x"})) == ""
    assert tenant_of(EngineRequest()) == ""


def test_a_repeated_header_is_refused() -> None:
    """A gateway that adds a header instead of overwriting it leaves the client's in place."""
    with pytest.raises(InvalidArgument, match="overwrite"):
        headers_of([(b"x-logitport-tenant", b"acme"), (b"X-LOGITPORT-TENANT", b"other")])


def test_the_operators_function_replaces_the_header(monkeypatch: pytest.MonkeyPatch) -> None:
    operators(monkeypatch, "our_gateway:function", lambda request: request.headers["x-user"] + request.params.suffix)
    headers = {"x-logitport-tenant": "forged", "x-user": "acme"}
    assert tenant_of(EngineRequest(headers, SimpleNamespace(suffix="/1"))) == "acme/1"


@pytest.mark.parametrize("function", [lambda request: None, lambda request: request.headers["missing"]])
def test_a_function_that_fails_refuses_the_request(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    operators(monkeypatch, "our_gateway:function", function)
    with pytest.raises(InvalidArgument, match="LOGITPORT_TENANT"):
        tenant_of(EngineRequest())
