"""The shipped form of a processor: a program, or code with the reason."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch

from logitport import (
    Client,
    CustomLogitProcessor,
    EditProcessor,
    Float,
    NotCapturable,
    PayloadError,
    Request,
    TensorProcessor,
    payload,
)
from logitport.shipping import reserialize, serialize
from logitport.shipping.request import name_processor
from tests.programs.runtime import build
from tests.programs.samplers import MinP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.conftest import RunningServer


class Branches(TensorProcessor):
    params: ClassVar = {"limit": Float(default=1.0)}

    def process(self, logits, params, history):  # type: ignore[no-untyped-def]
        return logits if params.limit[0] > 1 else logits * 2


class Scale(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits * torch.tensor([one.get("by", 1.0) for one in custom_param_list])[:, None]


class Loops(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        for row, one in zip(logits, custom_param_list, strict=True):
            if one.get("stop"):
                row[7] = 0.0
        return logits


class Raises(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        raise RuntimeError("not here")


class Denies(EditProcessor):
    def edit(self, request: Any, edits: Any) -> None:
        edits.deny([1])


def kind(serialized: str) -> str:
    return "program" if payload.parse(serialized).is_program else "code"


@pytest.mark.slow
def test_a_tensor_processor_is_shipped_as_a_program() -> None:
    for processor in (MinP, MinP()):
        assert kind(name_processor(processor).payload) == "program"
    assert serialize(MinP) is serialize(MinP())  # captured once
    assert payload.parse(serialize(MinP)).display_name.startswith("MinP (sha256:")


def test_a_program_is_shipped_as_it_is() -> None:
    program = build.min_p().program
    assert payload.parse(name_processor(program).payload).digest == program.digest
    assert reserialize(program, lift=False).serialized == name_processor(program).payload


@pytest.mark.slow
def test_a_tensor_processor_that_cannot_be_captured(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(NotCapturable, match=r"test_shipping\.py:\d+.*torch\.where"):
        reserialize(Branches, lift=True)
    assert kind(reserialize(Branches, lift=False).serialized) == "code"
    another = type("Another", (Branches,), {"__module__": __name__})
    with caplog.at_level(logging.WARNING):
        assert kind(serialize(another)) == "code"
    assert "is shipped as code, not as a program: " in caplog.text


def test_an_instance_with_attributes_is_refused_as_before() -> None:
    changed = MinP()
    changed.table = [1]  # type: ignore[attr-defined]
    for serialized in (serialize, lambda one: reserialize(one, lift=True)):
        with pytest.raises(PayloadError, match="attributes"):
            serialized(changed)


@pytest.mark.parametrize(
    ("processor", "shipped", "reason"),
    [
        (Scale, "program", ""),
        (Loops, "code", r"test_shipping\.py:\d+"),
        (Raises, "code", "not here"),
        (Denies, "code", ""),
    ],
)
@pytest.mark.slow
def test_other_classes_are_lifted_if_they_can_be(processor: Any, shipped: str, reason: str) -> None:
    made = reserialize(processor, lift=True)
    assert kind(made.serialized) == shipped
    assert re.search(reason, made.not_lifted)
    assert bool(made.not_lifted) == bool(reason)
    assert kind(reserialize(processor, lift=False).serialized) == "code"


@pytest.mark.slow
def test_what_was_registered_is_used_by_requests() -> None:
    own = type("Own", (Scale,), {"__module__": __name__})
    assert kind(serialize(own)) == "code"
    reserialize(own, lift=True)
    assert kind(serialize(own)) == "program"


@pytest.mark.slow
def test_registering_says_which(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logitport.shipping.LIFTS", True)
    lifted, code = client.register(Scale), client.register(Loops)
    try:
        assert (lifted.dialect, lifted.not_lifted) == ("program", "")
        assert (code.dialect, bool(code.not_lifted)) == ("sglang", True)
        logits = torch.ones(2, 8)
        requests = [Request([1], processors=[(lifted, {"by": 2.0})]), Request([1], processors=[(code, {"stop": True})])]
        result = client.apply(logits, requests).logits
        assert result.tolist() == [[2.0] * 8, [1.0] * 7 + [0.0]]
    finally:
        for ref in (lifted, code):
            client.delete(ref.digest)


@pytest.mark.slow
def test_the_reason_is_part_of_the_refusal(server_without_flag: RunningServer) -> None:
    with Client(server_without_flag.target) as client:
        with pytest.raises(PayloadError, match=r"it is no program, because .*test_shipping\.py:\d+"):
            client.register(Loops, lift=True)
        with pytest.raises(PayloadError) as refused:
            client.register(Loops, lift=False)
    assert "it is no program" not in str(refused.value)


def imported(modules: Sequence[str], code: str) -> str:
    check = f"import sys; {code}; print([name for name in {list(modules)} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    return ran.stdout.strip()


@pytest.mark.slow
def test_shipping_edits_imports_no_torch() -> None:
    code = (
        "from logitport.shipping import reserialize; from logitport_builtins import DisallowedTokens as D; "
        "reserialize(type('E', (D,), {'__module__': 'math'}), lift=True)"
    )
    assert imported(["torch"], code) == "[]"
