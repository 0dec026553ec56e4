"""Grammars come from untrusted requests: one that grows exponentially must not affect other requests."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from logitport import Client, InvalidArgument, LogitportError, ProcessorFailed, Request
from tests.builtin_processors.test_grammar_params import BOMBS
from tests.tokenizer_files import write_trained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.conftest import RunningServer

VOCAB = 352
# Accepted because it is small at first; it grows exponentially after six letters.
LATER = {"regex": "[a-z]{6}((a{1000}){1000}){1000}"}
LETTER_A = 66  # the first id that a letter can take: the trained vocabulary begins with the bytes


@pytest.fixture(scope="module")
def target(
    serving: Callable[..., AbstractContextManager[RunningServer]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_trained(folder, generation_config={"eos_token_id": 1})
    with serving("--tokenizer", f"json={folder}") as server:
        yield server.target


def test_steps_continue_while_bombs_are_refused(target: str) -> None:
    refused: list[LogitportError] = []

    def attack() -> None:
        with Client(target, timeout=200) as client, client.session(vocab_size=VOCAB) as session:
            for bomb in BOMBS.values():
                try:
                    session.add(Request(processors=[("grammar", bomb)]))
                except LogitportError as error:
                    refused.append(error)

    attacker = threading.Thread(target=attack)
    longest = 0.0
    with Client(target) as client, client.session(vocab_size=VOCAB, transport="grpc") as session:
        handle = session.add(Request([1, 2], processors=[("disallowed_tokens", {"token_ids": [5]})]))
        session.step({handle: []}).apply(np.zeros((1, VOCAB), np.float32))
        attacker.start()
        while attacker.is_alive():
            began = time.monotonic()
            session.step({handle: [3]}).apply(logits := np.zeros((1, VOCAB), np.float32))
            longest = max(longest, time.monotonic() - began)
            assert np.flatnonzero(np.isneginf(logits[0])).tolist() == [5]
    assert len(refused) == len(BOMBS)
    assert {type(error) for error in refused} == {InvalidArgument}
    assert longest < 20.0  # generous for a busy machine; some of the bombs would never end


def test_a_grammar_that_grows_later_affects_no_other_request(target: str) -> None:
    """On a slow machine its masks exceed the limit of time, and it fails; on a fast one each mask must be exact."""
    with Client(target) as client, client.session(vocab_size=VOCAB) as session:
        harmless = {"regex": "[0-9]+"}
        first, other = (session.add(Request(processors=[("grammar", grammar)])) for grammar in (LATER, harmless))
        new: dict[str, list[int]] = {"bomb": [], "other": []}
        letters = 0
        for _ in range(60):
            pending = session.step({first: new["bomb"], other: new["other"]})
            result = pending.apply(logits := np.zeros((2, VOCAB), np.float32), check=False)
            assert other not in result.failures
            assert 0 < (logits[1] == 0).sum() < VOCAB
            if first in result.failures:
                assert isinstance(result.failures[first], ProcessorFailed)
                break
            allowed = np.flatnonzero(logits[0] == 0)
            if letters >= 6:
                assert allowed.tolist() == [LETTER_A]
            new = {"bomb": [int(allowed[0])], "other": [int(np.flatnonzero(logits[1] == 0)[0])]}
            letters += 1
        assert letters >= 6  # the failure, if any, comes when the grammar has grown
        session.remove(first)
        session.step({other: []}).apply(np.zeros((1, VOCAB), np.float32))
