"""Shipping of dialects that allow more than classes: instances, partials, functions, lists."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    Qwen2Config,
    Qwen2ForCausalLM,
    SequenceBiasLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    TopKLogitsWarper,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from logitport import PayloadError, payload
from logitport.dialects import InDialect, recognise
from logitport_session import stubs

IDS, SCORES = torch.tensor([[3, 1]]), torch.arange(6.0)[None]
OFFSET = 2.0


class Own(LogitsProcessor):
    """A function that is shipped by value, with the globals that it uses."""

    def __init__(self, factor: float = 2.0) -> None:
        self.factor, self.table = factor, {"bias": torch.tensor([1.0, 2.0], dtype=torch.float64)}

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores * self.factor + OFFSET
        scores[:, :2] += self.table["bias"].to(scores)
        return scores


def plain(input_ids: torch.Tensor, scores: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    return scores + OFFSET * by


def allowed(batch_id: int, ids: torch.Tensor) -> list[int]:
    return [int(ids[-1]), int(OFFSET)]


SHIPPED: dict[str, Any] = {
    "own class": Own,
    "own instance": Own(3.0),
    "own in a partial": functools.partial(Own, factor=4.0),
    "transformers' instance": MinLengthLogitsProcessor(5, [2, 3]),
    "transformers' in a partial": functools.partial(TopKLogitsWarper, 2),
    "a list of both": LogitsProcessorList([Own(), TopKLogitsWarper(3)]),
    "an instance that holds a function": PrefixConstrainedLogitsProcessor(allowed, 1),
    "an instance with a dict of tuples": SequenceBiasLogitsProcessor([[[3, 1, 2], 1.0], [[4], -2.0]]),
    "an instance with a device": SynthIDTextWatermarkLogitsProcessor(2, [3, 4], 8, 0, 4, torch.device("cpu")),
    "a function": plain,
    "a function in a partial": functools.partial(plain, by=3.0),
    "a method": Own(5.0).__call__,
    "a lambda": lambda input_ids, scores: scores - OFFSET,
    "a named lambda": InDialect(lambda a, b: b - OFFSET, "transformers"),
}


def called(processor: Any) -> torch.Tensor:
    """Call a processor; a class is instantiated first."""
    inner, dialect = recognise(processor)
    assert dialect == "transformers"
    is_class = isinstance(inner.func if isinstance(inner, functools.partial) else inner, type)
    result: torch.Tensor = (inner() if is_class else inner)(IDS, SCORES.clone())
    return result


@pytest.mark.parametrize("name", SHIPPED)
def test_a_loaded_processor_gives_the_same_result(name: str) -> None:
    arrived = payload.loads(payload.parse(payload.dumps(SHIPPED[name])))
    assert torch.equal(called(arrived), called(SHIPPED[name]))


def test_an_instance_is_shipped_with_its_present_attributes() -> None:
    own = Own()
    own.table["bias"].add_(1)
    arrived = payload.loads(payload.parse(payload.dumps(own)))
    own.table["bias"].zero_()
    assert arrived.table["bias"].tolist() == [2.0, 3.0]


def test_transformers_own_classes_are_shipped_by_name() -> None:
    shipped = payload.parse(payload.dumps(SHIPPED["a list of both"]))
    assert b"transformers.generation.logits_process" in shipped.data
    assert b"TopKLogitsWarper" in shipped.data
    assert b"indices_to_remove" not in shipped.data  # a variable in its code
    assert len(shipped.data) < 5000


def test_another_process_ships_the_same(tmp_path: Path) -> None:
    digests = [_digests_of_a_process(seed) for seed in ("1", "2")]
    assert digests[0] == digests[1]
    assert len(set(digests[0].values())) == len(SHIPPED)


def _digests_of_a_process(hash_seed: str) -> dict[str, str]:
    code = (
        "import json, importlib.util as u; from logitport import payload\n"
        f"spec = u.spec_from_file_location('authors', {__file__!r}); authors = u.module_from_spec(spec)\n"
        "import sys; sys.modules['authors'] = authors; spec.loader.exec_module(authors)\n"
        "dumped = {name: payload.dumps(one) for name, one in authors.SHIPPED.items()}\n"
        "print(json.dumps({name: payload.parse(one).digest for name, one in dumped.items()}))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    digests: dict[str, str] = json.loads(finished.stdout)
    return digests


class Holds(LogitsProcessor):
    def __init__(self, held: object) -> None:
        self.held = held

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores


def tokenizer() -> Tokenizer:
    return Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))


def model() -> Qwen2ForCausalLM:
    small = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=8, num_hidden_layers=1, **small))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Holds(Holds(model())), "it is a model, .* the tensors that it needs"),
        (lambda: UnbatchedClassifierFreeGuidanceLogitsProcessor(2.0, model()), "it is a model"),
        (lambda: LogitsProcessorList([Holds(tokenizer())]), "LogitsProcessorList cannot be shipped.*it is a tokenizer"),
        (lambda: functools.partial(Holds, tokenizer()), "it is a tokenizer of the library tokenizers"),
    ],
)
def test_an_instance_with_an_attribute_that_cannot_be_shipped(make: Any, message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        payload.dumps(make())


# Where transformers is not installed.

ELSEWHERE = """
import sys
sys.path.insert(0, sys.argv[1])  # before the real one
import torch, transformers
from logitport import History, PayloadError, payload
from logitport_session.dialects import RequestContext, make_dialect
assert transformers.__path__[0].startswith(sys.argv[1])
for line in sys.stdin:
    try:
        dialect = make_dialect(payload.loads(payload.parse(line)), "its name", shipped=True)
        state = dialect.start(RequestContext("r", History([3, 1]), {}, 6), {})
        print(dialect.process([state], torch.arange(6.0)[None]).tolist())
    except PayloadError as error:
        print(error.message)
"""


def test_an_author_s_own_classes_need_no_transformers_and_transformers_classes_are_refused_by_name() -> None:
    own = ["own class", "own instance", "own in a partial", "a function", "a method", "a named lambda"]
    shipped = [*(SHIPPED[name] for name in own), LogitsProcessorList([Own(), Own(0.5)]), TopKLogitsWarper]
    folder = str(Path(stubs.__file__).parent)
    finished = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, folder],
        input="\n".join(map(payload.dumps, shipped)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    *results, refusal = finished.stdout.splitlines()
    assert [json.loads(result) for result in results] == [called(one).tolist() for one in shipped[:-1]]
    assert "refers to transformers.generation.logits_process.TopKLogitsWarper, which is not here" in refusal
    assert "a part of transformers, which is not installed here" in refusal
    assert "install it on the server" in refusal


def test_a_processor_that_a_newer_transformers_has_is_refused_by_name() -> None:
    newer = payload.dumps(TopKLogitsWarper(2)).replace(b"TopKLogitsWarper".hex(), b"TopQLogitsWarper".hex())
    with pytest.raises(PayloadError, match="TopQLogitsWarper, which is not here"):
        payload.loads(payload.parse(newer))
