"""Registering a class that has changed since it was shipped."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import (
    Client,
    CustomLogitProcessor,
    EditProcessor,
    Request,
    StaleProcessorWarning,
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


def test_a_changed_class_is_registered_as_before_with_a_warning(client: Client) -> None:
    first = client.register(Denies)
    DENIED.append(2)
    message = (
        r"^Denies was shipped before, and the global 'DENIED' of ids has changed since: the state of that time is "
        r"registered; pass refresh=True to ship the present state$"
    )
    with pytest.warns(StaleProcessorWarning, match=message) as warned:
        assert client.register(Denies) == first
    assert [one.filename for one in warned] == [__file__]
    assert denied(client, first) == denied(client, Denies) == [1]

    second = client.register(Denies, refresh=True)
    assert second.digest != first.digest
    assert denied(client, second) == denied(client, Denies) == [1, 2]
    assert client.register(Denies) == second  # warnings are errors


def test_a_class_of_a_chain_that_has_changed(client: Client) -> None:
    assert denied(client, Denies) == [1]
    DENIED.append(2)
    with pytest.warns(StaleProcessorWarning, match="the global 'DENIED' of ids"):
        assert denied(client, client.register(Denies)) == [1]


def test_one_server_of_a_client_warns_too(server: RunningServer) -> None:
    with Client(server.target) as client:
        (one,) = client.servers()
        first = one.register(Denies, refresh=True)
        DENIED.append(2)
        with pytest.warns(StaleProcessorWarning) as warned:
            assert one.register(Denies) == first
        assert [warning.filename for warning in warned] == [__file__]
        assert one.register(Denies, refresh=True) != first


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
    assert reserialize(Scale, lift=True) == first._replace(changed="the global 'FACTOR' of Scale.__call__")
    assert reserialize(Scale, lift=True, refresh=True).serialized != first.serialized


def test_as_code_after_as_a_program_is_the_present_state(monkeypatch: pytest.MonkeyPatch) -> None:
    reserialize(Scale, lift=True)
    monkeypatch.setattr(f"{__name__}.FACTOR", 3.0)
    code = reserialize(Scale, lift=False)
    assert not code.changed
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


def test_no_warning_without_a_change(client: Client) -> None:
    with warnings.catch_warnings(record=True) as caught:
        client.register(Denies)
        client.register(Denies)
        client.register(Denies, refresh=True)
    assert not caught
