"""Processors of each kind use the operator's tokenizer, in this process and in workers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import logitport_builtins
from logitport import CustomLogitProcessor, EditProcessor, History, PayloadError, tokenizers
from logitport.dialects import InDialect
from logitport.errors import LogitportError
from logitport.payload import dumps, loads, parse
from logitport.tokenizers import operator_tokenizer
from logitport_server.config import ServerConfig
from logitport_server.executors.inline import InlineExecutor
from logitport_server.registry.loader import PayloadLoader
from logitport_server.worker.shared_tokenizers import open_tokenizers
from logitport_server.worker.start import StartedZygote, start_zygote
from logitport_session.dialects import RequestContext
from logitport_session.dialects.base import by_row
from tests.server.executors.conftest import start_executor
from tests.server.lent_workers import missing_layers
from tests.tokenizer_files import write_trained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logitport_runner.process_executor import ProcessExecutor
    from logitport_server.executors.base import Executor
    from logitport_session.dialects import Dialect
    from logitport_session.processor_sources.source import Source

    Ship = Callable[..., Source]

VOCAB = 352


class Edits(EditProcessor):
    def edit(self, request, edits):
        edits.allow(request.tokenizer.encode("name"))


class SGLangs(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        for row, params in zip(logits, custom_param_list, strict=True):
            keep = params["__req__"].tokenizer.encode("name")
            kept = row[keep].clone()
            row.fill_(float("-inf"))
            row[keep] = kept
        return logits


class Transformers:
    def __init__(self, tokenizer, word="name"):
        self.ids = tokenizer.encode(word)
        self.tokenizer = tokenizer  # must not count as state

    def __call__(self, input_ids, scores):
        masked = torch.full_like(scores, float("-inf"))
        masked[:, self.ids] = scores[:, self.ids]
        return masked


class Vllms:
    def __init__(self, vllm_config, device, is_pin_memory):
        self.ids = operator_tokenizer(vllm_config.model_config.tokenizer).encode("name")

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        pass

    def apply(self, logits):
        masked = torch.full_like(logits, float("-inf"))
        masked[:, self.ids] = logits[:, self.ids]
        return masked


class Dynamos:
    def __init__(self, tokenizer):
        self.ids = tokenizer.encode("name")

    def __call__(self, input_ids, logits):
        kept = logits[self.ids].clone()
        logits.fill_(float("-inf"))
        logits[self.ids] = kept


KINDS = {
    "edits": Edits,
    "sglang": SGLangs,
    "transformers": InDialect(Transformers, "transformers"),
    "vllm": InDialect(Vllms, "vllm_v1"),
    "dynamo": InDialect(Dynamos, "dynamo"),
}


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("tokenizers")
    write_trained(folder / "json", generation_config={"eos_token_id": 1})
    write_trained(folder / "small", 290)
    return [f"org/json={folder / 'json'}", f"small={folder / 'small'}"]


@pytest.fixture(scope="module")
def configured(options: list[str]) -> Iterator[None]:
    logitport_builtins.configure(ServerConfig(tokenizer=options))
    yield
    logitport_builtins.configure(ServerConfig())


@pytest.fixture(scope="module")
def workers_with_tokenizers(options: list[str]) -> Iterator[ProcessExecutor]:
    executor = start_executor(first=zygote_with(options))
    yield executor
    executor.close()


def zygote_with(options: list[str]) -> StartedZygote:
    return start_zygote(sys.executable, without=missing_layers(), threads=32, tokenizers=open_tokenizers(options))


@pytest.fixture(params=["inline", "process"])
def executor(request: pytest.FixtureRequest, configured: None) -> Executor:
    if request.param == "inline":
        return InlineExecutor(PayloadLoader(8))
    found: Executor = request.getfixturevalue("workers_with_tokenizers")
    return found


def start(dialect: Dialect, tokenizer_id: str) -> Any:
    return dialect.start(RequestContext("r", History([1]), {}, VOCAB, tokenizer_id), {})


def allowed(dialect: Dialect, state: Any) -> list[int]:
    logits = torch.zeros((1, VOCAB))
    if dialect.reads_logits:
        logits = dialect.process([state], logits)
        return torch.nonzero(logits[0] == 0).flatten().tolist()
    (edits,) = by_row(dialect.edit([state]), 1)
    return sorted(np.concatenate([ids for _, ids, _ in edits]).tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_the_tokenizer_of_its_session(executor: Executor, ship: Ship, kind: str) -> None:
    dialect = executor.load_shipped(ship(KINDS[kind], tenant=kind))
    for name in ("org/json", "small"):
        expected = sorted(set(tokenizers.operator_tokenizer(name).encode("name")))
        state = start(dialect, name)
        assert allowed(dialect, state) == expected
        dialect.check_rebuildable(state)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("tokenizer_id", "message"),
    [("", "no tokenizer is named .configured: 'org/json', 'small'"), ("other", "tokenizer 'other' is not configured")],
)
def test_an_unknown_tokenizer_is_a_clear_error(
    executor: Executor, ship: Ship, kind: str, tokenizer_id: str, message: str
) -> None:
    if kind == "vllm" and not tokenizer_id:
        pytest.skip("vllm_config.model_config then has no tokenizer, with an error of its own")
    dialect = executor.load_shipped(ship(KINDS[kind], tenant=kind))
    with pytest.raises(LogitportError, match=message):
        allowed(dialect, start(dialect, tokenizer_id))


def test_a_tokenizer_that_the_workers_python_lacks_fails_its_requests_only(
    make_executor: Callable[..., ProcessExecutor], ship: Ship, tmp_path: Path
) -> None:
    """The server checks the file before; the library of another Python may refuse it."""
    (tmp_path / "tokenizer.json").write_text("{}")
    executor = make_executor(first=zygote_with([f"broken={tmp_path}"]))
    dialect = executor.load_shipped(ship(Edits))
    with pytest.raises(PayloadError, match="tokenizer 'broken'"):
        allowed(dialect, start(dialect, "broken"))


def test_workers_inherit_no_descriptor_of_the_tokenizers(
    workers_with_tokenizers: ProcessExecutor, configured: None, ship: Ship
) -> None:
    class CountsDescriptors(EditProcessor):
        def edit(self, request, edits):
            import os

            count = 0
            for descriptor in range(3, 128):
                try:
                    os.fstat(descriptor)
                    count += 1
                except OSError:
                    pass
            edits.allow([count])

    dialect = workers_with_tokenizers.load_shipped(ship(CountsDescriptors))
    assert allowed(dialect, start(dialect, "small")) == [1]  # its connection


class PreventsHallucination:
    """Has the shape of the class of that name in NVIDIA's logits-processor-zoo: it keeps the tokenizer, and state."""

    def __init__(self, tokenizer, batch_size, minp=0.4, tolerate=1, phrase="name\n"):
        self.eos_token_id = tokenizer.eos_token_id
        self.phrase_tokens = tokenizer.encode(phrase, add_special_tokens=False)
        self.tokenizer = tokenizer
        self.minp, self.tolerate, self.batch_size = minp, tolerate, batch_size
        self.iterators = torch.zeros(batch_size, dtype=torch.int32)
        self.minp_count = torch.zeros(batch_size, dtype=torch.int32)

    def __call__(self, input_ids, scores):
        for row in range(scores.shape[0]):
            at = int(self.iterators[row])
            if scores[row].softmax(dim=-1).amax() < self.minp:
                self.minp_count[row] += 1
            if self.minp_count[row] > self.tolerate and at < len(self.phrase_tokens):
                kept = scores[row, self.phrase_tokens[at]].clone()
                scores[row] = float("-inf")
                scores[row, self.phrase_tokens[at]] = kept
                self.iterators[row] += 1
        return scores


