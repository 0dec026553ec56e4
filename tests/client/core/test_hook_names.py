"""Methods of an EditProcessor that look like misspelled hooks."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from logitport import EditProcessor, ProcessorWarning


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
        ("advanced", of_token, "advance"),
        ("Advance", of_token, "advance"),
        ("rewnd", of_request, "rewind"),
        ("strat", of_request, "start"),
        ("starts", of_request, "start"),
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


@pytest.mark.parametrize(
    "name",
    [
        *("state", "restart", "started", "stop", "step", "edits", "editor", "reset", "update", "validate", "check"),
        *("params", "unwind", "banned_ids", "head", "smart", "advice", "balance", "read_params"),
    ],
)
def test_ordinary_names_are_no_near_misses(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for member in (of_request, of_token, of_params):
            define(**{name: member})


@pytest.mark.parametrize(
    "members",
    [
        {"_advance": of_token},
        {"advances": of_request},  # with other arguments
        {"advances": of_token, "advance": of_token},
        {"starts": of_request, "edit": lambda self, request, edits: self.starts(request)},
        {"starts": of_request, "edit": lambda self, request, edits: [self.starts(one) for one in request]},
        {"starts": property(of_request), "advences": 5},
    ],
)
def test_helpers_are_no_near_misses(members: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        define(**members)


def test_a_helper_of_a_base_class_is_none() -> None:
    class Base(EditProcessor):
        def edit(self, request: Any, edits: Any) -> None:
            self.starts(request)  # type: ignore[attr-defined]

    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Derived(Base):
            def starts(self, request: Any) -> None: ...
