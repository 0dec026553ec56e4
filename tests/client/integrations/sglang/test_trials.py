"""How SGLang's front end tries chains, and what its scheduler, which blocks all requests, still does."""

from __future__ import annotations

import asyncio
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from logitport import Client, EditProcessor
from logitport.integrations.common import trials as common
from logitport.integrations.common.ranks import Ranks
from logitport.integrations.sglang import RemoteLogitProcessor, front_end_patches
from logitport.integrations.sglang.hook import Hook
from tests.client.integrations.sglang.test_hook import VOCAB_SIZE, Req, ban, finish_abort, params_of, shipped, step
from tests.conftest import free_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from logitport import EditRequest, RowEdits
    from tests.conftest import RunningServer

__all__ = ["finish_abort", "shipped"]

REMOTE = RemoteLogitProcessor.to_str()


class CheckedOnce(EditProcessor):
    """Refuses parameters that its process has checked before. Denies the largest id."""

    checked: ClassVar[list[Any]] = []

    @classmethod
    def validate_params(cls, params: Any) -> None:
        if dict(params) in cls.checked or "bad" in params:
            raise ValueError("checked again, or bad")
        cls.checked.append(dict(params))

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([31])


class CreatedOnce(EditProcessor):
    """Takes long to create, and refuses a second instance in a process. Denies the largest id."""

    instances: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        import time

        time.sleep(0.3)
        if self.instances:
            raise ValueError("created again")
        self.instances.append(self)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([31])


class Inputs:
    """The part of SGLang's `GenerateReqInput` that is read."""

    def __init__(self, sampling_params: Any, processor: Any = REMOTE, rid: str = "r") -> None:
        self.sampling_params = sampling_params
        self.custom_logit_processor = processor
        self.rid = rid
        self.normalized = 0

    def normalize_batch_and_arguments(self) -> None:
        self.normalized += 1


class Manager:
    """The part of SGLang's `TokenizerManager` that is patched."""

    model_config = SimpleNamespace(vocab_size=VOCAB_SIZE, hf_eos_token_id={1})

    async def generate_request(self, inputs: Inputs, request: Any = None) -> AsyncIterator[str]:
        inputs.normalize_batch_and_arguments()
        try:
            yield "first"
            yield "last"
        finally:
            inputs.closed = True  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def front_end(monkeypatch: pytest.MonkeyPatch, server: RunningServer, finish_abort: None) -> None:
    """Patch the stand-ins as the plugin patches SGLang."""
    constants = ModuleType("sglang.srt.constants")
    constants.HEALTH_CHECK_RID_PREFIX = "HEALTH"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang.srt.constants", constants)
    monkeypatch.setenv("LOGITPORT_TARGET", server.target)
    monkeypatch.setattr(front_end_patches, "trials", common.Trials())
    for cls, name, wrapped in (
        (Manager, "generate_request", front_end_patches._wrap_generate(Manager.generate_request)),
        (
            Inputs,
            "normalize_batch_and_arguments",
            front_end_patches._wrap_normalize(Inputs.normalize_batch_and_arguments),
        ),
    ):
        monkeypatch.setattr(cls, name, wrapped)


def inputs(*chain: Any, **options: Any) -> Inputs:
    return Inputs({"custom_params": {"logitport": list(chain)}}, **options)


async def generate(sent: Inputs) -> list[str]:
    return [chunk async for chunk in Manager().generate_request(sent)]


@pytest.mark.parametrize("batch", [False, True])
def test_a_chain_without_the_reference_is_tried_too(batch: bool) -> None:
    """A plain client sends no custom_logit_processor."""
    fine, wrong = ({"custom_params": {"logitport": [chain]}} for chain in (ban(1), ["no/such"]))
    sent = Inputs([{}, fine] if batch else fine, None)
    assert asyncio.run(generate(sent)) == ["first", "last"]
    assert sent.custom_logit_processor == ([None, REMOTE] if batch else REMOTE)
    with pytest.raises(ValueError, match="logitport: NotFound"):
        asyncio.run(generate(Inputs([{}, wrong] if batch else wrong, None)))


def test_inputs_for_embeddings_pass() -> None:
    sent = inputs(ban(1), processor=None)
    assert front_end_patches._may_have_chain(sent)
    del sent.custom_logit_processor
    assert not front_end_patches._may_have_chain(sent)


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        (["no/such"], "logitport: NotFound"),
        ([CheckedOnce.to_str(), {"bad": 1}], "logitport: InvalidArgument: .*checked again, or bad"),
    ],
)
def test_a_refused_chain_is_a_value_error(chain: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        asyncio.run(generate(inputs(chain)))
    batch = Inputs([{}, {"custom_params": {"logitport": [chain]}}], [None, REMOTE])
    with pytest.raises(ValueError, match=message):
        asyncio.run(generate(batch))


def test_requests_without_a_chain_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "_admit", lambda *_: pytest.fail("tried"))
    assert asyncio.run(generate(Inputs({}, None))) == ["first", "last"]
    assert asyncio.run(generate(Inputs(None))) == ["first", "last"]
    monkeypatch.setenv("LOGITPORT_DEFAULT_PROCESSORS", '[["no/such"]]')
    assert asyncio.run(generate(Inputs({}, None, "HEALTH_1"))) == ["first", "last"]


def test_the_default_chain_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_DEFAULT_PROCESSORS", '[["no/such"]]')
    with pytest.raises(ValueError, match="NotFound"):
        asyncio.run(generate(Inputs({}, None)))


