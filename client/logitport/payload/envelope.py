"""The string around a pickle or a program: JSON with a key "callable" or "program" that holds bytes in hexadecimal."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from logitport.errors import PayloadError
from logitport.payload import source_lines
from logitport.payload.bytecode import RUNNING
from logitport.payload.pickle_reader import read
from logitport.payload.signature import Signature

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logitport.payload.source_lines import SourcePart

_MAX_LABEL_LENGTH = 64
# No other characters: the sender chooses the name, and it is displayed next to trusted text and in terminals.
_CLASS_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)
_DIALECT = re.compile(r"[a-z][a-z0-9_]*")
_DIGITS_SHOWN = 12

# The dialect of programs, which is determined by the payload's key and not by its label.
PROGRAM = "program"


@dataclass(frozen=True)
class Payload:
    """A shipped processor: a pickle that is not unpickled, or a program that is not verified.

    Two are equal if their bytes are equal. No bytes are both: a program begins with a byte that begins no pickle.

    Attributes:
        data: the pickle, or the program's canonical bytes.
        digest: SHA-256 of `data`, 64 lowercase hexadecimal digits.
        python: the Python minor version that wrote it, according to its label, such as "3.11"; "" without a label.
        dill: the version of dill that wrote it, according to its label; "" without a label.
        signature: its signature, not verified, or None.
        class_name: name of its class or function, according to its label; "" without a label.
        dialect: its dialect, according to its label; "" without a label. The labels `class_name` and `dialect` are not
            verified. They are for display only, and no decision may depend on them.
        is_program: whether `data` is a program.
        source: source lines, for tracebacks only. Not verified.
    """

    data: bytes = field(repr=False, compare=False)
    digest: str
    python: str = field(default="", compare=False)
    dill: str = field(default="", compare=False)
    signature: Signature | None = field(default=None, compare=False)
    class_name: str = field(default="", compare=False)
    dialect: str = field(default="", compare=False)
    is_program: bool = field(default=False, compare=False)
    source: tuple[SourcePart, ...] = field(default=(), compare=False, repr=False)

    @property
    def display_name(self) -> str:
        """Its name for display."""
        return display_name_of(self.class_name, self.digest)

    @property
    def labels(self) -> dict[str, Any]:
        """What the string around `data` has besides it, in the form of JSON: for `labelled`."""
        signature = {} if self.signature is None else {"signature": self.signature.to_json()}
        source = {"source": [list(part) for part in self.source]} if self.source else {}
        labels = {"python": self.python, "dill": self.dill, "class": self.class_name, "dialect": self.dialect}
        return {**labels, **signature, **source}


def display_name_of(class_name: str, digest: str) -> str:
    """Make the display name of a shipped processor: its class, and the beginning of its digest.

    The digest is included because any sender may choose the class's name. Without a class name it is the whole digest.
    """
    return f"{class_name} (sha256:{digest[:_DIGITS_SHOWN]})" if class_name else digest


def seal(data: bytes, qualified_name: str, dialect: str, source: Sequence[SourcePart] = ()) -> str:
    """Wrap a pickle that this process made, of a class or function of this name, in a payload string."""
    import dill  # type: ignore[import-untyped]  # it is imported: it has made the pickle

    lines = {"source": [list(part) for part in source]} if source else {}
    labels = {"python": RUNNING, "dill": dill.__version__, **_class_label(qualified_name)}
    return json.dumps({"callable": data.hex(), **labels, "dialect": dialect, **lines})


def seal_program(data: bytes, class_name: str) -> str:
    """Wrap the canonical bytes of a program, captured from a class of this name, in a payload string."""
    return json.dumps({"program": data.hex(), **_class_label(class_name), "dialect": PROGRAM})


def parse(serialized: str, check_kind: Callable[[bool], object] | None = None) -> Payload:
    """Read the string and check that it holds a pickle, without unpickling it, or bytes that may be a program.

    Args:
        serialized: the string.
        check_kind: called with whether it holds a program, before anything else of it is read. May raise.

    Raises:
        PayloadError: not JSON, not an object, neither or both of "callable" and "program", not hexadecimal digits,
            not a pickle, a label that is not a short string, or a malformed signature.
    """
    shipped = unwrap(serialized, check_kind)
    if not shipped.is_program:
        read(shipped.data)
    return shipped


def unwrap(serialized: str, check_kind: Callable[[bool], object] | None = None) -> Payload:
    """Do the same as `parse`, but leave out the check that the bytes are a pickle, which reads each of its opcodes."""
    try:
        # orjson also refuses nesting that would exhaust the stack.
        content = orjson.loads(serialized)
    except orjson.JSONDecodeError as error:
        raise PayloadError(f"a payload is a JSON object, but this is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise PayloadError(f"a payload is a JSON object, not a {type(content).__name__}")
    is_program = "program" in content
    if is_program and "callable" in content:
        raise PayloadError('the payload has a "callable" and a "program": remove one of them')
    if not is_program and "callable" not in content:
        raise PayloadError('the payload has no "callable": make it with CustomLogitProcessor.to_str()')
    if check_kind is not None:
        check_kind(is_program)
    key = "program" if is_program else "callable"
    try:
        data = bytes.fromhex(_string(content, key))
    except ValueError as error:
        raise PayloadError(f'"{key}" must hold hexadecimal digits: {error}') from error
    return labelled(data, content, is_program=is_program)


def labelled(data: bytes, labels: Mapping[str, Any], *, is_program: bool) -> Payload:
    """Return the payload of a pickle or a program. Computes its digest.

    Args:
        data: the bytes, which are not checked.
        labels: the other content of the string around them; see `Payload.labels`.
        is_program: whether the bytes are a program.

    Raises:
        PayloadError: a label that is not a short string, or a malformed signature.
    """
    return Payload(
        data,
        hashlib.sha256(data).hexdigest(),
        "" if is_program else _label(labels, "python"),
        "" if is_program else _label(labels, "dill"),
        Signature.from_json(labels["signature"]) if "signature" in labels else None,
        _label(labels, "class", _CLASS_NAME),
        PROGRAM if is_program else _label(labels, "dialect", _DIALECT),
        is_program,
        source_lines.from_json(labels["source"]) if "source" in labels and not is_program else (),
    )


def holds_program(serialized: str) -> bool:
    """Whether a string is a payload that holds a program, and no code. Does not check the program."""
    if not serialized.lstrip().startswith("{"):  # a name; an exception of orjson would take several times as long
        return False
    try:
        content = orjson.loads(serialized)
    except orjson.JSONDecodeError:
        return False
    return isinstance(content, dict) and "program" in content and "callable" not in content


def _class_label(qualified_name: str) -> dict[str, str]:
    """The label of a class's name; none for a name that cannot be displayed safely."""
    # Drop the enclosing functions: their names carry little information, and may be long.
    class_name = qualified_name.rpartition("<locals>.")[2].replace("<lambda>", "lambda")
    fits = len(class_name) <= _MAX_LABEL_LENGTH and _CLASS_NAME.fullmatch(class_name)
    return {"class": class_name} if fits else {}


def _label(content: Mapping[str, Any], key: str, form: re.Pattern[str] | None = None) -> str:
    label = _string(content, key)
    if len(label) > _MAX_LABEL_LENGTH:
        raise PayloadError(f'"{key}" has {len(label)} characters; a label has {_MAX_LABEL_LENGTH} at most')
    if label and form is not None and not form.fullmatch(label):
        raise PayloadError(f'"{key}" must be a name, such as Ban or edits, not {label!r}')
    return label


def _string(content: Mapping[str, Any], key: str) -> str:
    value = content.get(key, "")
    if not isinstance(value, str):
        raise PayloadError(f'"{key}" must be a string, not a {type(value).__name__}')
    return value
