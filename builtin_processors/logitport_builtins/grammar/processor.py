"""The processor: grammar and tokenizer found, histories followed, masks said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidParams, LoadFailed, ProcessorFailed
from logitport.processors import EditProcessor
from logitport_builtins.grammar import tokenizers
from logitport_builtins.grammar.compiled import compiled
from logitport_builtins.grammar.masks import say_allowed
from logitport_builtins.grammar.matching import Matching
from logitport_builtins.grammar.request_spec import read_grammar
from logitport_builtins.grammar.trial import definition
from logitport_builtins.params import check_in_vocabulary

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from logitport.core.edits import RowEdits
    from logitport.processors import EditRequest
    from logitport_builtins.grammar.request_spec import GrammarSpec

# After a step that was slow.
_WATCHED_STEPS = 32


class Grammar(EditProcessor):
    """Allows only ids with which the output can still become a text of the grammar; the prompt is not looked at.

    Where the output is such a text, the end-of-sequence ids are allowed as well, and only these where nothing can
    follow. They are the session's, or else those that the files beside the tokenizer name.

    Parameters:
        json_schema: a JSON schema, as an object or as text; or instead of it
        json_object: true, for any JSON object,
        regex: a regular expression in the syntax of Rust's `regex` crate, which the whole output matches,
        choice: a list of strings, one of which the output is, or
        ebnf: a grammar in GBNF, the EBNF that llama.cpp and xgrammar read; its first rule is `root`.
        disable_any_whitespace: of JSON, optional: true to allow no whitespace between its tokens.
        whitespace_pattern: instead of that: a regular expression for the whitespace there.
        tokenizer: optional, the operator's name of the tokenizer; by default the session's `tokenizer_id`, or the only
            one that is configured (`tokenizers.configure`).

    A draft token that the grammar does not allow leaves the rows after it unconstrained: they are never sampled from.
    The same among the accepted ids fails the request.

    Raises:
        LoadFailed: llguidance, which matches the grammars, is not installed.
    """

    builtin_name = "grammar"
    takes_long = True

    def __init__(self) -> None:
        try:
            import llguidance  # noqa: F401
        except ImportError as error:
            raise LoadFailed(tokenizers.MISSING) from error
        self._watched_steps = 0

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        """Reads the grammar, and compiles it if it is new. Raises InvalidParams, LimitExceeded."""
        _check(read_grammar(params))

    def validate_for(self, caller: Hashable, params: Mapping[str, Any]) -> None:
        """As `validate_params`; each caller waits for its own grammars to compile. Raises the same."""
        _check(read_grammar(params, caller))

    def start(self, request: EditRequest) -> None:
        """Match the output so far. Raises InvalidParams, InvalidTokenId, LimitExceeded."""
        spec = read_grammar(request.params, request.caller)
        tokenizer = tokenizers.choose(spec.tokenizer or request.tokenizer_id)
        check_in_vocabulary("grammar", [tokenizer.vocab_size - 1], request.vocab_size)
        eos_token_ids = request.eos_token_ids or tokenizer.eos_token_ids
        if not eos_token_ids:
            raise InvalidParams(
                "grammar: no end-of-sequence id is known, so the output could never end: open the session with "
                f"eos_token_ids, or put generation_config.json beside tokenizer {tokenizer.name!r}"
            )
        output = request.history.output_token_ids.tolist()
        request.state = Matching(compiled(spec, tokenizer), eos_token_ids, output)

    def advance(self, request: EditRequest, token_id: int) -> None:
        """Match one more id."""
        request.state.advance(token_id)

    def rewind(self, request: EditRequest) -> None:
        """Go back to the id that is now the last."""
        request.state.rewind(request.history.length - request.history.prompt_length)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        """BITMASK or ALLOW of the ids that may follow."""
        self.edit_batch([request], [edits])

    def edit_batch(self, requests: Sequence[EditRequest], edits: Sequence[RowEdits]) -> None:
        """As `edit`, for all rows at once, on several threads. Raises ProcessorFailed."""
        by_tokenizer: dict[str, tuple[list[Matching], list[RowEdits]]] = {}
        for request, row_edits in zip(requests, edits, strict=True):
            matching: Matching = request.state
            matching.check()
            if matching.ended:
                row_edits.allow(matching.eos_token_ids)
            elif matching.strayed:
                _check_draft(request, matching)
            else:
                matchings, said = by_tokenizer.setdefault(matching.grammar.tokenizer.name, ([], []))
                matchings.append(matching)
                said.append(row_edits)
        self._watched_steps = max(0, self._watched_steps - 1)
        for matchings, said in by_tokenizer.values():
            if say_allowed(matchings, said, requests[0].vocab_size, watch=self._watched_steps > 0):
                self._watched_steps = _WATCHED_STEPS


def _check(spec: GrammarSpec) -> None:
    if spec.tokenizer:
        tokenizers.choose(spec.tokenizer)
    definition(spec)


def _check_draft(request: EditRequest, matching: Matching) -> None:
    """Raises ProcessorFailed if the id that the grammar does not allow is no draft token."""
    history = request.history
    at = history.prompt_length + matching.matched
    if at < history.length - history.draft_tokens:
        raise ProcessorFailed(
            f"grammar: output id {matching.matched} is {history.at(at)}, which the grammar does not allow there; was "
            "it sampled without the edits, or does another processor force it?"
        )
