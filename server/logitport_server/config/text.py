"""Values of options as text, for the help and for printed configurations."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from logitport_server.config.option import Unit, metadata_of
from logitport_server.config.units import OFF, format_duration, format_size
from logitport_server.config.values import hide_password

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


def text_of(field: FieldInfo, value: object) -> str:
    """Return a value of the field with its unit, for example "30s", "2GiB" or "off". Passwords in URLs are hidden."""
    if value is None:
        return OFF
    if isinstance(value, bool):
        return "on" if value else OFF
    if isinstance(value, timedelta):
        return format_duration(value.total_seconds(), "s")
    unit = next((each.name for each in metadata_of(field) if isinstance(each, Unit)), None)
    if unit == "B" and isinstance(value, int):
        return format_size(value)
    if unit is not None and isinstance(value, (int, float)):
        return format_duration(value, unit)
    return hide_password(str(value))
