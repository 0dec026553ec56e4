"""Trees of drafts: each row is that of a plain session with a history that ends with the path to the row's draft."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import Client, EditProcessor, EditRequest, InvalidArgument, LogitportError, Request, RowEdits
from logitport.core.drafts import Drafts
from logitport_builtins import BUILTIN_PROGRAMS, BUILTINS
from logitport_session.engine_session import engine_session
from tests.programs.runtime import build
from tests.tokenizer_files import write_vocabulary
from tests.toy_processors import AddOne

if TYPE_CHECKING:
    from pathlib import Path

    from logitport.session import Handle, Session

PIECES = ["a", "b", "c", "d", "e", "f"]
EOS = len(PIECES)
VOCAB = 8
TAGS = {"thinking_start_ids": [4], "thinking_end_ids": [5]}
THINKING, ANSWER = ({"phase": phase, "phase_tags": TAGS} for phase in ("thinking", "answer"))
Chain = list[tuple[Any, dict[str, Any]]]
CHAINS: list[Chain] = [
    [("disallowed_tokens", {"token_ids": [1, 5]}), ("logit_bias", {"logit_bias": {"3": 1.5}})],
    [("thinking_budget", {"thinking_budget": 3, **TAGS})],
    [("no_repeat_ngram", {"ngram_size": 2})],
    [("grammar", {"regex": "[ab]{2,40}c[a-f]{0,40}"})],
    [("force_prefix", {"force_prefix": "abc"})],
    [("bad_words", {"bad_words_ids": [[1, 2], [3]]})],
    [("banned_strings", {"banned_strings": ["ab", "bca"]})],
    [("stop_on", {"stop_on": ["ca", "b"]})],
    [("dry", {"dry_multiplier": 0.8, "dry_allowed_length": 1})],
    [("frequency_penalty", {"frequency_penalty": 0.5}), ("presence_penalty", {"presence_penalty": 0.25})],
    [("green_list", {"hashing_key": 7})],
    [("loop_guard", {"action": "deny_next", "repeats": 2, "min_length": 2, "plain_repeats": 0})],
    [("loop_guard", {"action": "end_thinking", "repeats": 2, "min_length": 2, "plain_repeats": 0, **TAGS})],
    [("min_tokens", {"min_tokens": 3, "stop_token_ids": [2]})],
    [("no_repeat_ngram", {"ngram_size": 1, **THINKING}), ("frequency_penalty", {"frequency_penalty": 1.0, **ANSWER})],
    [("min_tokens", {"min_tokens": 2, "stop_token_ids": [3], **ANSWER})],
    [("no_repeat_ngram", {"ngram_size": 1}), ("repetition_penalty", {"repetition_penalty": 1.5})],
    [("temperature", {"temperature": 0.5}), ("top_k", {"top_k": 3}), ("top_p", {"top_p": 0.8})],
    [("min_p", {"min_p": 0.1}), ("typical_p", {"typical_p": 0.9})],
    [("epsilon", {"epsilon_cutoff": 0.1}), ("eta", {"eta_cutoff": 0.1})],
]
PENALTY = build.repetition_penalty(VOCAB).program


class DeniesSeen(EditProcessor):
    """Denies the ids of the output, and forces the last one if it is 3."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny(sorted(set(request.history.output_token_ids.tolist())))
        if request.history.last_output == 3:
            edits.force(3)


SHIPPED: list[Chain] = [
    [(DeniesSeen, {})],
    [(DeniesSeen, ANSWER), ("no_repeat_ngram", {"ngram_size": 2})],
    [("no_repeat_ngram", {"ngram_size": 2}), (AddOne, {}), (DeniesSeen, {})],
    [(PENALTY, {"penalty": 2.0}), ("disallowed_tokens", {"token_ids": [2]}), (PENALTY, {"penalty": 1.5})],
    [(PENALTY, {"penalty": 2.0}), (AddOne, {})],
]


def random_tree(random: np.random.Generator) -> Drafts:
    count = int(random.integers(1, 10))
    return Drafts(
        random.integers(VOCAB - 2, size=count).tolist(), [int(random.integers(-1, index)) for index in range(count)]
    )


def plain_rows(session: Session, chain: Chain, histories: list[list[int]], logits: Any) -> list[Any]:
    """Each row after the chain of a request with this output; None if the chain refuses it."""
    found: list[Any] = []
    for output, row in zip(histories, logits, strict=True):
        try:
            handle = session.add(Request([0, 1], output, processors=chain))
        except LogitportError:
            found.append(None)
            continue
        copied = row[None].copy()
        result = session.step({handle: []}).apply(copied, check=False)
        session.remove(handle)
        found.append(None if result.failures else copied[0])
    return found


