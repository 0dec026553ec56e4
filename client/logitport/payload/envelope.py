"""The string around the pickle: JSON whose key "callable" holds the pickle's bytes as hexadecimal digits."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

import dill  # type: ignore[import-untyped]
import orjson

from logitport.errors import MalformedPayload
from logitport.payload.bytecode import RUNNING
from logitport.payload.pickle_reader import read
from logitport.payload.signature import Signature

_MAX_LABEL_LENGTH = 64
# No other character: it is shown to people, beside what is not a stranger's, and in terminals.
_CLASS_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)
_DIALECT = re.compile(r"[a-z][a-z0-9_]*")
_DIGITS_SHOWN = 12


@dataclass(frozen=True)
class Payload:
    """A shipped processor, not unpickled. Two are equal if their bytes are.

    Attributes:
        data: the pickle.
        digest: SHA-256 of `data`, 64 lowercase hexadecimal digits.
        python: the Python minor version that wrote it, such as "3.11"; "" if it does not say.
        dill: the version of dill that wrote it; "" if it does not say.
        signature: what stands beside it, not verified; None if there is none.
        class_name: what it says that its class, or function, is called; "" if it does not say.
        dialect: of which dialect it says that it is; "" if it does not say. These two are for people: nothing vouches
            for them, nor does anything follow from them.
    """

    data: bytes = field(repr=False, compare=False)
    digest: str
    python: str = field(default="", compare=False)
    dill: str = field(default="", compare=False)
    signature: Signature | None = field(default=None, compare=False)
    class_name: str = field(default="", compare=False)
    dialect: str = field(default="", compare=False)

    @property
    def display_name(self) -> str:
        """What people are told of it."""
        return display_name_of(self.class_name, self.digest)


def display_name_of(class_name: str, digest: str) -> str:
    """What people are told of a shipped processor: its class, and the beginning of its digest, for a name is free.

    The whole digest, if its class is not known.
    """
    return f"{class_name} (sha256:{digest[:_DIGITS_SHOWN]})" if class_name else digest


def seal(data: bytes, qualified_name: str, dialect: str) -> str:
    """The string for a pickle made here, of a class or function of this name."""
    labels = {"python": RUNNING, "dill": dill.__version__}
    # What it is a local variable of says little, and may be long.
    class_name = qualified_name.rpartition("<locals>.")[2].replace("<lambda>", "lambda")
    if len(class_name) <= _MAX_LABEL_LENGTH and _CLASS_NAME.fullmatch(class_name):
        labels["class"] = class_name
    return json.dumps({"callable": data.hex(), **labels, "dialect": dialect})


def parse(serialized: str) -> Payload:
    """Read the string and check that it holds a pickle, without unpickling it.

    Raises:
        MalformedPayload: not JSON, not an object, no "callable", not hexadecimal digits, not a pickle, a label that is
            not a short string, or a signature that is none.
    """
    try:
        # orjson also refuses nesting that would exhaust the stack.
        content = orjson.loads(serialized)
    except orjson.JSONDecodeError as error:
        raise MalformedPayload(f"a payload is a JSON object, and this is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise MalformedPayload(f"a payload is a JSON object, not a {type(content).__name__}")
    if "callable" not in content:
        raise MalformedPayload('the payload has no "callable": make it with CustomLogitProcessor.to_str()')
    try:
        data = bytes.fromhex(_string(content, "callable"))
    except ValueError as error:
        raise MalformedPayload(f'"callable" must hold hexadecimal digits: {error}') from error
    read(data)
    digest = hashlib.sha256(data).hexdigest()
    signature = Signature.from_json(content["signature"]) if "signature" in content else None
    return Payload(
        data,
        digest,
        _label(content, "python"),
        _label(content, "dill"),
        signature,
        _label(content, "class", _CLASS_NAME),
        _label(content, "dialect", _DIALECT),
    )


def _label(content: dict[str, Any], key: str, form: re.Pattern[str] | None = None) -> str:
    label = _string(content, key)
    if len(label) > _MAX_LABEL_LENGTH:
        raise MalformedPayload(f'"{key}" has {len(label)} characters; a label has {_MAX_LABEL_LENGTH} at most')
    if label and form is not None and not form.fullmatch(label):
        raise MalformedPayload(f'"{key}" must be a name, such as Ban or edits, not {label!r}')
    return label


def _string(content: dict[str, Any], key: str) -> str:
    value = content.get(key, "")
    if not isinstance(value, str):
        raise MalformedPayload(f'"{key}" must be a string, not a {type(value).__name__}')
    return value
