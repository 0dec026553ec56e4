from __future__ import annotations

import hashlib
import io
import json
import pickle
import sys
from contextlib import suppress
from typing import ClassVar

import dill
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport import PayloadError, payload
from logitport.payload import Payload, pickle_reader
from tests.toy_processors import Unchanged

REAL = payload.parse(payload.dumps(Unchanged)).data


def string(data, **labels):
    return json.dumps({"callable": data.hex(), **labels})


def test_a_string_made_by_dumps_and_one_without_labels():
    parsed = payload.parse(Unchanged.to_str())
    assert parsed.digest == hashlib.sha256(parsed.data).hexdigest()
    assert parsed.python == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert parsed.dill == dill.__version__
    parsed = payload.parse(string(REAL))
    assert (parsed.data, parsed.python, parsed.dill) == (REAL, "", "")


def test_a_program():
    parsed = payload.parse(payload.seal_program(b"\x08\x01", "Outer.<locals>.MinP"))
    assert (parsed.data, parsed.digest) == (b"\x08\x01", hashlib.sha256(b"\x08\x01").hexdigest())
    assert (parsed.is_program, parsed.dialect, parsed.class_name) == (True, "program", "MinP")
    assert not payload.parse(string(REAL, dialect="program")).is_program  # a label decides nothing


# Names that imitate other text where they are displayed, or that control a terminal.
NO_CLASS_NAMES = [
    *("Ban (sha256:000000000000) raised", "Ban\n", "\x1b[31mBan", "Ban\u202e", "B\u0430n", "<Ban>", "1Ban", ".Ban"),
    *("Ban.", " ", "disallowed tokens", "team/ban", "Ban\0"),
]


def test_labels_for_display():
    parsed = payload.parse(string(REAL, **{"class": "Outer.Ban_2", "dialect": "vllm_v1"}))
    assert (parsed.class_name, parsed.dialect) == ("Outer.Ban_2", "vllm_v1")
    assert parsed.display_name == f"Outer.Ban_2 (sha256:{parsed.digest[:12]})"
    silent = payload.parse(string(REAL))
    assert (silent.class_name, silent.dialect, silent.display_name) == ("", "", silent.digest)


def test_payloads_are_equal_if_their_bytes_are():
    labelled, plain = payload.parse(Unchanged.to_str()), payload.parse(string(REAL, python="3.9", other=1))
    assert labelled == plain
    assert hash(labelled) == hash(plain)
    assert labelled != payload.parse(string(pickle.dumps(1)))
    assert REAL.hex() not in repr(labelled)


@pytest.mark.parametrize(
    ("serialized", "message"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("\ud800", "is not JSON"),
        ('"a string"', "not a str"),
        ("[1]", "not a list"),
        ("{}", 'no "callable"'),
        ('{"callable": 3}', '"callable" must be a string, not a int'),
        ('{"callable": null}', '"callable" must be a string'),
        ('{"callable": "zz"}', "hexadecimal digits"),
        ('{"callable": "abc"}', "hexadecimal digits"),
        ('{"callable": "ü"}', "hexadecimal digits"),
        ('{"callable": ""}', "not a pickle"),
        ('{"callable": "00"}', "not a pickle: after byte 0"),
        (string(REAL[:-1]), "not a pickle: after byte"),
        (string(b"\x80\x04)0)0a."), "not a pickle"),
        (string(b"\x80\x04."), "not a pickle"),
        (string(b"\x80\x04h\x05."), "not a pickle"),
        (string(b"\x80\x04Nr\xff\xff\xff\xff."), "4294967295 is not a place in the memo"),  # it would fill the memory
        (string(b"\x80\x04(\x94."), "a mark where a value should be"),
        (string(REAL, python=3.11), '"python" must be a string'),
        (string(REAL, dill=None), '"dill" must be a string'),
        (string(REAL, dill="x" * 65), '"dill" has 65 characters; a label has 64 at most'),
        (string(REAL, **{"class": 3}), '"class" must be a string'),
        (string(REAL, **{"class": "X" * 65}), '"class" has 65 characters'),
        *((string(REAL, **{"class": wrong}), '"class" must be a name') for wrong in NO_CLASS_NAMES),
        *((string(REAL, dialect=wrong), '"dialect" must be a name') for wrong in ("two words", "\x1b[31m", "A")),
        (string(REAL, program="0801"), "remove one of them"),
        # The canonical bytes of a program begin like this, and are no pickle.
        (string(b"\x08\x01" + REAL), "not a pickle"),
        *((json.dumps({"program": wrong}), "program") for wrong in ("08 0", "zz", 1, None)),
        ("[" * 100_000, "is not JSON"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "is not JSON"),
    ],
)
def test_malformed_payloads_are_refused(serialized, message):
    with pytest.raises(PayloadError, match=message):
        payload.parse(serialized)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["callable", "python"]), inner),
)


