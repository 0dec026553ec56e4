"""A class is shipped in its present state."""

from __future__ import annotations

import calendar
import gc
import os
import threading
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import pytest
import torch

from logitport import (
    Client,
    CustomLogitProcessor,
    EditProcessor,
    Float,
    NotCapturable,
    Request,
    TensorProcessor,
    payload,
    shipping,
)
from logitport.shipping import reserialize, serialize
from logitport.shipping.request import message_of, name_processor
from logitport_programs import capturing, lifting

if TYPE_CHECKING:
    from collections.abc import Iterator


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


def test_an_unchanged_class_is_not_pickled_again_and_in_a_chain_not_lifted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = [reserialize(Denies, lift=True), reserialize(Scale, lift=True)]
    assert reserialize(Scale, lift=True) == first[1]
    for name in ("dumps", "seal_program"):
        monkeypatch.setattr(payload, name, None)
    assert reserialize(Denies, lift=True) is first[0]  # edits cannot be lifted
    assert [serialize(Denies), serialize(Scale)] == [shipped.serialized for shipped in first]


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """The classes that were captured, in order."""
    captured: list[type] = []
    real = capturing.capture

    def counts(cls: type, *args: Any, **kwargs: Any) -> Any:
        captured.append(cls)
        return real(cls, *args, **kwargs)

    monkeypatch.setattr(capturing, "capture", counts)
    return captured


class Locked(TensorProcessor):
    """Can be captured, but not pickled."""

    lock = threading.Lock()

    def process(self, logits, params, history):  # type: ignore[no-untyped-def]
        return logits * FACTOR


def test_a_program_of_a_class_that_cannot_be_pickled_is_made_once(
    captures: list[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = serialize(Locked)
    assert payload.parse(first).is_program
    for _ in range(2):
        assert message_of(Request([1], processors=[(Locked, {})])).processors[0].processor.payload == first
    assert captures == [Locked]
    monkeypatch.setattr(f"{__name__}.FACTOR", 3.0)
    assert serialize(Locked) is first  # as the page says of such a class
    assert reserialize(Locked, lift=True).serialized == serialize(Locked) != first
    monkeypatch.delattr(Locked, "lock")
    serialize(Locked)
    assert captures == [Locked] * 3


def test_a_class_that_was_shipped_can_be_deleted() -> None:
    shipping._made = WeakKeyDictionary()
    cls = type("Short", (Locked,), {"__module__": __name__})
    serialize(cls)
    assert len(shipping._made) == 1
    del cls
    gc.collect()
    assert not shipping._made


class FromEnvironment(TensorProcessor):
    def process(self, logits, params, history):  # type: ignore[no-untyped-def]
        return logits * float(os.environ["LOGITPORT_TEST_FACTOR"]) + calendar.MONDAY


class LiftedFromEnvironment(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits * float(os.environ["LOGITPORT_TEST_FACTOR"]) + calendar.MONDAY


@pytest.mark.parametrize("cls", [FromEnvironment, LiftedFromEnvironment])
def test_a_program_contains_what_a_pickle_refers_to_by_name(cls: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_TEST_FACTOR", "2")
    monkeypatch.setattr(calendar, "MONDAY", 1)
    made = [reserialize(cls, lift=True).serialized]
    monkeypatch.setenv("LOGITPORT_TEST_FACTOR", "3")
    assert serialize(cls) == made[0]  # a chain ships what was registered, as the page says
    made.append(reserialize(cls, lift=True).serialized)
    monkeypatch.setattr(calendar, "MONDAY", 2)
    made.append(reserialize(cls, lift=True).serialized)
    assert all(payload.parse(one).is_program for one in made)
    assert len(set(made)) == 3
    assert serialize(cls) == made[2]


def test_a_class_that_could_not_be_lifted_is_lifted_when_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGITPORT_TEST_FACTOR", raising=False)
    assert "LOGITPORT_TEST_FACTOR" in reserialize(LiftedFromEnvironment, lift=True).not_lifted
    monkeypatch.setenv("LOGITPORT_TEST_FACTOR", "2")
    assert payload.parse(reserialize(LiftedFromEnvironment, lift=True).serialized).is_program


SIZES = {"first": 1}


class Fills:
    def __reduce__(self) -> Any:
        SIZES["reduced"] = 2
        return Fills, ()


class Remembers(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits * len(SIZES)

    fills = Fills()  # saved after the global


def test_a_cache_that_is_filled_while_the_payload_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.SIZES", {"first": 1})
    first = serialize(Remembers)
    assert serialize(Remembers) is first


LIMIT = 1


class Branches(TensorProcessor):
    params: ClassVar = {"limit": Float(default=1.0)}

    def process(self, logits, params, history):  # type: ignore[no-untyped-def]
        return logits * params.limit[:, None] if LIMIT or params.limit[0] > 1 else logits


def test_a_class_that_could_not_be_captured_is_captured_after_a_change(
    captures: list[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.LIMIT", 0)
    code = serialize(Branches)
    assert not payload.parse(code).is_program
    assert serialize(Branches) is code
    assert captures == [Branches]
    with pytest.raises(NotCapturable):
        reserialize(Branches, lift=True)
    monkeypatch.setattr(f"{__name__}.LIMIT", 1)
    assert payload.parse(serialize(Branches)).is_program


def test_a_class_that_was_registered_as_code_stays_code(monkeypatch: pytest.MonkeyPatch) -> None:
    code = reserialize(Branches, lift=False).serialized
    monkeypatch.setattr(f"{__name__}.LIMIT", 2)
    assert serialize(Branches) != code
    assert not payload.parse(serialize(Branches)).is_program


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

    monkeypatch.setattr(lifting, "lift", None)
    shipped = reserialize(Many, lift=True)
    assert not payload.parse(shipped.serialized).is_program
    assert shipped.not_lifted.startswith("the global 'WORDS' of ")
    assert "is a list of 20,000 elements" in shipped.not_lifted
    assert reserialize(Many, lift=True) is shipped
    assert "derive from TensorProcessor" in shipped.not_lifted