def of_transformers(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|end|>")


def encloses(tokenizer: Any) -> Any:
    class Encloses(EditProcessor):
        def edit(self, request, edits):
            edits.allow(tokenizer.encode("name", add_special_tokens=False))

    return Encloses


def test_an_instance_with_a_tokenizer_ships_with_a_reference(
    executor: Executor, ship: Ship, options: list[str], tmp_path: Path
) -> None:
    library = write_trained(tmp_path, 290)
    own = of_transformers(tmp_path)
    source = ship(InDialect(PreventsHallucination(own, batch_size=1), "transformers"), tenant="instance")
    assert source.payload is not None
    assert len(source.payload.data) < 5000  # without the vocabulary
    dialect = executor.load_shipped(source)
    history = History([1])
    state = dialect.start(RequestContext("r", history, {}, VOCAB), {})
    written = []
    for _ in range(1 + len(own.encode("name\n"))):
        logits = dialect.process([state], torch.zeros((1, VOCAB)))
        written.append(int((logits[0] == 0).nonzero()[-1]))
    assert library.decode(written[1:]) == "name\n"


def test_a_tokenizer_that_the_operator_lacks_is_refused_at_the_admission(
    executor: Executor, ship: Ship, tmp_path: Path
) -> None:
    write_trained(tmp_path)
    own = of_transformers(tmp_path)
    own.add_tokens(["<think>"])
    with pytest.raises(PayloadError, match=r"314 ids.*'org/json' with 313 ids, 'small' with 290 ids"):
        executor.load_shipped(ship(encloses(own), tenant="lacks"))


def test_special_tokens_are_those_of_the_author(configured: None, tmp_path: Path) -> None:
    write_trained(tmp_path)
    own = of_transformers(tmp_path)
    own.pad_token = "<|pad|>"
    loaded = loads(parse(dumps(encloses(own))))
    held = loaded.edit.__closure__[0].cell_contents
    assert (held.eos_token, held.eos_token_id, held.pad_token_id) == ("<|end|>", own.eos_token_id, own.pad_token_id)
    assert (held.bos_token, held.bos_token_id) == (None, None)
    assert held.get_vocab() == own.get_vocab()
    text = '{"name": "x"}'
    assert held.encode(text) == own.encode(text)
    assert held.decode(held.encode(text)) == own.decode(own.encode(text))
