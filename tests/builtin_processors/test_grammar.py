"""The built-in `grammar` against a naive reference: the allowed ids after any appends and rewinds."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitport.core.edits import EditKind, Edits, RowEdits, unpack_bits
from logitport.core.history import History
from logitport.errors import ProcessorFailed
from logitport.processors import EditRequest
from logitport_builtins import Grammar
from logitport_builtins.grammar import compiled_grammar, grammar_tokenizer, masks
from tests.builtin_processors import regexes
from tests.tiers import examples
from tests.tokenizer_files import write_vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


LLExecutor = pytest.importorskip("llguidance").LLExecutor

# All texts of up to three letters, and a letter that few grammars here contain.
PIECES = ["".join(letters) for n in (1, 2, 3) for letters in product(regexes.ALPHABET, repeat=n)] + ["d"]
EOS, OTHER_EOS = len(PIECES), len(PIECES) + 1
VOCAB_SIZE = len(PIECES) + 60  # padded


@pytest.fixture(scope="module", autouse=True)
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("letters")
    write_vocabulary(folder, PIECES, ["<|end|>", "<|other|>"])
    grammar_tokenizer.configure({"letters": folder})
    yield
    grammar_tokenizer.configure({})


class Follow:
    """A request, its output, and the allowed ids."""

    def __init__(
        self,
        params: dict[str, Any],
        output: Sequence[int] = (),
        prompt: Sequence[int] = (0, 40),
        eos_token_ids: Sequence[int] = (EOS,),
    ) -> None:
        self.processor = Grammar()
        self.request = EditRequest(params, History(prompt, output), VOCAB_SIZE, eos_token_ids=tuple(eos_token_ids))
        self.processor.start(self.request)

    @property
    def text(self) -> str:
        return "".join(PIECES[token_id] for token_id in self.request.history.output_token_ids)

    def append(self, *token_ids: int, draft: bool = False) -> None:
        for token_id in token_ids:
            self.request.history.draft_tokens += draft
            self.request.history.append(token_id)
            self.processor.advance(self.request, token_id)

    def cut(self, output_length: int) -> None:
        self.request.history.rewind(self.request.history.prompt_length + output_length)
        self.processor.rewind(self.request)

    def allowed(self) -> list[int]:
        edits = RowEdits()
        self.processor.edit_batch([self.request], [edits])
        return allowed_by(edits)


def allowed_by(edits: RowEdits) -> list[int]:
    """The ids that these edits allow, after packing and unpacking."""
    packed = Edits.pack([(0, edits)], VOCAB_SIZE)
    packed = Edits.from_proto(packed.to_proto(), 1, VOCAB_SIZE)
    (unpacked,) = packed.unpack(1)
    allowed = np.ones(VOCAB_SIZE, bool)
    for kind, ids, _ in unpacked:
        if kind is EditKind.BITMASK:
            allowed &= unpack_bits(ids, VOCAB_SIZE)
        else:
            assert kind is EditKind.ALLOW
            among = np.zeros(VOCAB_SIZE, bool)
            among[ids] = True
            allowed &= among
    ids: list[int] = np.flatnonzero(allowed).tolist()
    return ids


def expected(regex: regexes.Regex, text: str) -> list[int]:
    """Reference: an id is allowed if text and piece begin a word of the language; the end, if the text is a word."""
    here = regexes.after(regex, text)
    ids = [token_id for token_id, piece in enumerate(PIECES) if regexes.after(here, piece) != regexes.NEVER]
    return [*ids, *([EOS] if regexes.nullable(here) else [])]


def is_right(allowed: list[int], regex: regexes.Regex, text: str) -> bool:
    """Whether these are the expected ids; where only one text can follow, one id that begins it is enough."""
    complete = expected(regex, text)
    if regexes.forced(regexes.after(regex, text)) and len(allowed) == 1:
        return allowed[0] in complete
    return allowed == complete


WRITTEN = {
    "regex": lambda regex: {"regex": regexes.as_regex(regex)},
    "ebnf": lambda regex: {"ebnf": f"root ::= {regexes.as_ebnf(regex)}"},
}
# Whether to go back, and a number: how far to go back, or which allowed id to append.
MOVES = st.lists(st.tuples(st.booleans(), st.integers(0, 100)), max_size=12)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["regex", "ebnf"])
@settings(max_examples=examples(150))
@given(regexes.REGEXES, MOVES)
def test_exactly_the_ids_that_can_be_completed_are_allowed(
    no_trials: None, form: str, regex: regexes.Regex, moves: list[tuple[bool, int]]
) -> None:
    request = Follow(WRITTEN[form](regex))
    assert is_right(request.allowed(), regex, "")
    for back, number in moves:
        if back:
            request.cut(max(0, len(request.request.history.output_token_ids) - number % 5))
        else:
            ids = [token_id for token_id in expected(regex, request.text) if token_id != EOS]
            if not ids:
                continue
            request.append(ids[number % len(ids)])
        assert is_right(request.allowed(), regex, request.text), request.text
    again = Follow(WRITTEN[form](regex), request.request.history.output_token_ids.tolist())
    assert again.allowed() == request.allowed()


@pytest.fixture(params=[None, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the number of threads that compute masks, on any machine; None for only the calling thread."""
    executor = None if request.param is None else LLExecutor(request.param)
    monkeypatch.setattr(masks, "_executor", lambda: executor)


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(regexes.REGEXES, st.integers(0, 100)), min_size=2, max_size=6), st.lists(MOVES, min_size=1))
def test_each_request_of_a_batch_has_its_own_grammar(
    no_trials: None, threads: None, spec: list[tuple[regexes.Regex, int]], moves: list[list[tuple[bool, int]]]
) -> None:
    requests = [Follow({"regex": regexes.as_regex(regex)}) for regex, _ in spec]
    processor = Grammar()
    for step in range(4):
        for request, (regex, number) in zip(requests, spec, strict=True):
            ids = [token_id for token_id in expected(regex, request.text) if token_id != EOS]
            if ids and (number + step) % 3:
                request.append(ids[(number * 7 + step) % len(ids)])
        edits = [RowEdits() for _ in requests]
        processor.edit_batch([request.request for request in requests], edits)
        for request, (regex, _), row_edits in zip(requests, spec, edits, strict=True):
            assert is_right(allowed_by(row_edits), regex, request.text)


