from __future__ import annotations

import json
import sys
import types
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import dill
import pytest

from logitport import CustomLogitProcessor, PayloadError, payload
from logitport.payload.pickle_reader import read
from tests.cloudpickled import serialize, shifts


def raw(obj):
    """A string as a plain SGLang sends it."""
    return payload.parse(json.dumps({"callable": dill.dumps(obj, recurse=True).hex()}))


class Raises:
    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        return throw, (self.error,)


def throw(error):
    raise error


def take(logits):
    return logits


class Plain:
    """A class without a base class that can be called like a processor."""

    def __call__(self, logits, custom_param_list=None):
        return logits


class Keywords:
    def __call__(self, *args, **keywords):
        return args[0]


class Static:
    @staticmethod
    def __call__(logits, custom_param_list):
        return logits


class One:
    def __call__(self, logits):
        return logits


class Three:
    def __call__(self, logits, custom_param_list, more):
        return logits


class KeywordOnly:
    def __call__(self, logits, *, custom_param_list=None):
        return logits


class NotCallable:
    pass


@pytest.mark.parametrize("cls", [Plain, Keywords, Static])
def test_any_class_that_is_called_like_a_processor_is_accepted(cls):
    loaded = payload.loads(raw(cls))
    assert payload.instantiate(loaded)([1.0], None) == [1.0]


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (One, r"wrong arity of __call__: too many positional arguments: it takes \(logits\), and is called with"),
        (Three, "wrong arity of __call__: missing a required argument: 'more'"),
        (KeywordOnly, "wrong arity of __call__: too many positional"),
        (NotCallable, "NotCallable has no __call__"),
        (Plain(), "not a class, but a Plain"),
        (take, "take takes .logits., which fits no dialect; write"),
        ({"a": "b" * 200}, "a dict is no processor: define a class"),
    ],
)
def test_an_object_that_is_not_a_processor_class_is_refused(obj, message):
    with pytest.raises(PayloadError, match=message):
        payload.loads(raw(obj))


@pytest.mark.parametrize(
    "error", [ValueError("mine"), SystemExit("mine"), KeyboardInterrupt("mine"), MemoryError("mine")]
)
def test_any_exception_during_unpickling_is_load_failed(error):
    with pytest.raises(PayloadError, match=f"unpickling the payload raised {type(error).__name__}: mine") as caught:
        payload.loads(raw(Raises(error)))
    assert "in throw" in caught.value.remote_traceback
    assert "decode.py" not in caught.value.remote_traceback


class Failing:
    def __init__(self):
        raise RuntimeError("no tokenizer")

    def __call__(self, logits, custom_param_list=None):
        return logits


class Exiting(Failing):
    def __init__(self):
        sys.exit(3)


class WantsArguments(Failing):
    def __init__(self, size):
        self.size = size


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Failing, "creating a Failing raised RuntimeError: no tokenizer"),
        (Exiting, "creating a Exiting raised SystemExit: 3"),
        (
            WantsArguments,
            "creating a WantsArguments raised TypeError: .*missing 1 required positional argument: 'size'",
        ),
    ],
)
def test_any_exception_of_init_is_load_failed(cls, message):
    with pytest.raises(PayloadError, match=message) as caught:
        payload.instantiate(payload.loads(raw(cls)))
    assert type(caught.value.__cause__).__name__ in caught.value.remote_traceback


def test_the_error_names_a_missing_module():
    data = b"csome_package.inner\nThing\n."
    with pytest.raises(PayloadError, match=r"some_package\.inner\.Thing") as caught:
        payload.loads(payload.parse(json.dumps({"callable": data.hex()})))
    assert "ModuleNotFoundError" in caught.value.remote_traceback


def test_code_of_another_version_is_refused_before_anything_runs(tmp_path):
    touched = tmp_path / "touched"
    shipped = json.dumps({"callable": dill.dumps([open, Plain]).hex(), "python": "2.7"})
    running = b"cbuiltins\nopen\n(V" + str(touched).encode() + b"\nVw\ntR0"
    code = bytes.fromhex(json.loads(CustomLogitProcessorOfMain().string())["callable"])
    with pytest.raises(PayloadError):
        payload.loads(payload.parse(json.dumps({**json.loads(shipped), "callable": (running + code).hex()})))
    assert not touched.exists()


class CustomLogitProcessorOfMain:
    """A string with functions that use `__main__`'s globals, as a plain dill writes for a class of a script."""

    def string(self):
        namespace = {"__name__": "__main__"}
        exec(
            "class Script:\n"
            "    def __call__(self, logits, custom_param_list=None):\n"
            "        global written\n"
            "        written = logits\n"
            "        return [name for name in globals() if not name.startswith('__')]\n",
            namespace,
        )
        main = sys.modules["__main__"]
        before = main.__dict__.copy()
        main.__dict__.update(namespace)
        function = namespace["Script"].__call__
        namespace["Script"].__call__ = type(function)(function.__code__, main.__dict__, "__call__", (None,))
        try:
            return json.dumps({"callable": dill.dumps(namespace["Script"]).hex()})
        finally:
            for name in main.__dict__.keys() - before.keys():
                del main.__dict__[name]


def test_a_payload_does_not_see_this_process_s_globals():
    first, second = (payload.loads(payload.parse(CustomLogitProcessorOfMain().string())) for _ in range(2))
    assert first()([1.0], None) == ["written"]
    assert not hasattr(sys.modules["__main__"], "written")
    assert second().__call__.__globals__ is not first().__call__.__globals__


def test_a_changed_class_is_another_processor() -> None:
    """cloudpickle by itself changes the class that it loaded before, if it is the same object for the author."""
    cls = shifts(CustomLogitProcessor)
    first = CustomLogitProcessor.from_str(serialize(cls))
    cls.step = 7.5
    second = CustomLogitProcessor.from_str(serialize(cls))
    assert (first.step, second.step) == (0.5, 7.5)  # type: ignore[attr-defined]


def test_without_cloudpickle_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = payload.parse(serialize(shifts(CustomLogitProcessor)))
    for module in ("cloudpickle", "cloudpickle.cloudpickle"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PayloadError, match="install cloudpickle"):
        payload.loads(shipped)


class OtherCode:
    """Pickles as a code object with the fields of another Python."""

    def __reduce__(self) -> Any:
        extra = (b"",) if sys.version_info >= (3, 11) else ("f", 1, b"", b"")
        return types.CodeType, (0, 0, 0, 0, 1, 3, b"", (), (), (), "file", "f", *extra, 1, (), ())


def test_code_of_another_python_is_found() -> None:
    """The function that makes a code object is the result of a call: only the arguments show what it is."""
    codes = read(cloudpickle.dumps(shifts(CustomLogitProcessor))).codes
    assert {"__call__", "scaled", "<lambda>"} <= {code[11] for code in codes}
    shipped = payload.parse(json.dumps({"callable": cloudpickle.dumps(OtherCode()).hex()}))
    with pytest.raises(PayloadError, match="its code objects have"):
        payload.loads(shipped)
