"""docs/variables.md lists the variables of the code, with their readers and defaults."""

from __future__ import annotations

import ast
import re

import pytest

from logitport.integrations.common import chains, environment, request_keys
from logitport.ops import implementations
from logitport.system.variables import OF_THE_SDK
from logitport_server.config.sources import VARIABLES
from tests.docs.pages import ROOT, codes, read, section
from tests.docs.server_variables import expected, written

PAGE = read("docs/variables.md")
CLIENTS = section(PAGE, "Engines and clients")
HOOKS, CLIENT, EVERY = (codes(CLIENTS, header) for header in ("Read by the hooks", "every client,", "every process,"))
DEFAULTS = {name: default for table in (HOOKS, CLIENT, EVERY) for name, default, _ in table}


def test_each_variable_of_the_sdk_is_listed_once() -> None:
    names = [name for table in (HOOKS, CLIENT, EVERY) for name, *_ in table]
    assert sorted(names) == sorted(OF_THE_SDK)


def test_the_first_table_has_what_the_hooks_read() -> None:
    named = {
        node.value
        for path in (ROOT / "client/logitport/integrations").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in OF_THE_SDK
    }
    assert {name for name, *_ in HOOKS} == named


def test_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OF_THE_SDK:
        monkeypatch.delenv(name, raising=False)
    assert set(DEFAULTS["LOGITPORT_REQUEST_PROCESSORS"].split(",")) == chains.permitted_kinds()
    assert DEFAULTS["LOGITPORT_REQUEST_KEYS"] == "any"
    assert request_keys.permitted_keys() is None
    assert environment.default_chain() == environment.read_chain(DEFAULTS["LOGITPORT_DEFAULT_PROCESSORS"], "the page")
    seconds = [float(number) for number in re.findall(r"\d+", DEFAULTS["LOGITPORT_STEP_TIMEOUT_SECONDS"])]
    assert seconds == [environment._STEP_SECONDS, environment.reconnect_seconds()]
    assert DEFAULTS["LOGITPORT_TARGET"] == environment.EMBEDDED
    assert DEFAULTS["LOGITPORT_CUSTOM_OPS"] == "all"
    implementations.configure()
    assert implementations.current().choose("cpu")[0] == "cpu"


def test_the_limits_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    (least, most) = re.findall(r"limits this wait, from ([\d.]+) to (\d+)\.", PAGE)[0]
    for value in (least, most):
        monkeypatch.setenv("LOGITPORT_STEP_TIMEOUT_SECONDS", value)
        assert environment.reconnect_seconds() == float(value)
    for value in (float(least) / 2, float(most) + 1):
        monkeypatch.setenv("LOGITPORT_STEP_TIMEOUT_SECONDS", str(value))
        with pytest.raises(ValueError, match="LOGITPORT_STEP_TIMEOUT_SECONDS"):
            environment.reconnect_seconds()


def test_the_table_of_a_server_is_that_of_its_options() -> None:
    assert written() == expected(), "run `python -m tests.docs.server_variables`"


def test_the_variable_with_two_meanings() -> None:
    assert {*VARIABLES} & OF_THE_SDK == set(re.findall(r"\*\*`(\w+)` has two meanings\*\*", PAGE))


@pytest.mark.parametrize("page", ["vllm", "sglang", "transformers", "llama-cpp", "mlx-lm"])
def test_pages_of_engines_lead_here(page: str) -> None:
    assert "](../variables.md" in read(f"docs/engines/{page}.md")
