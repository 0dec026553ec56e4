"""The string around the pickle: JSON whose key "callable" holds the pickle's bytes as hexadecimal digits."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import dill  # type: ignore[import-untyped]
import orjson

from logitport.errors import MalformedPayload
from logitport.payload.interpreter import RUNNING
from logitport.payload.pickle_reader import read
from logitport.payload.signature import Signature

_LONGEST_LABEL = 64


@dataclass(frozen=True)
class Payload:
    """A shipped processor, not unpickled. Two are equal if their bytes are.

    Attributes:
        data: the pickle.
        digest: SHA-256 of `data`, 64 lowercase hexadecimal digits.
        python: the Python minor version that wrote it, such as "3.11"; "" if it does not say.
        dill: the version of dill that wrote it; "" if it does not say.
        signature: what stands beside it, not verified; None if there is none.
    """

    data: bytes = field(repr=False, compare=False)
    digest: str
    python: str = field(default="", compare=False)
    dill: str = field(default="", compare=False)
    signature: Signature | None = field(default=None, compare=False)


def seal(data: bytes) -> str:
    """The string for a pickle made here."""
    return json.dumps({"callable": data.hex(), "python": RUNNING, "dill": dill.__version__})


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
    return Payload(data, digest, _label(content, "python"), _label(content, "dill"), signature)


def _label(content: dict[str, Any], key: str) -> str:
    label = _string(content, key)
    if len(label) > _LONGEST_LABEL:
        raise MalformedPayload(f'"{key}" has {len(label)} characters; a version has {_LONGEST_LABEL} at most')
    return label


def _string(content: dict[str, Any], key: str) -> str:
    value = content.get(key, "")
    if not isinstance(value, str):
        raise MalformedPayload(f'"{key}" must be a string, not a {type(value).__name__}')
    return value
