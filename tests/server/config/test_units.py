"""Durations, sizes and "off", in all forms that options accept."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError

from logitport_server.config.units import (
    Milliseconds,
    OrOff,
    Seconds,
    Size,
    accepts_off,
    format_duration,
    format_size,
)


class Options(BaseModel):
    seconds: Seconds = Field(1.0, ge=0)
    milliseconds: Milliseconds = 1.0
    size: Size = Field(1, ge=0)
    optional: OrOff[Seconds] = Field(5.0, gt=0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("500ms", 0.5),
        ("2m", 120),
        ("1h", 3600),
        ("2d", 172800),
        ("1h30m", 5400),
        ("1m500ms", 60.5),
        ("1.5h", 5400),
        (" 3s ", 3),
        ("0s", 0),
        ("7", 7),
        ("0.25", 0.25),
        ("1e2", 100),
        (7, 7),
        (0.25, 0.25),
    ],
)
def test_durations(text: Any, seconds: float) -> None:
    assert Options(seconds=text).seconds == seconds


@pytest.mark.parametrize(("text", "milliseconds"), [("75", 75), ("75ms", 75), ("2s", 2000), ("1m", 60000), (3.5, 3.5)])
def test_a_number_is_in_the_unit_of_the_option(text: Any, milliseconds: float) -> None:
    assert Options(milliseconds=text).milliseconds == milliseconds


@pytest.mark.parametrize(
    "text", ["", "soon", "s", "5 s", "5S", "5sec", "5s5", "1h!30m", "-5s", "1..5s", "s5", "0x5", "nan"]
)
@pytest.mark.parametrize("field", ["seconds", "milliseconds", "optional"])
def test_no_durations(field: str, text: str) -> None:
    with pytest.raises(ValidationError, match="is not a duration; write, for example, 500ms, 30s, 2m, 1h"):
        Options(**{field: text})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *product(("seconds", "optional"), ("36501d", "9" * 400 + "d", "1e13", "1e999")),
        *product(("seconds", "optional"), (1e13, float("inf"), float("nan"))),
    ],
)
def test_durations_that_are_too_long(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match="is too long; the longest duration is 36500d"):
        Options(**{field: value})


def test_the_longest_duration() -> None:
    assert Options(seconds="36500d").seconds == 36500 * 86400  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("2GiB", 2 << 30),
        ("512MiB", 512 << 20),
        ("64KiB", 64 << 10),
        ("1GB", 10**9),
        ("1.5GiB", 3 << 29),
        (" 1 GiB ", 1 << 30),
        ("0", 0),
        (4096, 4096),
    ],
)
def test_sizes(text: Any, size: int) -> None:
    assert Options(size=text).size == size
    assert type(Options(size=text).size) is int


@pytest.mark.parametrize("text", ["", "big", "GiB", "-1", "1XiB", "1e6", "2GiB2"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValidationError, match="is not a size; write, for example, 4096, 512MiB or 2GiB"):
        Options(size=text)


@pytest.mark.parametrize("number", [1.5, -1])
def test_no_sizes_from_files(number: float) -> None:
    with pytest.raises(ValidationError):
        Options(size=number)  # type: ignore[arg-type]


def test_limits_apply_to_values_with_units() -> None:
    with pytest.raises(ValidationError, match="greater than 0"):
        Options(optional="0s")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["off", None])
def test_off(value: str | None) -> None:
    assert Options(optional=value).optional is None  # type: ignore[arg-type]
    assert accepts_off(Options.model_fields["optional"])


def test_off_is_no_value_of_other_options() -> None:
    assert not accepts_off(Options.model_fields["seconds"])
    with pytest.raises(ValidationError):
        Options(seconds="off")  # type: ignore[arg-type]


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
