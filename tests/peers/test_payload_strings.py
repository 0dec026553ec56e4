"""Loads logitport's payload strings in the real SGLang 0.5.23, and SGLang's strings in logitport."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import dill
import torch

from logitport import CustomLogitProcessor, payload
from tests.cloudpickled import serialize, shifts

CLIENT = Path(__file__).parents[1] / "client" / "payload"
LOGITS = [3.0, -1.0, 2.0]

DUMP = """
import json, sys
sys.path.insert(0, sys.argv[1])
from client_code import processors
from logitport import CustomLogitProcessor
shipped, results = {}, {}
classes = {name: cls for name, cls in vars(processors).items() if isinstance(cls, type)}
del classes["CustomLogitProcessor"], classes["Enums"]  # an enum of logitport cannot be loaded without logitport
for name, cls in classes.items():
    if issubclass(cls, CustomLogitProcessor):
        shipped[name] = cls.to_str()
        results[name] = cls()([3.0, -1.0, 2.0], None)
json.dump([shipped, results], sys.stdout)
"""

# SGLang's own file, in a process where neither logitport nor the client's code can be imported.
LOAD = """
import importlib, json, sys, types
sys.modules["logitport"] = sys.modules["client_code"] = None
for name in ("sglang", "sglang.srt", "sglang.srt.sampling"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
sglang = importlib.import_module("sglang.srt.sampling.custom_logit_processor")
results = {}
for name, serialized in json.load(sys.stdin).items():
    processor = sglang.CustomLogitProcessor.from_str(serialized)
    assert isinstance(processor, sglang.CustomLogitProcessor)
    results[name] = processor([3.0, -1.0, 2.0], None)
json.dump(results, sys.stdout)
"""


def run(script, *args, stdin=""):
    done = subprocess.run(
        [sys.executable, "-c", script, *args], input=stdin, capture_output=True, text=True, cwd="/", check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_our_strings_load_in_a_plain_sglang(sglang_processors):
    shipped, results = run(DUMP, str(CLIENT))
    assert len(shipped) >= 20
    assert run(LOAD, os.environ["LOGITPORT_SGLANG"], stdin=json.dumps(shipped)) == results


def test_all_of_sglang_s_own_strings_load_here(sglang_processors):
    names = [
        name
        for name, cls in vars(sglang_processors).items()
        if isinstance(cls, type) and issubclass(cls, sglang_processors.CustomLogitProcessor)
    ]
    assert len(names) == 8
    for name in names:
        theirs = getattr(sglang_processors, name)
        ours = payload.loads(payload.parse(theirs.to_str()))
        assert ours is not theirs
        assert ours.__name__ == name
        assert issubclass(ours, CustomLogitProcessor)
        # Both dump to the same bytes, so their digests are equal.
        if name != "CustomLogitProcessor":
            assert json.loads(ours.to_str())["callable"] == json.loads(theirs.to_str())["callable"]
            assert type(theirs.from_str(ours.to_str())) is theirs


def test_a_class_that_cloudpickle_shipped_gives_the_same_bits(sglang_processors):
    serialized = serialize(shifts(sglang_processors.CustomLogitProcessor))
    logits, params = torch.randn(4, 1000), [{"add": 0.1 * row} for row in range(4)]
    theirs = sglang_processors.CustomLogitProcessor.from_str(serialized)
    ours = CustomLogitProcessor.from_str(serialized)
    assert isinstance(theirs, sglang_processors.CustomLogitProcessor)
    assert isinstance(ours, CustomLogitProcessor)
    expected, result = theirs(logits.clone(), params), ours(logits.clone(), params)
    assert torch.equal(expected.view(torch.int32), result.view(torch.int32))


def test_a_class_derived_from_sglang_s_loads_here(sglang_processors):
    class Derived(sglang_processors.Qwen3ThinkingBudgetLogitProcessor):
        NEW_LINE_TOKEN_ID = 5

        def __call__(self, logits, custom_param_list):
            return [value * 2 for value in logits]

    for serialized in (json.dumps({"callable": dill.dumps(Derived, recurse=True).hex()}), payload.dumps(Derived)):
        processor = CustomLogitProcessor.from_str(serialized)
        assert isinstance(processor, CustomLogitProcessor)
        assert not isinstance(processor, sglang_processors.CustomLogitProcessor)
        assert processor(LOGITS, None) == [6.0, -2.0, 4.0]
        assert processor.NEW_LINE_TOKEN_ID == 5