def test_without_the_service_the_scheduler_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the request with status 503; SGLang's front end has no such error."""
    monkeypatch.setenv("LOGITPORT_TARGET", free_address())
    assert asyncio.run(generate(inputs(ban(1)))) == ["first", "last"]


def with_mask(sent: Inputs, masks: Any = True) -> Inputs:
    sent.return_sampling_mask = masks
    return sent


def test_ids_that_could_be_sampled_are_returned_if_processors_only_deny(monkeypatch: pytest.MonkeyPatch) -> None:
    adds = ["logit_bias", {"logit_bias": {"3": 1}}]
    for _ in range(2):  # the second time, the trial is known
        assert asyncio.run(generate(with_mask(inputs(ban(1))))) == ["first", "last"]
        with pytest.raises(ValueError, match=r"declare only_denies.*: disallowed_tokens, logit_bias"):
            asyncio.run(generate(with_mask(inputs(ban(1), adds))))
        assert asyncio.run(generate(inputs(ban(1), adds))) == ["first", "last"]
    two = [{"custom_params": {"logitport": [adds]}}, {"custom_params": {"logitport": [ban(1)]}}]
    assert asyncio.run(generate(with_mask(Inputs(two, [REMOTE, REMOTE]), [False, True]))) == ["first", "last"]
    with pytest.raises(ValueError, match="only_denies"):
        asyncio.run(generate(with_mask(Inputs(two, [REMOTE, REMOTE]), [True, False])))
    monkeypatch.setenv("LOGITPORT_DEFAULT_PROCESSORS", '[["temperature", {"temperature": 2}]]')
    with pytest.raises(ValueError, match=r"only_denies.*temperature"):
        asyncio.run(generate(with_mask(Inputs({}, None))))


@pytest.mark.parametrize(
    ("algorithm", "params", "is_refused"),
    [
        ("DFLASH", {"json_schema": "{}"}, True),
        ("dspark", {"regex": "a+"}, True),
        ("DSPARK", {"ebnf": 'root ::= "a"'}, True),
        ("DFLASH", {"structural_tag": "{}"}, True),
        ("DFLASH", {"regex": None}, False),
        ("EAGLE", {"regex": "a+"}, False),
        (None, {"regex": "a+"}, False),
    ],
)
def test_a_grammar_of_sglang_is_refused_where_it_follows_the_processors(
    algorithm: str | None, params: dict[str, Any], is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Manager, "server_args", SimpleNamespace(speculative_algorithm=algorithm), raising=False)
    with_chain = {**params, "custom_params": {"logitport": [ban(1)]}}
    for sent in (Inputs(with_chain, None), Inputs([{}, with_chain], [None, REMOTE])):
        if is_refused:
            with pytest.raises(ValueError, match=r"logitport: .*grammars after processors.*built-in \"grammar\""):
                asyncio.run(generate(sent))
        else:
            assert asyncio.run(generate(sent)) == ["first", "last"]
    monkeypatch.setenv("LOGITPORT_DEFAULT_PROCESSORS", '[["disallowed_tokens", {"token_ids": [3]}]]')
    for plain in (Inputs(params, None), Inputs({}, None)):
        if is_refused and plain.sampling_params:
            with pytest.raises(ValueError, match="grammars after processors"):
                asyncio.run(generate(plain))
        else:
            assert asyncio.run(generate(plain)) == ["first", "last"]


def test_without_the_service_no_ids_that_could_be_sampled_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_TARGET", free_address())
    with pytest.raises(ValueError, match="ServerUnavailable"):
        asyncio.run(generate(with_mask(inputs(ban(1)))))


def test_sglangs_own_check_leaves_the_reference_to_the_trial() -> None:
    supports = front_end_patches._wrap_supports(lambda serialized: serialized == "SGLang's")
    assert [supports(one) for one in (REMOTE, "SGLang's", "another")] == [True, True, False]


def test_a_client_that_disconnects_closes_sglangs_generator() -> None:
    async def scenario() -> None:
        sent = inputs(ban(1))
        output = Manager().generate_request(sent)
        assert await anext(output) == "first"
        await output.aclose()
        assert sent.closed

    asyncio.run(scenario())


def test_a_slow_chain_blocks_neither_the_event_loop_nor_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    released, began = threading.Event(), threading.Event()
    admit = common._admit

    def slow(session: Any, request: Any) -> bool:
        if dict(request.processors[0][1]).get("token_ids") == [9]:
            began.set()
            assert released.wait(200)
        return admit(session, request)

    monkeypatch.setattr(common, "_admit", slow)

    async def scenario() -> None:
        waits = asyncio.create_task(generate(inputs(ban(9))))
        try:
            assert await asyncio.to_thread(began.wait, 200)
            assert await asyncio.wait_for(generate(inputs(ban(8))), 200) == ["first", "last"]
            assert not waits.done()
        finally:
            released.set()
        assert await waits == ["first", "last"]

    asyncio.run(scenario())


@pytest.mark.parametrize("processor", [CheckedOnce, CreatedOnce])
def test_the_scheduler_repeats_nothing_that_the_front_end_has_tried(client: Client, processor: Any) -> None:
    chain, req = [processor.to_str(), {"n": 1}], Req([2])
    asyncio.run(generate(inputs(chain)))
    hook = Hook(lambda: client, tuple, Ranks(), "")
    logits = step(hook, params_of(req, chain))
    assert req.to_finish is None, req.to_finish
    assert logits.argmax(-1).tolist() == [30]
    hook._holder.close()