def check_trees(session: Session, chain: Chain, random: np.random.Generator) -> None:
    """Compare the rows of random trees, and accept a path of each."""
    handles = [session.add(Request([0, 1], processors=chain)) for _ in range(2)]
    outputs: dict[Handle, list[int]] = {handle: [] for handle in handles}
    new_ids: dict[Handle, list[int]] = {handle: [] for handle in handles}
    for _ in range(3):
        tree, line = random_tree(random), Drafts(random.integers(VOCAB - 2, size=2).tolist())
        drafts = dict(zip(handles, (tree, line), strict=True))
        rows = [(handle, offset) for handle in handles for offset in range(1 + len(drafts[handle]))]
        chosen = None
        if random.random() < 0.5:
            chosen = rows = [rows[index] for index in random.permutation(len(rows))[: random.integers(1, 9)]]
        logits = random.normal(scale=3, size=(len(rows), VOCAB)).astype(np.float32)
        got = logits.copy()
        step = session.step(new_ids, drafts=drafts, draft_parents={handles[0]: tree.parents}, rows=chosen)
        result = step.apply(got, check=False)
        assert result.failures == {}
        for handle in handles:
            outputs[handle] += new_ids[handle]
        histories = [outputs[handle] + drafts[handle].path(offset) for handle, offset in rows]
        expected = plain_rows(session, chain, histories, logits)
        for row, wanted in enumerate(expected):
            # Rows after a draft that a chain does not allow are never sampled from.
            np.testing.assert_array_equal(got[row], logits[row] if wanted is None else wanted, f"{rows[row]} {tree}")
        for handle in handles:
            allowed = [at for at, (owner, _) in enumerate(rows) if owner is handle and expected[at] is not None]
            new_ids[handle] = []
            if allowed:
                row = allowed[random.integers(len(allowed))]
                new_ids[handle] = [*drafts[handle].path(rows[row][1]), int(got[row, :EOS].argmax())]
    session.remove(*handles)


def test_every_built_in_has_a_chain() -> None:
    assert {name for chain in CHAINS for name, _ in chain} == BUILTINS.keys()


@pytest.mark.parametrize("where", ["core", "python"])
def test_built_ins(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_vocabulary(tmp_path, PIECES)
    if where == "python":
        monkeypatch.setattr(engine_session, "core", None)
    random = np.random.default_rng(5)
    options = {"tokenizer_id": str(tmp_path / "tokenizer.json"), "eos_token_ids": [EOS], "max_draft_tokens": 9}
    with Client.embedded() as client, client.session(vocab_size=VOCAB, **options) as session:
        for chain in CHAINS:
            for _ in range(4):
                check_trees(session, chain, random)


@pytest.mark.parametrize("programs", ["all", "off"])
@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_shipped_classes_and_programs(client: Client, programs: Any, transport: Any) -> None:
    random = np.random.default_rng(6)
    with_programs = [chain for chain in CHAINS if any(name in BUILTIN_PROGRAMS for name, _ in chain)]
    options = {"max_draft_tokens": 9, "programs": programs, "transport": transport}
    with client.session(vocab_size=VOCAB, **options) as session:
        for chain in SHIPPED + with_programs:
            check_trees(session, chain, random)


def test_several_roots_follow_the_history(client: Client) -> None:
    with client.session(vocab_size=VOCAB, max_draft_tokens=4) as session:
        handle = session.add(Request([0], [1], processors=[("no_repeat_ngram", {"ngram_size": 1})]))
        logits = np.zeros((5, VOCAB), np.float32)
        session.step({handle: [2]}, drafts={handle: [3, 4, 5, 6]}, draft_parents={handle: [-1, -1, 0, 1]}).apply(logits)
        denied = [np.flatnonzero(row == -np.inf).tolist() for row in logits]
        assert denied == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 3, 5], [0, 1, 2, 4, 6]]


def test_a_tree_is_sent_again_after_histories_that_differ(client: Client) -> None:
    with client.session(vocab_size=VOCAB, max_draft_tokens=3) as session:
        handle = session.add(Request([0], [1], processors=[("no_repeat_ngram", {"ngram_size": 1})]))
        handle.history.rewind(1)
        handle.history.extend([2])
        logits = np.zeros((4, VOCAB), np.float32)
        session.step({handle: [3]}, drafts={handle: [4, 5, 6]}, draft_parents={handle: [-1, -1, 1]}).apply(logits)
        assert session.resyncs == 1
        denied = [np.flatnonzero(row == -np.inf).tolist() for row in logits]
        assert denied == [[0, 2, 3], [0, 2, 3, 4], [0, 2, 3, 5], [0, 2, 3, 5, 6]]


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ([-1, 1], r"draft_parents\[1\] of <Handle .*> is 1; pass the index of an earlier draft .* in \[0, 1\), or -1"),
        ([1, -1], r"draft_parents\[0\] of .* is 1"),
        ([-2, 0], r"draft_parents\[0\] of .* is -2"),
        ([-1], r"draft_parents of .* has 1 parents, but the request has 2 draft tokens; pass one parent for each"),
        ([-1, 0, 0], "has 3 parents"),
        ([-1, 0.5], "pass a sequence of integers"),
        (3, "draft_parents of .* are 3; pass a sequence of integers"),
    ],
)
def test_parents_that_form_no_tree_are_refused(client: Client, parents: Any, message: str) -> None:
    with client.session(vocab_size=VOCAB, max_draft_tokens=2) as session:
        handle = session.add(Request([0], processors=[("no_repeat_ngram", {"ngram_size": 1})]))
        with pytest.raises(InvalidArgument, match=message):
            session.step({handle: [1]}, drafts={handle: [2, 3]}, draft_parents={handle: parents})
        logits = np.zeros((1, VOCAB), np.float32)
        session.step({handle: [1]}).apply(logits)
        assert np.flatnonzero(logits[0] == -np.inf).tolist() == [0, 1]
