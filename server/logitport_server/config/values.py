"""Types of options with a form of their own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import AfterValidator

from logitport_sandbox.layers import LAYER_NAMES
from logitport_server import addresses
from logitport_server.config.option import Metavar, Unit, metadata_of
from logitport_server.config.units import OFF, format_duration, format_size

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

_SECONDS_OF = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
# Replaces a password where the configuration is printed.
HIDDEN = "***"
_PASSWORD_IN_QUERY = re.compile(r"([?&]password=)[^&]*")


class Rate(NamedTuple):
    """A number of calls per period of seconds."""

    calls: int
    seconds: int

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Parse text such as "1000/second" or "10 per 5 minutes". Raises ValueError."""
        match = re.fullmatch(r"(\d{1,9})(?:/| per )(?:(\d{1,9}) )?(second|minute|hour|day)s?", text.strip().lower())
        if match is None or int(match[1]) < 1 or int(match[2] or 1) < 1:
            raise ValueError(f"{text!r} is not a rate; write, for example, 1000/second or 5000/minute")
        return cls(int(match[1]), int(match[2] or 1) * _SECONDS_OF[match[3]])


def hide_password(url: str) -> str:
    """Return the URL with `HIDDEN` instead of passwords: before the host, or in the query."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    credentials, at, host = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    shown = f"{user}{colon}{HIDDEN}" if colon else credentials
    rest = _PASSWORD_IN_QUERY.sub(lambda match: match[1] + HIDDEN, host)
    return f"{scheme}{separator}{shown}{at}{rest}"


def text_of(field: FieldInfo, value: object) -> str:
    """Return a value of the field with its unit, for example "30s", "2GiB" or "off". Passwords in URLs are hidden."""
    if value is None:
        return OFF
    if isinstance(value, bool):
        return "on" if value else OFF
    unit = next((each.name for each in metadata_of(field) if isinstance(each, Unit)), None)
    if unit == "B" and isinstance(value, int):
        return format_size(value)
    if unit is not None and isinstance(value, (int, float)):
        return format_duration(value, unit)
    return hide_password(str(value))


def check_unique_names(option: str, values: list[str]) -> None:
    """Raise ValueError if two values NAME=... have the same name."""
    names = [value.partition("=")[0] for value in values]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{option} {duplicates[0]}=... is given twice; give each name once")


def _rate(value: str) -> str:
    Rate.parse(value)
    return value


def _matching(pattern: str, form: str) -> AfterValidator:
    """Make a validator of texts. `form` says what a wrong text is not, and what to write."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"{value!r} is not {form}")
        return value

    return AfterValidator(check)


def _processor_path(value: str) -> str:
    module, _, name = value.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise ValueError(f"{value!r} is not module.path:Class; write, for example, our_team.processors:BanFrench")
    return value


def _store(value: str) -> str:
    scheme, separator, rest = value.partition("://")
    if separator and scheme not in ("redis", "rediss"):  # without the rest, which may have a password
        raise ValueError(f"{scheme}:// is no store; write a folder, redis://HOST:PORT/DATABASE or rediss://...")
    if separator and not rest.rpartition("@")[2].strip("/"):
        raise ValueError(f"{scheme}:// has no host; write, for example, redis://127.0.0.1:6379/0")
    if separator and HIDDEN in rest:
        raise ValueError(
            f"the password is {HIDDEN}, which --print-config writes instead of it; set the URL in LOGITPORT_STORE"
        )
    return value


def _layer(value: str) -> str:
    name, _, state = value.partition("=")
    if name not in LAYER_NAMES:
        raise ValueError(f"{name!r} is not a layer of the sandbox; write one of {', '.join(LAYER_NAMES)}")
    if state not in ("off", "required"):
        raise ValueError(f"{value!r} is not {name}=off or {name}=required")
    return value


File = Annotated[Path, Metavar("FILE")]
Folder = Annotated[Path, Metavar("DIR")]
Port = Annotated[int, Metavar("PORT")]
Address = Annotated[str, Metavar("ADDRESS"), AfterValidator(addresses.checked)]
AddressOrSocket = Annotated[str, Metavar("ADDRESS"), AfterValidator(addresses.checked_or_socket)]
AdvertisedAddress = Annotated[str, Metavar("ADDRESS"), AfterValidator(addresses.checked_advertised)]
Device = Annotated[
    str, Metavar("DEVICE"), _matching(r"auto|cpu|cuda(:\d+)?", "a device; write auto, cpu, cuda or cuda:INDEX")
]
ProcessorPath = Annotated[str, Metavar("MODULE:CLASS"), AfterValidator(_processor_path)]
NamedTokenizer = Annotated[
    str,
    Metavar("NAME=FILE"),
    _matching(r"(?s)[^=]+=.+", "NAME=PATH; write, for example, qwen3=/models/Qwen3-8B/tokenizer.json"),
]
WorkerPython = Annotated[
    str,
    Metavar("VERSION=FILE"),
    _matching(r"(?s)3\.\d+=/.*", "VERSION=PATH; write, for example, 3.12=/usr/bin/python3.12"),
]
CallRate = Annotated[str, Metavar("RATE"), AfterValidator(_rate)]
Store = Annotated[str, Metavar("DIR|URL"), AfterValidator(_store)]
LayerState = Annotated[str, Metavar("LAYER=STATE"), AfterValidator(_layer)]
