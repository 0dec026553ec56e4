from __future__ import annotations

import dis
import importlib.util
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import CodeType

import dill
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport import CustomLogitProcessor, PayloadError, payload
from logitport.payload.bytecode import misfit
from logitport.payload.pickle_reader import read
from logitport.payload.python_check import CODE_FIELDS

DATA = Path(__file__).parent / "data"
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
WITHOUT_CODE = {"WithoutCode", "ByReference"}
# Payloads in which every instruction is the same in both versions.
SAME_IN_BOTH = {
    ("3.12", "3.11"): {"Trivial", "Arithmetic", "While", "Deletion"},
    ("3.11", "3.12"): {"Trivial", "Arithmetic", "CoroutineMethod", "Deletion"},
}

# Runs payloads in a separate process: a wrongly accepted payload might crash it.
RUN = """
import json, runpy, sys
from logitport import payload
result = runpy.run_path(sys.argv[1])["result"]
strings = json.load(sys.stdin)
json.dump({name: result(payload.loads(payload.parse(string))) for name, string in strings.items()}, sys.stdout)
"""


def made_by(version):
    """Name to (raw SGLang string, result or None), as data/generate.py wrote them under that Python."""
    entries = json.loads((DATA / f"python{version}.json").read_text())
    return {name: (entry, None) if isinstance(entry, str) else tuple(entry) for name, entry in entries.items()}


def accepted(serialized):
    try:
        payload.check_python(payload.parse(serialized))
    except PayloadError:
        return False
    return True


@pytest.mark.parametrize("version", VERSIONS)
def test_code_of_another_version_is_refused_without_a_label(version):
    names = {name for name, (serialized, _) in made_by(version).items() if accepted(serialized)}
    expected = WITHOUT_CODE | SAME_IN_BOTH.get((version, RUNNING), set())
    assert names == (set(made_by(version)) if version == RUNNING else expected)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.slow
def test_accepted_code_of_another_version_gives_the_same_results(version):
    runnable = {name: s for name, (s, _) in made_by(version).items() if accepted(s) and name != "ByReference"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, DATA / "generate.py"],
        input=json.dumps({name: serialized for name, serialized in runnable.items() if name not in WITHOUT_CODE}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = {name: made_by(version)[name][1] for name in runnable if name not in WITHOUT_CODE}
    assert json.loads(done.stdout) == results


def labelled(serialized, python):
    return payload.parse(json.dumps({**json.loads(serialized), "python": python}))


def test_a_label_of_another_version_is_trusted():
    with pytest.raises(PayloadError, match=r"code of Python 2\.7 \(its label says so\)"):
        payload.check_python(labelled(made_by(RUNNING)["Trivial"][0], "2.7"))


@pytest.mark.parametrize("version", [version for version in VERSIONS if version != RUNNING])
def test_a_wrong_label_does_not_hide_the_code_s_version(version):
    with pytest.raises(PayloadError, match=rf"code of Python 3\.\d+.*but this is Python {RUNNING}: ship it from"):
        payload.check_python(labelled(made_by(version)["Method"][0], RUNNING))


@pytest.mark.parametrize("name", sorted(WITHOUT_CODE))
@pytest.mark.parametrize("version", VERSIONS)
def test_a_payload_without_code_fits_every_version(version, name):
    shipped = labelled(made_by(version)[name][0], "2.7")
    payload.check_python(shipped)
    assert issubclass(payload.loads(shipped), CustomLogitProcessor)


class Code:
    """An object that is pickled as a call that makes a code object."""

    def __init__(self, args):
        self.args = args

    def __reduce__(self):
        return dill._dill._create_code, self.args


@pytest.mark.parametrize("version", [version for version in VERSIONS if version != RUNNING])
def test_nested_code_is_checked(version):
    data = bytes.fromhex(json.loads(made_by(version)["Method"][0])["callable"])
    foreign = Code(read(data).codes[0])
    own = fields(Constant.__call__.__code__)
    for deep in ({"a": [1, {2: foreign}]}, Code((b"", *{**own, "consts": (None, foreign)}.values())), [Code, foreign]):
        with pytest.raises(PayloadError):
            payload.check_python(payload.parse(json.dumps({"callable": pickle.dumps(deep).hex()})))


class Constant(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return logits


def test_marshalled_code_is_refused():
    with pytest.raises(PayloadError, match=r"an unknown Python .*marshal"):
        payload.check_python(payload.parse(json.dumps({"callable": b"cmarshal\nloads\n(S'abc'\ntR.".hex()})))


@pytest.mark.parametrize("protocol", range(6))
def test_code_is_found_in_every_protocol(protocol):
    class Local(CustomLogitProcessor):
        def __call__(self, logits, custom_param_list=None):
            return [value for value in logits if value]

    data = dill.dumps(Local, protocol=protocol)
    payload.check_python(payload.parse(json.dumps({"callable": data.hex()})))
    with pytest.raises(PayloadError):
        payload.check_python(payload.parse(json.dumps({"callable": data.hex(), "python": "2.7"})))


def test_nothing_is_executed(tmp_path):
    class Touch:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'touched'}",)

    shipped = payload.parse(json.dumps({"callable": pickle.dumps(Touch()).hex()}))
    payload.check_python(shipped)
    assert not list(tmp_path.iterdir())
    pickle.loads(shipped.data)  # control: unpickling does execute it
    assert list(tmp_path.iterdir())


def fields(code):
    return {name: getattr(code, f"co_{name}") for name, _ in CODE_FIELDS}


def code_objects(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from code_objects(constant)


def code_of(module):
    """Every code object of a module of the standard library, not imported."""
    spec = importlib.util.find_spec(module)
    return list(code_objects(spec.loader.get_code(module)))


# Difficult code for compilers: asynchronous code, exception tables, matching, nested functions, long jumps.
@pytest.mark.parametrize(
    "module",
    [
        *("argparse", "ast", "asyncio.base_events", "asyncio.streams", "contextlib", "dataclasses", "enum", "inspect"),
        *("json.decoder", "pickle", "statistics", "typing", "unittest.mock"),
    ],
)
def test_all_code_of_this_version_is_accepted(module):
    judged = [(code.co_name, code.co_firstlineno, misfit(fields(code))) for code in code_of(module)]
    assert [judgement for judgement in judged if judgement[-1]] == []


TEMPLATE = fields(dis.findlabels.__code__)


@given(st.binary(), st.binary(), st.integers(0, 2**31), st.integers(0, 5))
def test_arbitrary_bytes_do_not_crash_the_check(raw, table, flags, count):
    code = {**TEMPLATE, "code": raw, "flags": flags, "consts": (None,) * count, "names": ("a",) * count}
    assert isinstance(misfit({**code, **({"exceptiontable": table} if "exceptiontable" in TEMPLATE else {})}), str)


@given(
    st.sampled_from([fields(code) for code in code_of("typing")]),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_changed_code_does_not_crash_the_check(code, changes):
    raw = bytearray(code["code"])
    for place, value in changes:
        raw[place % len(raw)] = value
    assert isinstance(misfit({**code, "code": bytes(raw)}), str)
