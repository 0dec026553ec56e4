from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import dill
import pytest

import logitport_builtins
import logitport_programs
from logitport import CustomLogitProcessor, Float, PayloadError, TensorProcessor, payload
from logitport.payload import pickle_reader, wire_names
from logitport_programs.program import Program
from logitport_programs.types import Element
from logitport_testing import ToyModel

SGLANG = "sglang.srt.sampling.custom_logit_processor"
# By the pickler, a class with `params = {"by": Float(default=2.0)}` and the `values` below, from when the package of
# programs was `logitport.programs`. A plain dill cannot ship a module of logitport.
EARLIER = json.loads((Path(__file__).parent / "data" / "earlier_programs.json").read_text())
EARLIER_VALUES = {
    "logitport": (Element.FLOAT32, Program, logitport_programs),
    "dill": (Element.FLOAT32, Program),
}
ALIASES = [name for name in wire_names.names_in(SGLANG) if name != "CustomLogitProcessor"]


def reference(module, name):
    """A string that refers to a class by name, as pickle writes it."""
    parts = b"".join(b"\x8c" + bytes([len(part)]) + part.encode() + b"\x94" for part in (module, name))
    framed = parts + b"\x93\x94."
    return json.dumps({"callable": (b"\x80\x04\x95" + len(framed).to_bytes(8, "little") + framed).hex()})


@pytest.mark.parametrize("name", ALIASES)
def test_a_reference_of_sglang_s_loads_to_our_class_and_back(name):
    cls = getattr(logitport_builtins, name)
    shipped = payload.parse(reference(SGLANG, name))
    assert payload.loads(shipped) is cls
    assert payload.parse(payload.dumps(cls)) == shipped


def test_the_base_class_loads_to_ours():
    assert payload.loads(payload.parse(reference(SGLANG, "CustomLogitProcessor"))) is CustomLogitProcessor


def test_an_unknown_class_of_sglang_s_is_refused_with_the_known_ones():
    with pytest.raises(PayloadError, match=rf"{SGLANG}\.Newer, which is not here.*that module here are .*{ALIASES[0]}"):
        payload.loads(payload.parse(reference(SGLANG, "Newer")))


@pytest.fixture
def installed(monkeypatch):
    """Replaces the entry points of this environment; none of their classes is registered yet."""
    points = []
    monkeypatch.setattr(wire_names, "_classes", {})
    monkeypatch.setattr(wire_names, "entry_points", lambda *, group: points if group == "logitport.wire_names" else [])
    wire_names.load_entry_points.cache_clear()
    yield points
    wire_names.load_entry_points.cache_clear()


def test_the_built_ins_are_imported_when_they_are_first_needed(installed):
    imported = []
    installed.append(SimpleNamespace(load=lambda: imported.append("logitport_builtins")))
    with pytest.raises(PayloadError):
        payload.loads(payload.parse(reference("another.module", ALIASES[0])))
    assert imported == []
    for _ in range(2):
        with pytest.raises(PayloadError):
            payload.loads(payload.parse(reference(SGLANG, ALIASES[0])))
    assert imported == ["logitport_builtins"]


def test_a_class_may_have_any_wire_name(monkeypatch):
    monkeypatch.setattr(wire_names, "_classes", {})
    monkeypatch.setattr(wire_names, "_names", {})

    @payload.wire_name("some.module", "Name")
    class Renamed(CustomLogitProcessor):
        def __call__(self, logits, custom_param_list=None):
            return logits

    class Derived(Renamed):
        pass

    assert payload.parse(payload.dumps(Renamed)) == payload.parse(reference("some.module", "Name"))
    loaded = payload.loads(payload.parse(payload.dumps(Derived)))
    assert loaded is not Derived
    assert loaded.__bases__ == (Renamed,)


class UsesPrograms(TensorProcessor):
    params = {"by": Float(default=2.0)}
    values = (Element.FLOAT32, Program)

    def process(self, logits, params, history):
        return logits * params.by[:, None]


def references(serialized):
    return {(one.module, one.name) for one in pickle_reader.read(payload.parse(serialized).data).globals}


def test_names_of_programs_are_written_as_their_public_modules():
    written = references(payload.dumps(UsesPrograms))
    assert {("logitport", "TensorProcessor"), ("logitport", "Float")} <= written
    assert {("logitport_programs", "Element"), ("logitport_programs", "Program")} <= written
    assert not any(module.startswith(("logitport.", "logitport_programs.")) for module, _ in written)


class UsesTesting(TensorProcessor):
    values = (ToyModel,)

    def process(self, logits, params, history):
        return logits


def test_names_of_the_authors_tools_are_written_as_their_public_module():
    """They are on every server, also if this process has them from a clone."""
    assert ("logitport_testing", "ToyModel") in references(payload.dumps(UsesTesting))


@pytest.mark.parametrize(
    "name", ["logitport.programs.processor", "logitport.programs.a_module_that_has_moved", "logitport.programs"]
)
def test_a_class_is_loaded_by_the_earlier_name_of_programs(name):
    assert payload.loads(payload.parse(reference(name, "TensorProcessor"))) is TensorProcessor
    with pytest.raises(PayloadError, match="NoSuchName, which is not here"):
        payload.loads(payload.parse(reference(name, "NoSuchName")))


@pytest.mark.parametrize("pickler", EARLIER)
def test_a_payload_of_an_earlier_version_loads(pickler):
    loaded = payload.loads(payload.parse(EARLIER[pickler]))
    assert loaded.__bases__ == (TensorProcessor,)
    assert loaded.params == {"by": Float(default=2.0)}
    assert loaded.values == EARLIER_VALUES[pickler]


def test_ours_is_loaded_even_where_sglang_is_installed(monkeypatch):
    parent = None
    for name in ("sglang", "sglang.srt", "sglang.srt.sampling", SGLANG):
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        if parent:
            setattr(parent, name.rpartition(".")[2], module)
        parent = module
    exec(
        "class CustomLogitProcessor:\n"
        "    def __call__(self, logits, custom_param_list=None): return 'theirs'\n"
        f"class {ALIASES[0]}(CustomLogitProcessor): pass\n"
        "class OnlyTheirs(CustomLogitProcessor): pass\n",
        vars(parent),
    )
    theirs = getattr(parent, ALIASES[0])
    assert payload.loads(payload.parse(payload.dumps(theirs))) is getattr(logitport_builtins, ALIASES[0])
    assert payload.loads(payload.parse(payload.dumps(parent.OnlyTheirs))) is parent.OnlyTheirs

    class Mine(theirs):
        def __call__(self, logits, custom_param_list=None):
            return logits

    shipped = payload.parse(json.dumps({"callable": dill.dumps(Mine, recurse=True).hex()}))
    assert payload.loads(shipped).__bases__ == (getattr(logitport_builtins, ALIASES[0]),)
    assert payload.loads(payload.parse(payload.dumps(Mine))).__bases__ == (getattr(logitport_builtins, ALIASES[0]),)