@given(st.text() | JSON.map(json.dumps) | st.binary().map(string))
def test_no_other_exception_than_malformed_payload_is_raised(serialized):
    try:
        parsed = payload.parse(serialized)
    except PayloadError:
        return
    assert isinstance(parsed, Payload)


def changed(data, changes, length):
    data = bytearray(data)
    for place, value in changes:
        data[place % len(data)] = value
    return bytes(data[: length % (len(data) + 1) or None])


CHANGES = st.builds(
    changed,
    st.just(REAL),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=6),
    st.just(0) | st.integers(0, 5000),
)


@given(CHANGES)
def test_changed_bytes_are_refused_or_read(data):
    with suppress(PayloadError):
        payload.check_python(payload.parse(string(data)))


@given(st.binary() | CHANGES)
def test_reading_refuses_what_unpickling_refuses(data):
    try:
        payload.parse(string(data))
    except PayloadError as error:
        if "memo" in error.message:
            return
        with pytest.raises(Exception):  # noqa: B017, PT011 - pickle may raise any exception
            Unpickler(io.BytesIO(data)).load()


class Unpickler(pickle._Unpickler):  # the Python one: the C one crashes on some of these
    def find_class(self, module, name):
        return Anything

    def persistent_load(self, pid):
        return pid


class Anything:
    def __new__(cls, *args, **keywords):
        return super().__new__(cls)

    def __setstate__(self, state):
        pass

    def __call__(self, *args, **keywords):
        return Anything()

    def append(self, item):
        pass

    def extend(self, items):
        pass

    def __setitem__(self, key, value):
        pass


class Vocabulary(Unchanged):
    words = tuple(f"Ġ{number}" for number in range(3000))
    ids: ClassVar = {word: number * 30 - 9 for number, word in enumerate(words)}
    rare = frozenset(("a" * 300, "\ud800", ""))
    mixed: ClassVar = [
        (f"Ġ{number}", number / 3, None, {number: b"x"}, {number, "y"}, number > 7, number << 40)
        for number in range(500)
    ]


def test_strings_and_numbers_are_read_as_by_pickletools(monkeypatch):
    data = payload.parse(payload.dumps(Vocabulary)).data
    steps = []
    step = pickle_reader._Reader.step
    monkeypatch.setattr(pickle_reader._Reader, "step", lambda self, op, arg: (steps.append(op), step(self, op, arg)))
    read = pickle_reader.read.__wrapped__
    fast = read(data)
    assert len([op for op in steps if op.arg is not None]) < 2000  # pickletools reads these; the others are skimmed
    monkeypatch.setattr(pickle_reader._Reader, "skim", lambda self, data, position: position)
    assert read(data) == fast
    assert len(steps) > 12_000
    assert set(Vocabulary.words) < fast.keys


@pytest.mark.parametrize(
    "value", ["ab", "é" * 200, 5, 300, 70_000, -1, ["a", "b", "a", 1, 2], [str(n) for n in range(100)] * 2]
)
def test_truncated_strings_and_numbers(value):
    data = pickle.dumps(value, protocol=4)
    for end in range(max(0, len(data) - 1000), len(data)):
        with pytest.raises(PayloadError, match="is not a pickle: after byte"):
            payload.parse(string(data[:end]))
