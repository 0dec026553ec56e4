"""Durations, sizes and "off", in all forms that options accept."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError

from logitport_server.config.units import Milliseconds, OrOff, Seconds, Size, accepts_off, format_duration, format_size


class Options(BaseModel):
    seconds: Seconds = Field(1.0, ge=0)
    milliseconds: Milliseconds = 1.0
    size: Size = Field(1, ge=0)
    optional: OrOff[Seconds] = Field(5.0, gt=0)


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("seconds", "30s", 30),
        ("seconds", "500ms", 0.5),
        ("seconds", "1h", 3600),
        ("seconds", "2d", 172800),
        ("seconds", "1h30m", 5400),
        ("seconds", "1m500ms", 60.5),
        ("seconds", "1.5h", 5400),
        ("seconds", " 3s ", 3),
        ("seconds", "0.25", 0.25),
        ("seconds", "1e2", 100),
        ("seconds", 7, 7),
        ("seconds", "36500d", 36500 * 86400),
        ("milliseconds", "75", 75),  # a number is in the unit of the option
        ("milliseconds", "75ms", 75),
        ("milliseconds", "2s", 2000),
        ("milliseconds", 3.5, 3.5),
        ("size", "4096", 4096),
        ("size", "2GiB", 2 << 30),
        ("size", "512MiB", 512 << 20),
        ("size", "64KiB", 64 << 10),
        ("size", "1GB", 10**9),
        ("size", "1.5GiB", 3 << 29),
        ("size", " 1 GiB ", 1 << 30),
        ("size", 4096, 4096),
    ],
)
def test_values_with_units(field: str, text: Any, value: float) -> None:
    read = getattr(Options(**{field: text}), field)
    assert (read, type(read)) == (value, int if field == "size" else float)


@pytest.mark.parametrize(
    ("fields", "texts", "message"),
    [
        (
            ("seconds", "milliseconds", "optional"),
            ("", "soon", "s", "5 s", "5S", "5sec", "5s5", "1h!30m", "-5s", "1..5s", "s5", "0x5", "nan"),
            "is not a duration",
        ),
        (("seconds", "optional"), ("36501d", "9" * 400 + "d", "1e13", 1e13, float("inf"), float("nan")), "is too long"),
        (("size",), ("", "big", "GiB", "-1", "1XiB", "1e6", "2GiB2"), "is not a size"),
        (("size",), (1.5, -1), "size"),
        (("optional",), ("0s",), "greater than 0"),  # limits hold for values with units, too
        (("seconds",), ("off",), "is not a duration"),
    ],
)
def test_values_that_are_refused(fields: tuple[str, ...], texts: tuple[Any, ...], message: str) -> None:
    for field, text in product(fields, texts):
        with pytest.raises(ValidationError, match=message):
            Options(**{field: text})


@pytest.mark.parametrize("value", ["off", None])
def test_off(value: str | None) -> None:
    assert Options(optional=value).optional is None  # type: ignore[arg-type]
    assert accepts_off(Options.model_fields["optional"])
    assert not accepts_off(Options.model_fields["seconds"])


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [
        (30, "s", "30s"),
        (60, "s", "1m"),
        (90, "s", "90s"),
        (5400, "s", "90m"),
        (2592000, "s", "30d"),
        (0.5, "s", "500ms"),
        (2.5, "s", "2.5s"),
        (0, "s", "0s"),
        (75, "ms", "75ms"),
        (1500, "ms", "1.5s"),
        (123.456, "s", "123.456s"),
        (1234567.5, "s", "1234567.5s"),
        (0.0123456789, "ms", "0.0123456789ms"),
    ],
)
def test_a_duration_is_read_as_it_was_written(number: float, unit: str, text: str) -> None:
    assert format_duration(number, unit) == text
    field = {"s": "seconds", "ms": "milliseconds"}[unit]
    assert getattr(Options(**{field: text}), field) == pytest.approx(number, rel=1e-12)


@pytest.mark.parametrize(
    ("number", "text"),
    [(2 << 30, "2GiB"), (3 << 29, "1536MiB"), (4096, "4KiB"), (1000, "1000"), (0, "0"), ((1 << 31) - 1, "2147483647")],
)
def test_a_size_is_read_as_it_was_written(number: int, text: str) -> None:
    assert format_size(number) == text
    assert Options(size=text).size == number  # type: ignore[arg-type]
