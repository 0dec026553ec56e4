"""Payloads made by cloudpickle."""

from __future__ import annotations

import json
import sys
import types
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import pytest
import torch

from logitport import CustomLogitProcessor, PayloadError, payload
from logitport.payload.pickle_reader import read
from tests.cloudpickled import serialize, shifts

PARAMS = [{"add": 1.0}, {"add": -1.0}]


def test_a_class_is_loaded() -> None:
    cls = shifts(CustomLogitProcessor)
    logits = torch.randn(2, 8)
    loaded = CustomLogitProcessor.from_str(serialize(cls))
    assert isinstance(loaded, CustomLogitProcessor)
    assert type(loaded) is not cls
    assert torch.equal(loaded(logits.clone(), PARAMS), cls()(logits.clone(), PARAMS))


def test_a_changed_class_is_another_processor() -> None:
    """cloudpickle by itself changes the class that it loaded before, if it is the same object for the author."""
    cls = shifts(CustomLogitProcessor)
    first = CustomLogitProcessor.from_str(serialize(cls))
    cls.step = 7.5
    second = CustomLogitProcessor.from_str(serialize(cls))
    assert (first.step, second.step) == (0.5, 7.5)  # type: ignore[attr-defined]


def test_without_cloudpickle_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = payload.parse(serialize(shifts(CustomLogitProcessor)))
    for module in ("cloudpickle", "cloudpickle.cloudpickle"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PayloadError, match="was made with cloudpickle: install cloudpickle on the server"):
        payload.loads(shipped)


class OtherCode:
    """Pickles as a code object with the fields of another Python."""

    def __reduce__(self) -> Any:
        extra = (b"",) if sys.version_info >= (3, 11) else ("f", 1, b"", b"")
        return types.CodeType, (0, 0, 0, 0, 1, 3, b"", (), (), (), "file", "f", *extra, 1, (), ())


def test_code_of_another_python_is_found() -> None:
    """The function that makes a code object is the result of a call: only the arguments show what it is."""
    codes = read(cloudpickle.dumps(shifts(CustomLogitProcessor))).codes
    assert {"__call__", "scaled", "<lambda>"} <= {code[11] for code in codes}
    shipped = payload.parse(json.dumps({"callable": cloudpickle.dumps(OtherCode()).hex()}))
    with pytest.raises(PayloadError, match="its code objects have"):
        payload.loads(shipped)