@settings(max_examples=examples(100))
@given(regexes.REGEXES, st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=4), st.integers(0, 3))
def test_rejected_drafts_leave_nothing_behind(
    no_trials: None, regex: regexes.Regex, drafts: list[int], accepted: int
) -> None:
    """Drafts may be any ids. A row after an impossible one is not constrained, because it is never sampled from."""
    request = Follow({"regex": regexes.as_regex(regex)})
    for token_id in expected(regex, "")[:accepted]:
        if token_id in expected(regex, request.text) and token_id != EOS:
            request.append(token_id)
    length, text, possible = len(request.request.history.output_token_ids), request.text, True
    for draft in drafts:
        ended = draft == EOS and regexes.nullable(regexes.after(regex, text))
        possible = possible and draft in expected(regex, text)
        request.append(draft, draft=True)
        if not possible:
            assert request.allowed() == list(range(VOCAB_SIZE))
        elif ended:
            assert request.allowed() == [EOS]
            break
        else:
            text += PIECES[draft]
            assert is_right(request.allowed(), regex, text)
    request.cut(length)
    assert is_right(request.allowed(), regex, request.text)


def test_an_accepted_id_that_the_grammar_does_not_allow_fails_the_request() -> None:
    request = Follow({"regex": "ab+"})
    request.append(PIECES.index("ab"), PIECES.index("c"), PIECES.index("b"))
    with pytest.raises(
        ProcessorFailed, match=f"id at index 1 is {PIECES.index('c')}, which the grammar does not allow"
    ):
        request.allowed()
    request.cut(1)
    assert request.allowed() == [*(PIECES.index(text) for text in ("b", "bb", "bbb")), EOS]
    with pytest.raises(ProcessorFailed, match="id at index 0 is 3, which"):
        Follow({"regex": "ab+"}, [PIECES.index("aa")]).allowed()


@pytest.mark.parametrize("wrong", [EOS, OTHER_EOS, len(PIECES) + 2, VOCAB_SIZE - 1])
def test_a_premature_end_and_ids_without_text_are_not_allowed(wrong: int) -> None:
    request = Follow({"regex": "abc"})
    assert wrong not in request.allowed()
    request.append(wrong)
    with pytest.raises(ProcessorFailed, match="does not allow"):
        request.allowed()


def test_after_the_end_only_the_end_is_allowed() -> None:
    request = Follow({"regex": "ab?"})
    request.append(PIECES.index("a"))
    assert request.allowed() == [PIECES.index("b"), EOS]
    request.append(PIECES.index("b"))
    assert request.allowed() == [EOS]
    request.append(EOS, EOS, 0)
    assert request.allowed() == [EOS]
    request.cut(1)
    assert request.allowed() == [PIECES.index("b"), EOS]


def test_the_session_defines_the_end_ids_even_those_with_text() -> None:
    piece = PIECES.index("c")
    ends = [piece, OTHER_EOS, VOCAB_SIZE - 1]
    request = Follow({"regex": "abc?"}, prompt=[1], eos_token_ids=(OTHER_EOS, piece, VOCAB_SIZE - 1))
    assert request.allowed() == [PIECES.index(text) for text in ("a", "ab", "abc")]
    for appended in (PIECES.index("ab"), piece):
        request.append(appended)
        assert request.allowed() == ends


