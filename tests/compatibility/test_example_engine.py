"""Every row on the example engine: with and without speculation, continuous batching in four slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from examples.engine import Engine, Model
from tests.compatibility.example_engine import MAX_DRAFTS, VOCAB, check, drafts_of
from tests.compatibility.matrix import every_row, reference_of

if TYPE_CHECKING:
    from logitport import Client


@pytest.mark.cell(engine="example engine")
@every_row
def test_tokens_are_the_native_ones(client: Client, row: str) -> None:
    with client.session(vocab_size=VOCAB, dtype="float32") as session:
        check(Engine(session, Model(VOCAB)), client, row)


@pytest.mark.cell(engine="example engine, speculating")
@every_row
@pytest.mark.slow
def test_tokens_are_the_native_ones_where_drafts_are_verified(client: Client, row: str) -> None:
    with client.session(vocab_size=VOCAB, dtype="float32", max_draft_tokens=MAX_DRAFTS) as session:
        engine = Engine(session, Model(VOCAB), draft=drafts_of(reference_of(row)))
        check(engine, client, row)
    assert 0 < engine.accepted < engine.drafted
