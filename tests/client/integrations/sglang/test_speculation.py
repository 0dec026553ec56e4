"""Processors in SGLang's verification of drafts, with a real server and a small `eagle_sample`."""

from __future__ import annotations

import random
import sys
import weakref
from http import HTTPStatus
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport.errors import PayloadError, ServerUnavailable
from logitport.integrations.common.ranks import Ranks
from logitport.integrations.sglang import RemoteLogitProcessor, draft_rows, speculation
from logitport.integrations.sglang.draft_trees import read_trees
from logitport.integrations.sglang.guard import Refusal
from logitport.integrations.sglang.hook import Hook
from tests.client.integrations.sglang.test_hook import EOS, VOCAB_SIZE, Req, ban, finish_abort, params_of, shipped, step
from tests.engines.sglang.brute_force_trees import Tree, random_tree
from tests.toy_processors import RaisesInCall

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logitport import Client

__all__ = ["finish_abort", "shipped"]  # fixtures

NODES = 6


@pytest.fixture
def hook(client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    """The hook of this process."""
    hook = Hook(lambda: client, tuple, Ranks(), "")
    monkeypatch.setattr(draft_rows, "_hook", lambda: hook)
    yield hook
    hook._holder.close()


def verify_input(trees: Sequence[Tree], drafts: Sequence[Sequence[int]]) -> Any:
    """Return SGLang's form of trees; the first draft of each is the last sampled id."""
    return SimpleNamespace(
        draft_token=torch.tensor(drafts).flatten(),
        retrieve_next_token=torch.tensor([tree.next_token() for tree in trees]),
        retrieve_next_sibling=torch.tensor([tree.next_sibling() for tree in trees]),
        draft_token_num=NODES,
    )


def eagle_sample(given: Any, batch: Any, logits_output: Any, grammar_mask: Any = None) -> Any:
    """As SGLang's with greedy requests."""
    logits = logits_output.next_token_logits
    if grammar_mask is not None:
        grammar_mask.apply(logits)
    predicted, drafts = logits.argmax(-1).tolist(), given.draft_token.tolist()
    accept_index = torch.full((len(logits) // NODES, NODES), -1)
    for request in range(len(accept_index)):
        node, depth = 0, 0
        while node >= 0:
            row = request * NODES + node
            accept_index[request, depth] = row
            depth += 1
            node = int(given.retrieve_next_token[request, node])
            while node >= 0 and drafts[request * NODES + node] != predicted[row]:
                node = int(given.retrieve_next_sibling[request, node])
    return torch.tensor(predicted), (accept_index >= 0).sum(-1), accept_index


def batch_of(*params: Any, processor: Any = None) -> Any:
    entry = SimpleNamespace(processor=processor or RemoteLogitProcessor(), rows=list(range(len(params))))
    info = SimpleNamespace(
        has_custom_logit_processor=True, custom_params=list(params), custom_logit_processor={1: entry}
    )
    return SimpleNamespace(sampling_info=info)


def verify(given: Any, batch: Any, grammar_mask: Any = None) -> tuple[torch.Tensor, list[list[int]]]:
    """Return the logits after one verification, and the ids that each request gets. An id's logit is its number."""
    logits = torch.arange(float(VOCAB_SIZE)).repeat(len(given.draft_token), 1)
    output = SimpleNamespace(next_token_logits=logits)
    predict, _, accepted = speculation.wrap_sample(eagle_sample)(given, batch, output, grammar_mask)
    return logits, [[int(predict[row]) for row in of_request if row >= 0] for of_request in accepted]


CHAIN = Tree([-1, 0, 1, 2, 3, 4])


@pytest.mark.parametrize("seed", range(30))
def test_trees_are_read_without_nodes_that_nothing_leads_to(seed: int) -> None:
    source = random.Random(seed)
    trees = [random_tree(source, NODES) for _ in range(3)]
    ids = [[source.randrange(VOCAB_SIZE) for _ in range(NODES)] for _ in trees]
    given = verify_input(trees, ids)
    cut = source.choice([node for node in range(NODES) if not trees[0].children(node)] or [5]) if NODES > 1 else 0
    for links in (given.retrieve_next_token, given.retrieve_next_sibling):  # the first tree loses a leaf
        links[0, links[0] == cut] = given.retrieve_next_sibling[0, cut]
    for tree, of_request, read, lost in zip(trees, ids, read_trees(given), [cut, None, None], strict=True):
        nodes = [node for node in range(NODES) if node != lost]
        assert read.nodes == nodes
        assert read.drafts == [of_request[node] for node in nodes[1:]]
        assert [read.nodes[parent + 1] for parent in read.parents] == [tree.parents[node] for node in nodes[1:]]
        assert read.is_chain == (read.parents == list(range(-1, len(nodes) - 2)))


def test_rows_see_their_own_drafts(hook: Hook) -> None:
    """Nothing that occurred before: in the prompt, in the output, or in the drafts before the row."""
    req, other = Req([2, 3]), Req([4])
    req.output_ids.extend([30, 31])
    drafts = [[31, 29, 28, 9, 27, 26], [4, 31, 30, 29, 28, 27]]
    bigrams = params_of(req, ["no_repeat_ngram", {"ngram_size": 1, "window_size": 100}])
    logits, ids = verify(verify_input([CHAIN, CHAIN], drafts), batch_of(bigrams, params_of(other)))
    for node in range(NODES):
        denied = [2, 3, 30, *drafts[0][: node + 1]]
        assert torch.isinf(logits[node]).nonzero().flatten().tolist() == sorted(denied)
    assert ids[0] == [29, 28, 27]
    assert torch.equal(logits[NODES:], torch.arange(float(VOCAB_SIZE)).repeat(NODES, 1))
    req.output_ids.extend(ids[0])
    _, ids = verify(verify_input([CHAIN], [[27, 26, 25, 1, 1, 1]]), batch_of(bigrams))
    assert ids[0] == [26, 25, 24]


def test_the_number_of_drafts_may_change(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with adaptive drafts: SGLang first publishes that it verifies no draft, and later verifies more."""
    published = {"speculative_num_draft_tokens": 1, "speculative_adaptive": True, "speculative_adaptive_config": None}
    context = SimpleNamespace(config_leaf=lambda name: published.get(name, name))
    monkeypatch.setattr(sys.modules["sglang.srt.runtime_context"], "get_context", lambda: context)
    module = ModuleType("sglang.srt.speculative.adaptive_spec_params")
    vars(module)["resolve_candidate_steps_from_config"] = lambda path: [0, 3, 5]
    monkeypatch.setitem(sys.modules, "sglang.srt.speculative", ModuleType("sglang.srt.speculative"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    req = Req([2, 3])
    req.output_ids.append(31)
    params = params_of(req, ["no_repeat_ngram", {"ngram_size": 1, "window_size": 100}])
    root = SimpleNamespace(
        draft_token=torch.tensor([31]),
        retrieve_next_token=torch.tensor([[-1]]),
        retrieve_next_sibling=torch.tensor([[-1]]),
        draft_token_num=1,
    )
    logits = torch.arange(float(VOCAB_SIZE))[None]
    draft_rows.DraftRows(root, batch_of(params).sampling_info).process(logits)
    assert int(logits.argmax()) == 30
    req.output_ids.append(30)
    _, [ids] = verify(verify_input([CHAIN], [[30, 29, 28, 27, 26, 25]]), batch_of(params))
    assert ids == [29, 28, 27, 26, 25, 24]
    assert req.to_finish is None


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_branches(hook: Hook, seed: int) -> None:
    """Each row is that of a request whose output ends with the drafts before the row."""
    source = random.Random(seed)
    trees = [random_tree(source, NODES) for _ in range(3)]
    drafts = [[source.randrange(2, 8) for _ in range(NODES)] for _ in trees]
    chain = ["no_repeat_ngram", {"ngram_size": 2, "window_size": 100}]
    reqs = [Req([2, 3, 4, 5, 6, 7, 2, 4, 6]) for _ in trees]
    for req, of_request in zip(reqs, drafts, strict=True):
        req.output_ids.extend([5, of_request[0]])
    logits, _ = verify(verify_input(trees, drafts), batch_of(*(params_of(req, chain) for req in reqs)))
    for request, (tree, req) in enumerate(zip(trees, reqs, strict=True)):
        for node in range(NODES):
            alone = Req(req.origin_input_ids.tolist())
            alone.output_ids.extend([5, *(drafts[request][other] for other in tree.path(node))])
            assert torch.equal(step(hook, params_of(alone, chain))[0], logits[request * NODES + node])


def test_grammars_come_first(hook: Hook) -> None:
    order: list[str] = []
    seen = hook.process
    hook.process = lambda *args: (order.append("processors"), seen(*args))[1]  # type: ignore[method-assign]
    mask = SimpleNamespace(apply=lambda logits: order.append("grammar"))
    req = Req([2])
    verify(verify_input([CHAIN], [[2] * NODES]), batch_of(params_of(req, ban(31))), mask)
    assert order == ["grammar", "processors"]


def test_batches_without_processors_are_left_to_sglang(hook: Hook) -> None:
    mask = SimpleNamespace(apply=lambda logits: None)
    batch = batch_of()
    batch.sampling_info.has_custom_logit_processor = False
    given: list[Any] = []
    speculation.wrap_sample(lambda *args: given.append(args))(1, batch, 2, mask)
    assert given == [(1, batch, 2, mask)]


def test_a_failed_request_ends_alone(hook: Hook) -> None:
    req, other = Req([2]), Req([3])
    batch = batch_of(params_of(req, [RaisesInCall.to_str(), {}]), params_of(other, ban(31)))
    logits, ids = verify(verify_input([CHAIN] * 2, [[2] * NODES, [3] * NODES]), batch)
    assert "ProcessorFailed" in req.to_finish.message
    assert ids == [[EOS], [30]]
    assert other.to_finish is None
    assert torch.isfinite(logits[:NODES]).nonzero()[:, 1].tolist() == [EOS] * NODES


def test_a_server_that_cannot_be_reached_ends_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect() -> Any:
        raise ServerUnavailable("no server")

    monkeypatch.setattr(draft_rows, "_hook", lambda: Hook(connect, tuple, Ranks(), ""))
    req, other = Req([2]), Req([3])
    batch = batch_of(params_of(req, ban(31)), params_of(other))
    _, ids = verify(verify_input([CHAIN] * 2, [[2] * NODES, [3] * NODES]), batch)
    assert (ids, req.to_finish.status, other.to_finish) == ([[EOS], [31]], HTTPStatus.SERVICE_UNAVAILABLE, None)


def test_a_defect_of_the_hook_ends_requests(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    req = Req([2])
    monkeypatch.setattr(hook._holder, "ensure_open", lambda *args: 1 / 0)
    _, ids = verify(verify_input([CHAIN], [[2] * NODES]), batch_of(params_of(req, ban(31))))
    assert "hook failed" in req.to_finish.message
    assert ids == [[EOS]]


def test_a_refused_processor_ends_its_requests(hook: Hook) -> None:
    req = Req([2])
    verify(verify_input([CHAIN], [[2] * NODES]), batch_of({"__req__": weakref.proxy(req)}, processor=Refusal()))
    assert PayloadError.__name__ in req.to_finish.message


@pytest.mark.parametrize("accepted", [False, True])
def test_a_denied_row_ends_the_request_if_its_draft_is_accepted(hook: Hook, accepted: bool) -> None:
    """Only 31 has not occurred before, or only 5 and 31."""
    drafts = [31, 7, 7, 7, 7] if accepted else [5, 31, 7, 7, 7]
    req = Req([token_id for token_id in range(VOCAB_SIZE) if token_id not in drafts[:2] or token_id == 7])
    once = ["no_repeat_ngram", {"ngram_size": 1, "window_size": 100}]
    _, [ids] = verify(verify_input([CHAIN], [[2, *drafts]]), batch_of(params_of(req, once)))
    assert ids == ([31, EOS] if accepted else [31])
    assert (req.to_finish is not None) == accepted


@pytest.mark.parametrize(
    ("params", "ends"),
    [
        ({}, False),
        ({"stop_token_ids": {31}}, True),
        ({"stop_token_ids": {31}, "ignore_eos": True}, False),
        ({"max_new_tokens": 1}, True),
        ({"max_new_tokens": 2}, False),
    ],
)
def test_a_denied_row_after_the_end_is_no_failure(hook: Hook, params: dict[str, Any], ends: bool) -> None:
    """SGLang ends the request at the draft before the row, and cuts off what follows."""
    req = Req([token_id for token_id in range(VOCAB_SIZE) if token_id != 31], sampling_params=SimpleNamespace(**params))
    once = ["no_repeat_ngram", {"ngram_size": 1, "window_size": 100}]
    verify(verify_input([CHAIN], [[2, 31, 7, 7, 7, 7]]), batch_of(params_of(req, once)))
    assert (req.to_finish is None) == ends


def test_without_readable_drafts_no_id_is_sampled(hook: Hook) -> None:
    req, other = Req([2]), Req([3])
    given = verify_input([CHAIN, CHAIN], [[2] * NODES, [3] * NODES])
    del given.retrieve_next_sibling
    batch = batch_of(params_of(req, ban(31)), params_of(other))
    batch.sampling_info.custom_logit_processor[1].rows = [0]
    logits = torch.arange(float(VOCAB_SIZE)).repeat(2 * NODES, 1)
    draft_rows.DraftRows(given, batch.sampling_info).process(logits)
    assert "cannot be read" in req.to_finish.message or "the engine's log" in req.to_finish.message
    assert logits[:NODES].argmax(-1).tolist() == [EOS] * NODES
    assert logits[NODES:].argmax(-1).tolist() == [VOCAB_SIZE - 1] * NODES
