"""The only place that unpickles, and its bounded cache."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

import logitport
import logitport_server
from logitport import CustomLogitProcessor, PayloadError, payload
from logitport_server.registry.loader import PayloadLoader


def shipped(number: int) -> payload.Payload:
    """Return a payload that differs for each number."""

    class Adds(CustomLogitProcessor):
        amount = number

        def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
            return logits + self.amount

    return payload.parse(Adds.to_str())


def test_a_digest_is_unpickled_once() -> None:
    loader = PayloadLoader(4)
    first = loader.load(shipped(1))
    assert loader.load(shipped(1)) is first
    assert loader.load(shipped(2)) is not first
    assert (loader.hits, loader.misses) == (1, 2)


def test_only_the_digest_identifies_a_payload() -> None:
    loader = PayloadLoader(4)
    labelled = shipped(1)
    bare = payload.parse(json.dumps({"callable": labelled.data.hex()}))
    assert bare.python != labelled.python
    assert loader.load(bare) is loader.load(labelled)


def test_the_cache_is_bounded() -> None:
    loader = PayloadLoader(2)
    for number in (1, 2, 3, 1):
        loader.load(shipped(number))
    assert (loader.hits, loader.misses) == (0, 4)
    assert loader.load.cache_info().currsize == 2


def test_a_failed_load_is_retried() -> None:
    loader = PayloadLoader(2)
    broken = payload.parse(json.dumps({"callable": b"cnowhere\nMissing\n.".hex()}))
    for _ in range(2):
        with pytest.raises(PayloadError):
            loader.load(broken)
    assert loader.load.cache_info().currsize == 0


@pytest.mark.slow
def test_nothing_else_unpickles() -> None:
    """`payload.loads` has one caller in the service, and only `payload` imports pickle modules."""
    callers, picklers = [], []
    for package in (logitport, logitport_server):
        folder = Path(package.__file__ or "").parent
        for path in folder.rglob("*.py"):
            place = f"{folder.name}/{path.relative_to(folder)}"
            for node in ast.walk(ast.parse(path.read_text())):
                if (
                    isinstance(node, ast.Attribute)
                    and node.attr == "loads"
                    and getattr(node.value, "id", "") == "payload"
                ):
                    callers.append(place)
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                if any(name.split(".")[0] in ("pickle", "dill", "cloudpickle", "marshal") for name in names):
                    picklers.append(place)
    assert sorted(callers) == ["logitport/processors.py", "logitport_server/registry/loader.py"]
    # The objects of a program that embeds the server go to its own processes.
    own = {"logitport_server/front_door/setups.py", "logitport_server/principal_process/preload.py"}
    assert all(place.startswith("logitport/payload/") or place in own for place in picklers)
