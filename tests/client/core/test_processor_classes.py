"""Classes derived from `EditProcessor`: declared parameters, and methods that look like misspelled hooks."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import Bool, Client, EditProcessor, Float, Int, InvalidArgument, ProcessorWarning, Request, TokenIds
from logitport_session.dialects.edit_dialect import EditDialect
from logitport_testing import ToyModel, simulate

if TYPE_CHECKING:
    from collections.abc import Mapping


class Boost(EditProcessor):
    params = {  # noqa: RUF012
        "ids": TokenIds(max_ids=2),
        "bias": Float(default=1.5, ge=-10, le=10),
        "after": Int(default=0, ge=0),
        "on": Bool(default=True),
    }

    def edit(self, request: Any, edits: Any) -> None:
        assert list(request.params) == ["ids", "bias", "after", "on"]
        if request.params["on"] and request.history.length >= request.params["after"]:
            edits.bias(request.params["ids"], request.params["bias"])


class Plain(EditProcessor):
    def edit(self, request: Any, edits: Any) -> None:
        edits.deny(request.params["ids"])


class OfItsOwn(Plain):
    params = "an attribute that declares nothing"


class Narrow(Boost):
    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        super().validate_params(params)
        if params.get("bias") == 0:
            raise ValueError("bias is 0, which has no effect")


WRONG = [
    ({}, "Boost: parameter 'ids' is missing; set it to a list of at most 2 token ids"),
    ({"ids": [1], "bias": 11}, r"Boost: parameter 'bias' is 11; it must be a number in \[-10, 10\]"),
    ({"ids": [1], "bias": "1"}, "Boost: parameter 'bias' is '1'; it must be a number"),
    ({"ids": [1], "after": 0.5}, "Boost: parameter 'after' is 0.5; it must be an integer"),
    ({"ids": [1], "Bias": 1}, "Boost: there is no parameter 'Bias'; set only: ids, bias, after, on"),
]


@pytest.mark.parametrize(("params", "message"), WRONG, ids=range(len(WRONG)))
def test_a_server_refuses_what_is_not_declared(client: Client, params: dict[str, Any], message: str) -> None:
    with (
        client.session(vocab_size=8) as session,
        pytest.raises(InvalidArgument, match=message),
    ):
        session.add(Request([1], processors=[(Boost, params)]))


def test_in_a_simulation() -> None:
    result = simulate([(Boost, {"ids": [1], "after": 1})], ToyModel(8), [], steps=2)
    assert [step.processors[0].bias.tolist() for step in result.steps] == [[], [pytest.approx(1.5)]]
    with pytest.raises(InvalidArgument, match=WRONG[1][1]):
        simulate([(Boost, WRONG[1][0])], ToyModel(8), [1], steps=1)


def test_called_with_a_tensor() -> None:
    request = SimpleNamespace(origin_input_ids=[1], output_ids=[])
    assert Boost()(torch.zeros(1, 3), [{"ids": [1], "__req__": request}]).tolist() == [[0, 1.5, 0]]
    with pytest.raises(InvalidArgument, match="'ids' is missing"):
        Boost()(torch.zeros(1, 3), [{"__req__": request}])


@pytest.mark.parametrize(("processor", "checks"), [(Boost, True), (Narrow, True), (Plain, False), (OfItsOwn, False)])
def test_only_declarations_are_checked(processor: type[EditProcessor], checks: bool) -> None:
    assert EditDialect(processor, "it", shipped=False).checks_params is checks
    if not checks:
        assert simulate([(processor, {"ids": [1], "more": 2})], ToyModel(8), [1], steps=1).steps[0].moved >= 0


@pytest.mark.parametrize("declared", [Int, int, 3], ids=["class", "type", "value"])
def test_what_declares_nothing_is_refused_with_the_class(declared: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^Mistyped\.params\['n'\]"):
        type("Mistyped", (Plain,), {"params": {"m": Int(), "n": declared}})


def define(**members: Any) -> type:
    return type("Mine", (EditProcessor,), {"edit": lambda self, request, edits: None, **members})


def of_request(self: Any, request: Any) -> None: ...


def of_token(self: Any, request: Any, token_id: int) -> None: ...


@classmethod  # type: ignore[misc]
def of_params(cls: Any, params: Any) -> None: ...


@pytest.mark.parametrize(
    ("name", "member", "hook"),
    [
        ("advence", of_token, "advance"),
        ("Advance", of_token, "advance"),
        ("rewnd", of_request, "rewind"),
        ("strat", of_request, "start"),
        ("edit_bach", of_token, "edit_batch"),
        ("validate_param", of_params, "validate_params"),
        ("validate_param", staticmethod(lambda params: None), "validate_params"),
        ("validate_fro", of_token, "validate_for"),
    ],
)
def test_a_near_miss_is_a_warning(name: str, member: Any, hook: str) -> None:
    with pytest.warns(ProcessorWarning, match=rf"Mine\.{name} is no hook.*rename it to {hook}") as warned:
        define(**{name: member})
    assert len(warned) == 1


def test_the_warning_points_to_the_class() -> None:
    with pytest.warns(ProcessorWarning) as warned:

        class Mine(EditProcessor):
            def edit(self, request: Any, edits: Any) -> None: ...

            def advence(self, request: Any, token_id: int) -> None: ...

    assert warned[0].filename == __file__
    assert warned[0].lineno < Mine.advence.__code__.co_firstlineno


ORDINARY = """
    state restart started stop step edits editor reset update validate check params unwind banned_ids head smart advice
    balance read_params
"""


@pytest.mark.parametrize(
    "members",
    [
        *({name: member} for name in ORDINARY.split() for member in (of_request, of_token, of_params)),
        {"_advance": of_token},
        {"advances": of_request},  # with other arguments
        {"advances": of_token, "advance": of_token},
        {"starts": of_request, "edit": lambda self, request, edits: self.starts(request)},
        {"starts": of_request, "edit": lambda self, request, edits: [self.starts(one) for one in request]},
        {"starts": property(of_request), "advences": 5},
    ],
)
def test_ordinary_names_and_helpers_are_no_near_misses(members: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        define(**members)
