from __future__ import annotations

import functools
import importlib
import io
import socket
import sys
import tempfile
import textwrap
import threading
import typing
from enum import Enum
from types import ModuleType

import pytest

from logitport import CustomLogitProcessor, EditProcessor, PayloadError, payload
from logitport.dialects import InDialect

LOCK = threading.Lock()
EVENT = threading.Event()
BUFFER = io.BytesIO(b"in memory")


class Options(typing.TypedDict):
    size: int


class Planet(Enum):
    EARTH = 1

    def __init__(self, place):
        self.place = place


def uses_lock():
    with LOCK:
        return 1


class Locks(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return uses_lock()


class Events(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return EVENT.is_set()


class Typed(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return Options(size=1)


class Enums(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return Planet.EARTH.place


class Generators(CustomLogitProcessor):
    numbers = (number for number in range(3))

    def __call__(self, logits, custom_param_list=None):
        return next(self.numbers)


class Buffers(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return BUFFER.getvalue()


def closing_over(live):
    class Closes(CustomLogitProcessor):
        def __call__(self, logits, custom_param_list=None, key=lambda: live):
            return key()

    return Closes


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Locks, r"Locks cannot be shipped because of .*the global 'LOCK' of uses_lock: it is a lock; .* in __init__"),
        (Events, "the global 'EVENT' of .*it is a lock"),
        (Typed, "Options is a TypedDict"),
        (Enums, "Planet is an enum with its own __init__, __new__ or several mixins"),
        (Generators, "the attribute 'numbers' of Generators: TypeError: .*generator.*in __init__"),
    ],
)
def test_the_error_names_what_cannot_be_shipped(cls, message):
    with pytest.raises(PayloadError, match=message):
        payload.dumps(cls)


@pytest.mark.parametrize(
    ("open_it", "message"),
    [
        (tempfile.TemporaryFile, "it is an open file; read it here, and keep the contents in a constant"),
        (socket.socket, "it is a socket, and the sandbox of the server has neither network nor files"),
        (threading.RLock, "it is a lock; create it in __init__, which runs in the sandbox of the server"),
        (threading.Thread, "it is a thread"),
        (threading.local, "_thread._local"),
    ],
)
def test_a_lambda_that_encloses_a_live_object_is_refused(open_it, message):
    live = open_it()
    try:
        with pytest.raises(PayloadError, match=f"the variable 'live' that .*lambda> encloses: .*{message}"):
            payload.dumps(closing_over(live))
    finally:
        getattr(live, "close", bool)()


def test_files_in_memory_are_shipped():
    cls = payload.loads(payload.parse(payload.dumps(Buffers)))
    assert cls()([], None) == b"in memory"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes files of a package `client_package`, and imports it."""

    def write(folder=tmp_path, **files):
        for name, source in {"__init__": "", **files}.items():
            path = folder / "client_package" / f"{name}.py"
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(textwrap.dedent(source))
        monkeypatch.syspath_prepend(folder)
        for name in files:
            importlib.import_module(f"client_package.{name}")
        return importlib.import_module("client_package.processor").Shipped

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "client_package"]:
        del sys.modules[name]


PROCESSOR = """
    import logitport
    {line}
    class Shipped(logitport.CustomLogitProcessor):
        def __call__(self, logits, custom_param_list=None):
            return {value}
"""


def test_a_client_s_module_is_refused_but_names_imported_from_it_are_shipped(package):
    shared = "def double(value): return value * 2"
    cls = package(
        shared=shared,
        processor=PROCESSOR.format(line="from client_package import shared", value="shared.double(4)"),
    )
    advice = (
        "because of the attribute '__call__' of Shipped, the global 'shared' of Shipped.__call__: it is "
        "client_package.shared, a module of your own.*from client_package.shared import"
    )
    with pytest.raises(PayloadError, match=advice):
        payload.dumps(cls)


def test_the_class_s_own_package_is_shipped_even_if_it_is_installed(package, tmp_path):
    cls = package(
        tmp_path / "site-packages",
        shared="def double(value): return value * 2",
        processor=PROCESSOR.format(line="from client_package.shared import double", value="double(4)"),
    )
    shipped = payload.parse(payload.dumps(cls))
    assert b"double" in shipped.data
    for name in ("client_package", "client_package.shared", "client_package.processor"):
        sys.modules[name] = ModuleType(name)  # empty, as if not installed
    assert payload.loads(shipped)()([], None) == 8


def test_another_installed_package_is_referred_to_by_name(package, tmp_path):
    package(tmp_path / "site-packages", processor=PROCESSOR.format(line="", value="8"))
    double = importlib.import_module("client_package.processor").Shipped

    class Uses(CustomLogitProcessor):
        def __call__(self, logits, custom_param_list=None):
            return double()(logits)

    shipped = payload.parse(payload.dumps(Uses))
    assert b"client_package.processor" in shipped.data
    assert payload.loads(shipped)()([], None) == 8


def test_a_client_s_compiled_object_is_refused(monkeypatch):
    module = ModuleType("client_compiled")
    compiled = type("Compiled", (), {"__reduce__": lambda self: "COMPILED", "__module__": "client_compiled"})()
    module.COMPILED = compiled
    monkeypatch.setitem(sys.modules, "client_compiled", module)
    with pytest.raises(PayloadError, match=r"client_compiled\.COMPILED"):
        payload.dumps(closing_over(compiled))


def test_infinite_recursion_is_refused():
    nested = []
    for _ in range(sys.getrecursionlimit()):
        nested = [nested]
    with pytest.raises(PayloadError, match="nested too deeply"):
        payload.dumps(closing_over(nested))


class Slotted(CustomLogitProcessor):
    __slots__ = ("size",)

    def __call__(self, logits, custom_param_list=None):
        return self.size


class Configured(CustomLogitProcessor):
    def __init__(self, size):
        self.size = size

    def __call__(self, logits, custom_param_list=None):
        return self.size


class NoArguments(CustomLogitProcessor):
    def __call__(self):
        return None


class Abstract(EditProcessor):
    pass


def test_an_instance_with_attributes_is_refused():
    slotted = Slotted()
    assert payload.dumps(slotted) == payload.dumps(Slotted)
    slotted.size = 3
    for instance in (slotted, Configured(3)):
        with pytest.raises(PayloadError, match=r"has attributes \(size\).*parameters"):
            payload.dumps(instance)


def test_a_partial_with_arguments_is_refused():
    assert payload.dumps(functools.partial(Slotted)) == payload.dumps(Slotted)
    for arguments in (functools.partial(Configured, 3), functools.partial(Configured, size=3)):
        for processor in (arguments, InDialect(arguments, "sglang")):
            with pytest.raises(PayloadError, match="partial of Configured"):
                payload.dumps(processor)


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (NoArguments, r"wrong arity of __call__: too many positional arguments.*\(logits, custom_param_list\)"),
        (Abstract, "Abstract is abstract.*define edit"),
        (Options, "has no __call__"),
        (uses_lock, r"uses_lock takes \(\), which fits no dialect; write \(output_ids, logits\)"),
        (functools.partial(uses_lock), r"uses_lock takes \(\), which fits no dialect"),
        ("{}", "a str is no processor"),
    ],
)
def test_an_object_that_is_not_a_processor_is_refused(processor, message):
    with pytest.raises(PayloadError, match=message):
        payload.dumps(processor)
