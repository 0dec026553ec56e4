from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from logitport.core.edits import RowEdits
from logitport.core.history import History
from logitport.processors import EditRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport.processors import EditProcessor
    from logitport_builtins.grammar.grammar_spec import GrammarSpec


class Follow:
    """One request, and a processor that is called for it as by a session."""

    def __init__(
        self,
        processor: EditProcessor,
        params: Mapping[str, Any],
        prompt: Sequence[int] = (),
        output: Sequence[int] = (),
        vocab_size: int = 1000,
    ) -> None:
        self.processor = processor
        self.request = EditRequest(params, History(prompt, output), vocab_size)
        processor.start(self.request)

    @property
    def prompt(self) -> list[int]:
        return self.request.history.prompt_token_ids.tolist()

    @property
    def output(self) -> list[int]:
        return self.request.history.output_token_ids.tolist()

    def append(self, *token_ids: int) -> Follow:
        for token_id in token_ids:
            self.request.history.append(token_id)
            self.processor.advance(self.request, token_id)
        return self

    def rewind(self, output_length: int) -> Follow:
        self.request.history.rewind(self.request.history.prompt_length + output_length)
        self.processor.rewind(self.request)
        return self

    def edits(self) -> dict[str, list[int]]:
        """Kind of edit → its ids, ascending. Fails if an id is duplicated, because that wastes space."""
        edits = RowEdits()
        self.processor.edit_batch([self.request], [edits])
        edits.check(self.request.vocab_size)
        ids_by_kind = {kind.name: sorted(ids.tolist()) for kind, ids, _ in edits}
        assert all(len(set(ids)) == len(ids) for ids in ids_by_kind.values())
        return ids_by_kind

    def biases(self) -> dict[int, float]:
        """Id → the number that is added to its logit. There are no other edits."""
        edits = RowEdits()
        self.processor.edit(self.request, edits)
        edits.check(self.request.vocab_size)
        assert all(kind.name == "BIAS" for kind, _, _ in edits)
        return dict(pair for _, ids, values in edits for pair in zip(ids.tolist(), values.tolist(), strict=True))


@pytest.fixture(scope="session")
def follow() -> type[Follow]:
    return Follow


@pytest.fixture
def no_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile harmless grammars in this process, without a trial. Needs llguidance."""
    from logitport_builtins.grammar import compiled_grammar, trial_process

    def definition(spec: GrammarSpec) -> str:
        return trial_process.define(spec.kind, spec.text)

    monkeypatch.setattr(compiled_grammar, "definition", definition)
