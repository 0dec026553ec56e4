"""The processor: chooses grammar and tokenizer, follows histories, and adds masks to the edits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidArgument, PayloadError, ProcessorFailed
from logitport.processors import EditProcessor
from logitport_builtins.grammar import grammar_tokenizer
from logitport_builtins.grammar.compiled_grammar import compiled
from logitport_builtins.grammar.grammar_spec import read_grammar
from logitport_builtins.grammar.grammar_state import GrammarState
from logitport_builtins.grammar.masks import add_allowed_ids
from logitport_builtins.grammar.trial import definition
from logitport_builtins.params import check_in_vocabulary

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from logitport.core.edits import RowEdits
    from logitport.processors import EditRequest
    from logitport_builtins.grammar.grammar_spec import GrammarSpec

# After a slow step, so many further steps compute and measure their masks one by one.
_MEASURED_STEPS = 32


class Grammar(EditProcessor):
    """Allows only ids after which the output can still become a text of the grammar. The prompt is ignored.

    If the output is a complete text, the end-of-sequence ids are allowed as well; if nothing can follow, only these.
    They are the session's, or else those in the files next to the tokenizer.

    Parameters:
        json_schema: a JSON schema, as an object or as text; or one of these instead:
        json_object: true, for any JSON object,
        regex: a regular expression in the syntax of Rust's `regex` crate, which the whole output matches,
        choice: a list of strings; the output is one of them;
        ebnf: a grammar in GBNF, the EBNF that llama.cpp and xgrammar read; its first rule is `root`;
        lark: a grammar in llguidance's Lark, with special tokens by name, `<|name|>`, and by id, `<[5,7-9]>`;
        structural_tag: free text with tags that hold JSON, in vLLM's legacy form or xgrammar's `triggered_tags`; or
        tools: OpenAI's list of tools; the output is text, or calls of them, or both.
        tool_choice: optional, for `tools`: OpenAI's "none", "auto" (the default), "required" or a named function.
        tool_format: for `tools`, how the model writes calls: a name in `tool_calls.FORMATS`, or a `ToolFormat`.
        parallel_tool_calls: optional, for `tools`: false for one call at most.
        disable_any_whitespace: optional, for JSON: true to forbid whitespace between its tokens, false to allow any
            amount. By default, an amount for indented JSON is allowed.
        whitespace_pattern: optional, for JSON, instead of that: a regular expression for the whitespace.
        tokenizer: optional, the operator's name of the tokenizer; by default the session's `tokenizer_id`, or the only
            tokenizer that is configured (`grammar_tokenizer.configure`).

    After a draft token that the grammar does not allow, rows are unconstrained, because they are never sampled from.
    An accepted id that the grammar does not allow fails the request.

    Raises:
        PayloadError: llguidance is not installed.
    """

    builtin_name = "grammar"
    only_denies = True
    bytes_per_output_id = 200
    takes_long = True

    def __init__(self) -> None:
        try:
            import llguidance  # noqa: F401
        except ImportError as error:
            raise PayloadError(grammar_tokenizer.MISSING) from error
        self._measured_steps = 0

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        """Read the grammar, and compile it if it is new. Raises InvalidArgument, LimitExceeded, PayloadError."""
        _check(read_grammar(params))

    def validate_for(self, caller: Hashable, params: Mapping[str, Any]) -> None:
        """Validate like `validate_params`; a caller waits mostly for its own grammars. Raises the same errors."""
        _check(read_grammar(params, caller))

    def start(self, request: EditRequest) -> None:
        """Match the output so far. Raises InvalidArgument, LimitExceeded."""
        output = request.history.output_token_ids.tolist()
        if isinstance(request.state, GrammarState):  # of an earlier block: nothing is compiled within a step
            request.state = GrammarState(request.state.grammar, request.state.eos_token_ids, output)
            return
        spec = read_grammar(request.params, request.caller)
        tokenizer = grammar_tokenizer.choose(spec.tokenizer or request.tokenizer_id)
        check_in_vocabulary("grammar", [tokenizer.vocab_size - 1], request.vocab_size)
        eos_token_ids = request.eos_token_ids or tokenizer.eos_token_ids
        if not eos_token_ids:
            raise InvalidArgument(
                "grammar: no end-of-sequence id is known, so the output could never end: open the session with "
                f"eos_token_ids, or put generation_config.json next to the file of tokenizer {tokenizer.name!r}"
            )
        request.state = GrammarState(compiled(spec, tokenizer), eos_token_ids, output)

    def advance(self, request: EditRequest, token_id: int) -> None:
        """Match one more id."""
        request.state.advance(token_id)

    def rewind(self, request: EditRequest) -> None:
        """Undo the ids that were cut off."""
        request.state.rewind(request.history.length - request.history.prompt_length)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        """BITMASK or ALLOW of the ids that may follow."""
        self.edit_batch([request], [edits])

    def edit_batch(self, requests: Sequence[EditRequest], edits: Sequence[RowEdits]) -> None:
        """Edit all rows at once, on several threads. Raises ProcessorFailed."""
        by_tokenizer: dict[str, tuple[list[GrammarState], list[RowEdits]]] = {}
        for request, row_edits in zip(requests, edits, strict=True):
            state: GrammarState = request.state
            state.check()
            if state.ended:
                row_edits.allow(state.eos_token_ids)
            elif state.mismatched:
                _check_draft(request, state)
            else:
                group, group_edits = by_tokenizer.setdefault(state.grammar.tokenizer.name, ([], []))
                group.append(state)
                group_edits.append(row_edits)
        self._measured_steps = max(0, self._measured_steps - 1)
        for group, group_edits in by_tokenizer.values():
            if add_allowed_ids(group, group_edits, requests[0].vocab_size, measure_each=self._measured_steps > 0):
                self._measured_steps = _MEASURED_STEPS


def _check(spec: GrammarSpec) -> None:
    if spec.tokenizer:
        grammar_tokenizer.choose(spec.tokenizer)
    definition(spec)


def _check_draft(request: EditRequest, state: GrammarState) -> None:
    """Raise ProcessorFailed if the id that the grammar does not allow is not a draft token."""
    history = request.history
    at = history.prompt_length + state.matched
    if at < history.length - history.draft_tokens:
        raise ProcessorFailed(
            f"grammar: the output's id at index {state.matched} is {history.at(at)}, which the grammar does not allow "
            "there; check that the engine applies the edits, and that no other processor forces the id"
        )
