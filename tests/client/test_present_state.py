"""A class is shipped in its present state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import (
    Client,
    CustomLogitProcessor,
    EditProcessor,
    Request,
    payload,
)
from logitport.programs import lift
from logitport.request import name_processor
from logitport.shipping import reserialize, serialize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import RunningServer

DENIED = [1]
FACTOR = 2.0
WORDS = ["a"] * 20_000


def ids() -> list[int]:
    return DENIED


class Denies(EditProcessor):
    def edit(self, request: Any, edits: Any) -> None:
        edits.deny(ids())


class Scale(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits * FACTOR


@pytest.fixture(autouse=True)
def _constants(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins with the same constants, and with classes that were not shipped."""
    monkeypatch.setattr("logitport.shipping._made", {})
    before = [*DENIED]
    yield
    DENIED[:] = before


def denied(client: Client, ref: Any) -> list[int]:
    logits = client.apply(torch.zeros(1, 8), [Request([1], processors=[(ref, {})])]).logits
    return logits[0].isinf().nonzero().flatten().tolist()


def test_a_changed_class(client: Client) -> None:
    first = client.register(Denies)
    assert denied(client, first) == denied(client, Denies) == [1]
    DENIED.append(2)
    assert denied(client, Denies) == [1, 2]
    second = client.register(Denies)
    assert second.digest != first.digest
    assert denied(client, second) == denied(client, Denies) == [1, 2]
    assert denied(client, first) == [1]
    assert client.register(Denies) == second


def test_one_server_of_a_client(server: RunningServer) -> None:
    with Client(server.target) as client:
        (one,) = client.servers()
        first = one.register(Denies)
        DENIED.append(2)
        assert one.register(Denies) != first


def test_an_unchanged_class_is_neither_pickled_nor_lifted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = [reserialize(Denies, lift=True), reserialize(Scale, lift=True)]
    for name in ("dumps", "seal_program"):
        monkeypatch.setattr(payload, name, None)
    assert [reserialize(Denies, lift=True), reserialize(Scale, lift=True)] == first
    assert [serialize(Denies), serialize(Scale)] == [shipped.serialized for shipped in first]


def test_a_program_of_which_a_global_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    first = reserialize(Scale, lift=True)
    assert payload.parse(first.serialized).is_program
    monkeypatch.setattr(f"{__name__}.FACTOR", 3.0)
    assert payload.parse(serialize(Scale)).is_program  # a chain ships what was registered, in its present state
    assert reserialize(Scale, lift=True).serialized == serialize(Scale) != first.serialized


def test_as_code_after_as_a_program_is_the_present_state(monkeypatch: pytest.MonkeyPatch) -> None:
    reserialize(Scale, lift=True)
    monkeypatch.setattr(f"{__name__}.FACTOR", 3.0)
    code = reserialize(Scale, lift=False)
    assert payload.instantiate(payload.loads(payload.parse(code.serialized)))(torch.ones(1))[0] == 3.0
    assert name_processor(Scale).payload == code.serialized


def test_instances_are_always_serialized_anew(client: Client) -> None:
    client.register(Denies())
    DENIED.append(2)
    assert denied(client, client.register(Denies())) == [1, 2]


def test_a_class_with_a_large_container_is_not_lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Many(CustomLogitProcessor):
        def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
            return logits + len(WORDS)

    monkeypatch.setattr(lift, "lift", None)
    shipped = reserialize(Many, lift=True)
    assert not payload.parse(shipped.serialized).is_program
    assert shipped.not_lifted.startswith("the global 'WORDS' of ")
    assert "is a list of 20,000 elements" in shipped.not_lifted
    assert "derive from TensorProcessor" in shipped.not_lifted
