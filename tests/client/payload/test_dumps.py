from __future__ import annotations

import functools
import json
import os
import pickletools
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import dill
import pytest

from logitport import CustomLogitProcessor, EditProcessor, payload
from logitport.dialects import InDialect
from logitport.payload import pickler

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from client_code import processors  # noqa: E402

LOGITS = [3.0, -1.0, 2.0]
SHIPPED = {
    name: cls
    for name, cls in vars(processors).items()
    if isinstance(cls, type) and cls.__module__ == processors.__name__ and issubclass(cls, CustomLogitProcessor)
}

# A process that has dill and an SGLang, but neither logitport nor the client's code.
PLAIN_SGLANG = """
import abc, json, sys, types
import dill
sys.modules["logitport"] = sys.modules["client_code"] = None
module = None
for name in ("sglang", "sglang.srt", "sglang.srt.sampling", "sglang.srt.sampling.custom_logit_processor"):
    parent, module = module, types.ModuleType(name)
    sys.modules[name] = module
    if parent:
        setattr(parent, name.rpartition(".")[2], module)
class CustomLogitProcessor(abc.ABC):
    @abc.abstractmethod
    def __call__(self, logits, custom_param_list=None): ...
module.CustomLogitProcessor = CustomLogitProcessor
shipped, logits = json.load(sys.stdin)
results = {}
for name, serialized in shipped.items():
    cls = dill.loads(bytes.fromhex(json.loads(serialized)["callable"]))
    assert issubclass(cls, CustomLogitProcessor)
    results[name] = cls()(list(logits), None)
json.dump(results, sys.stdout)
"""
DIGESTS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from client_code import processors
from logitport import payload
json.dump({name: payload.parse(payload.dumps(getattr(processors, name))).digest for name in sys.argv[2:]}, sys.stdout)
"""


def run(script, *args, stdin="", **environment):
    done = subprocess.run(
        [sys.executable, "-c", script, *args],
        input=stdin,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        cwd="/",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def results_elsewhere():
    # Processors that need logitport at run time cannot run without it.
    shipped = {name: payload.dumps(cls) for name, cls in SHIPPED.items() if name != "Enums"}
    return run(PLAIN_SGLANG, stdin=json.dumps([shipped, LOGITS]))


def plain(value):
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "Enums"])
@pytest.mark.slow
def test_a_class_gives_the_same_results_without_the_client_s_code(name, results_elsewhere):
    assert results_elsewhere[name] == plain(SHIPPED[name]()(LOGITS.copy(), None))


@pytest.mark.parametrize("name", SHIPPED)
def test_a_class_gives_the_same_results_when_loaded_here(name):
    cls = payload.loads(payload.parse(payload.dumps(SHIPPED[name])))
    assert cls is not SHIPPED[name]
    assert issubclass(cls, CustomLogitProcessor)
    assert (cls.__name__, cls.__qualname__, cls.__doc__) == (
        SHIPPED[name].__name__,
        SHIPPED[name].__qualname__,
        SHIPPED[name].__doc__,
    )
    assert plain(payload.instantiate(cls)(LOGITS.copy(), None)) == plain(SHIPPED[name]()(LOGITS.copy(), None))


@pytest.mark.slow
def test_the_same_class_gives_the_same_bytes_in_every_process(tmp_path):
    # The first process compiles the module, the second finds it in a .pyc file; seeds and the order of dumps differ.
    shutil.copytree(HERE / "client_code", tmp_path / "client_code", ignore=shutil.ignore_patterns("__pycache__"))
    compiled = run(DIGESTS, str(tmp_path), *SHIPPED, PYTHONHASHSEED="1", PYTHONDONTWRITEBYTECODE="")
    assert list(tmp_path.rglob("*.pyc"))
    assert run(DIGESTS, str(tmp_path), *reversed(SHIPPED), PYTHONHASHSEED="2") == compiled


def test_the_labels_name_the_versions_of_python_and_dill():
    label = json.loads(payload.dumps(processors.Constant))
    assert label["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert label["dill"] == dill.__version__
    assert (label["class"], label["dialect"]) == ("Constant", "sglang")
    assert set(label) == {"callable", "python", "dill", "class", "dialect", "source"}


def made_in_a_function():
    class Local(CustomLogitProcessor):
        def __call__(self, logits, custom_param_list=None):
            return logits

    return Local


class Outer:
    class Inner(CustomLogitProcessor):
        def __call__(self, logits, custom_param_list=None):
            return logits


LONG, FOREIGN = (type(name, (Outer.Inner,), {"__module__": __name__}) for name in ("L" * 65, "Gr\xf6\xdfe"))
globals().update({LONG.__name__: LONG, FOREIGN.__name__: FOREIGN})


@pytest.mark.parametrize(
    ("processor", "class_name", "dialect"),
    [
        (made_in_a_function(), "Local", "sglang"),
        (Outer.Inner, "Outer.Inner", "sglang"),
        (Outer.Inner(), "Outer.Inner", "sglang"),
        (FOREIGN, "", "sglang"),
        (LONG, "", "sglang"),
        (lambda input_ids, scores: scores, "lambda", "transformers"),
        (InDialect(lambda ids, scores: scores, "transformers"), "lambda", "transformers"),
        (functools.partial(lambda input_ids, scores, more: scores, more=1), "lambda", "transformers"),
    ],
)
def test_the_labels_name_the_class_and_the_dialect(processor, class_name, dialect):
    shipped = payload.parse(payload.dumps(processor))
    assert (shipped.class_name, shipped.dialect) == (class_name, dialect)
    assert shipped.display_name == (f"{class_name} (sha256:{shipped.digest[:12]})" if class_name else shipped.digest)


def test_no_folder_of_the_client_is_shipped():
    data = payload.parse(payload.dumps(processors.Functions)).data
    assert b"shared.py" in data
    assert str(HERE).encode() not in data


def test_dumping_does_not_change_the_user_s_objects():
    before = {name: dict(vars(cls)) for name, cls in SHIPPED.items()}
    module = dict(vars(processors))
    known = list(processors.Tracked.known)
    for cls in SHIPPED.values():
        payload.loads(payload.parse(payload.dumps(cls)))
    assert {name: dict(vars(cls)) for name, cls in SHIPPED.items()} == before
    assert vars(processors).keys() == module.keys()
    assert all(vars(processors)[name] is value for name, value in module.items())
    assert known == processors.Tracked.known


SHARED = [1, b"bytes"]
CONTAINERS = [
    *([(number, [f"{number}", {number, "x"}, frozenset((b"y",))]) for number in range(9000)], (), [], {}, set(), b""),
    *(SHARED, (SHARED, SHARED), {"shared": SHARED, (1, 2): bytearray(b"own class")}, b"x" * 300, b"x" * 70_000),
]
CONTAINERS.append((CONTAINERS,))


@pytest.mark.slow
def test_containers_give_the_bytes_of_a_plain_pickler_without_the_checks_of_objects(monkeypatch):
    class Holds(EditProcessor):
        containers = CONTAINERS

        def edit(self, request, edits): ...

    checked = []
    override = pickler.ProcessorPickler.reducer_override
    monkeypatch.setattr(
        pickler.ProcessorPickler, "reducer_override", lambda self, obj: (checked.append(obj), override(self, obj))[1]
    )
    fast = payload.dumps(Holds)
    assert 0 < len(checked) < 100
    monkeypatch.setattr(pickler, "_PLAIN", {dict})
    assert payload.dumps(Holds) == fast


def test_threads_do_not_disturb_each_other(capsys):
    expected = {name: payload.dumps(cls) for name, cls in SHIPPED.items()}
    wrong = []

    def dump_all():
        wrong.extend(name for name, cls in SHIPPED.items() if payload.dumps(cls) != expected[name])

    threads = [threading.Thread(target=dump_all) for _ in range(2)]
    for thread in threads:
        thread.start()
    print("meanwhile")  # noqa: T201
    for thread in threads:
        thread.join()
    assert wrong == []
    assert capsys.readouterr().out == "meanwhile\n"


def test_settings_of_dill_make_no_difference(monkeypatch):
    expected = payload.dumps(processors.Functions)
    for name, value in {"recurse": True, "byref": True, "protocol": 2, "fmode": dill.FILE_FMODE}.items():
        monkeypatch.setitem(dill.settings, name, value)
    assert payload.dumps(processors.Functions) == expected


@pytest.mark.slow
def test_a_class_of_main_is_shipped(tmp_path):
    script = tmp_path / "demo.py"
    script.write_text(
        "import math\n"
        "from logitport import CustomLogitProcessor\n"
        "SIZE = 4\n"
        "def root(): return math.sqrt(SIZE)\n"
        "class Demo(CustomLogitProcessor):\n"
        "    def __call__(self, logits, custom_param_list=None):\n"
        "        return [root()]\n"
        "if __name__ == '__main__':\n"
        "    print(Demo.to_str())\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert run(PLAIN_SGLANG, stdin=json.dumps([{"Demo": done.stdout}, LOGITS])) == {"Demo": [2.0]}


def test_the_base_classes_are_referred_to_by_their_public_names():
    class Edits(EditProcessor):
        def edit(self, request, edits):
            edits.deny([1])

    references = strings(payload.dumps(Edits)) + strings(payload.dumps(processors.Constant))
    assert ("logitport", "EditProcessor") in references
    assert ("sglang.srt.sampling.custom_logit_processor", "CustomLogitProcessor") in references
    assert not any(module.startswith(("logitport.", "client_code", "tests")) for module, _ in references)


def strings(serialized):
    """(module, name) of every reference, as pickletools sees them: nothing of the package under test."""
    found, memo, stack = [], [], []
    for op, arg, _ in pickletools.genops(bytes.fromhex(json.loads(serialized)["callable"])):
        if op.name == "STACK_GLOBAL":
            found.append((stack[-2], stack[-1]))
            stack.append(None)
        elif op.name == "MEMOIZE":
            memo.append(stack[-1] if stack else None)
        elif op.name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[arg])
        elif op.stack_after:
            stack.append(arg)
    return found