@settings(max_examples=examples(50))
@given(st.lists(st.text("abcd", max_size=5), min_size=1, max_size=5), st.integers(0, 100))
def test_choices(no_trials: None, choices: list[str], number: int) -> None:
    request = Follow({"choice": choices})
    while True:
        text = request.text
        ids = [token_id for token_id, piece in enumerate(PIECES) if any(c.startswith(text + piece) for c in choices)]
        forced = text not in choices and len({c[len(text)] for c in choices if c.startswith(text)}) == 1
        allowed = request.allowed()
        assert allowed == [*ids, *([EOS] if text in choices else [])] or (forced and allowed[0] in ids)
        if not ids:
            return
        request.append(ids[number % len(ids)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ebnf", "text", "then"),
    [
        ('root ::= word ("," word)*\nword ::= [a-c]+', "", "a|bb|c"),
        ('root ::= first-part "d"\nfirst-part ::= "a" | "b"', "", "a|b"),
        ('root ::= first-part "d"\nfirst-part ::= "a" | "b"', "a", "d"),
        ('root ::= "\\u0061" [\\u0062-\\u0063]  # a comment', "a", "b|c"),
        ('root ::= "\\x61" [^\\U00000061\\]]', "a", "b|c|d"),
        ('root ::= ("a" root "b")?', "aa", "a|b"),
        ('root ::= "a"{2,3} "b"', "aa", "a|b|ab"),
        ('root ::=\n  "a" |\n  "b"', "", "a|b"),
    ],
)
def test_ebnf(ebnf: str, text: str, then: str) -> None:
    request = Follow({"ebnf": ebnf}, [PIECES.index(char) for char in text])
    allowed = {PIECES[token_id] for token_id in request.allowed() if token_id != EOS}
    assert allowed >= set(then.split("|"))
    assert {piece[0] for piece in allowed} == {piece[0] for piece in then.split("|")}


def test_the_prompt_is_not_matched() -> None:
    prompt = [PIECES.index("d"), EOS, VOCAB_SIZE - 1]
    assert Follow({"regex": "ab"}, prompt=prompt).allowed() == Follow({"regex": "ab"}).allowed()


@pytest.mark.slow
def test_a_matcher_that_reached_a_limit_of_its_grammar_is_restarted(
    no_trials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matchers of a grammar share limited lexer states; a long-running server must not run out of them."""
    monkeypatch.setattr(compiled_grammar, "PARSER_LIMITS", {"max_lexer_states": 700})
    params = {"regex": "(a{0,300}|b{0,300}|c{0,300})a?b?c?"}
    piece = {letter: PIECES.index(letter) for letter in "abc"}
    for _ in range(3):
        for letter in "abc":
            request = Follow(params)
            for _ in range(250):
                request.append(piece[letter])
                assert piece[letter] in request.allowed()


def test_an_output_that_exceeds_the_limits_by_itself_fails(no_trials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_grammar, "PARSER_LIMITS", {"max_lexer_states": 100})
    request = Follow({"regex": "a{0,400}bbb"})
    request.append(*[0] * 50)
    assert 0 in request.allowed()
    request.append(*[0] * 250)
    with pytest.raises(ProcessorFailed, match=r"after \d+ ids of output: .*too many states"):
        request.allowed()


@pytest.mark.slow
def test_a_slow_mask_fails_only_its_own_request(threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "MAX_MASK_SECONDS", 0.008)  # the library's own limits end a mask soon after 0.1 s
    compiled_grammar.compiled.cache_clear()  # a grammar that has been followed before has fast masks
    right, slow = Follow({"regex": "a[bc]"}), Follow({"regex": "[bc]{6}((a{1000}){1000}){1000}"})
    Grammar.validate_params(slow.request.params)  # its first mask is quick
    slow.append(*[PIECES.index("b")] * 6)
    requests, processor = [right, slow], Grammar()

    def step() -> None:
        processor.edit_batch([one.request for one in requests], [RowEdits() for _ in requests])
        slow.append(PIECES.index("a"))

    def two_steps() -> None:  # the first finds that a mask is slow; the second measures each mask
        step()
        step()

    with pytest.raises(
        ProcessorFailed, match=r"after [67] ids of output: its mask took \d+\.\d+ s; the limit is 0.008"
    ):
        two_steps()
    assert right.allowed() == [PIECES.index(text) for text in ("a", "ab", "ac")]
    with pytest.raises(ProcessorFailed, match="its mask took"):  # and it is not computed again
        slow.allowed()


def test_equal_grammars_are_compiled_once() -> None:
    first, second = Follow({"regex": "a[bc]"}), Follow({"regex": "a[bc]", "tokenizer": "letters"})
    assert first.request.state.grammar is not second.request.state.grammar  # the specs differ
    assert Follow({"regex": "a[bc]"}).request.state.grammar is first.request.state.grammar
    assert compiled_grammar.compiled.cache_info().maxsize == 64
