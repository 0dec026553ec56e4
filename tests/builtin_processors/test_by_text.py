"""`banned_strings`, `stop_on` and `force_prefix` against rules that decode each whole output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from logitport import EditRequest, History, InvalidArgument, ProcessorFailed, RowEdits, tokenizers
from logitport.tokenizers import Tokenizer, read_tokenizer
from logitport_builtins import BannedStrings, ForcePrefix, StopOn
from tests.tiers import examples
from tests.tokenizer_files import EOS, write_pieces, write_trained

if TYPE_CHECKING:
    from collections.abc import Iterator


VOCAB = 352
EOS_IDS = (3, 1)
# Overlapping pieces of few letters, so that strings span them in many ways.
PIECES = ["a", "b", "ab", "ba", "aab", "▁", "▁a", "▁b", "▁▁", "▁ab", "é", "b▁", "<0xC3>", "<0xA9>", "<0x20>", "##a"]
BYTE_LEVEL = ["a", "b", "ab", "ba", "aab", "Ġ", "Ġa", "Ġb", "ĠĠ", "Ġab", "Ã©", "bĠ", "Ã", "©", "aÃ", "©b"]
KINDS = {
    "byte_level": (BYTE_LEVEL, decoders.ByteLevel()),
    "llama": (
        PIECES,
        decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        ),
    ),
    "gemma": (PIECES, decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])),
    "metaspace": (PIECES, decoders.Metaspace()),
    "wordpiece": (PIECES, decoders.WordPiece()),
}
WORDS = st.text("abé ", min_size=1, max_size=4)
TRAINED = "trained"


@pytest.fixture(scope="module", params=[*KINDS, TRAINED])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokenizer]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == TRAINED:
        write_trained(folder)
    else:
        write_pieces(folder, *KINDS[request.param])
    made = read_tokenizer(request.param, folder)
    tokenizers.configure({request.param: made})
    yield made
    tokenizers.configure({})


def begin(processor: Any, params: dict[str, Any], output: list[int] = [], **options: Any) -> EditRequest:  # noqa: B006
    request = EditRequest(params, History([2, 4], output), VOCAB, **{"eos_token_ids": EOS_IDS, **options})
    processor.validate_params(params)
    processor.start(request)
    return request


def extend(processor: Any, request: EditRequest, token_id: int) -> None:
    request.history.append(token_id)
    processor.advance(request, token_id)


def allowed(processor: Any, request: EditRequest) -> set[int]:
    edits = RowEdits()
    processor.edit(request, edits)
    edits.check(VOCAB)
    found = set(range(VOCAB))
    for kind, ids, _ in edits:
        found = found & {*ids.tolist()} if kind.name == "ALLOW" else found - {*ids.tolist()}
    return found


def text_bytes(tokenizer: Tokenizer, ids: list[int], *, continues: bool = False) -> bytes:
    """The text of ids, from each id alone; where it `continues` a prompt, as after another id."""
    shown = [one for one in ids if tokenizer.token_bytes(one) or tokenizer.token_bytes(one, first=True)]
    return b"".join(tokenizer.token_bytes(one, first=not at and not continues) for at, one in enumerate(shown))


def draw_id(data: st.DataObject, among: set[int], tokenizer: Tokenizer) -> int:
    known = sorted(one for one in among if one < len(tokenizer)) or sorted(among)
    assume(known)
    return data.draw(st.sampled_from(known))


slow = settings(
    deadline=None,
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@slow
@given(data=st.data())
def test_banned_strings_never_occur_and_nothing_else_is_denied(tokenizer: Tokenizer, data: st.DataObject) -> None:
    strings = data.draw(st.lists(WORDS, min_size=1, max_size=4))
    processor, ids = BannedStrings(), list[int]()
    request = begin(processor, {"banned_strings": strings})

    def texts(ids: list[int]) -> list[bytes]:
        return [text_bytes(tokenizer, ids, continues=one) for one in (False, True)]

    for _ in range(data.draw(st.integers(0, 8))):
        found = allowed(processor, request)
        expected = {
            one
            for one in range(VOCAB)
            if not any(string.encode() in text for text in texts([*ids, one]) for string in strings)
        }
        assert found == expected
        ids.append(draw_id(data, found, tokenizer))
        extend(processor, request, ids[-1])
        decoded = tokenizer.decode(ids, skip_special_tokens=True)
        assert not any(string in decoded for string in strings)


@slow
@given(data=st.data())
def test_stop_on_allows_only_ends_after_a_string(tokenizer: Tokenizer, data: st.DataObject) -> None:
    strings = data.draw(st.lists(WORDS, min_size=1, max_size=4))
    processor, ids = StopOn(), list[int]()
    request = begin(processor, {"stop_on": strings})
    for _ in range(data.draw(st.integers(0, 8))):
        ids.append(data.draw(st.integers(0, len(tokenizer) - 1)))
        extend(processor, request, ids[-1])
        texts = [text_bytes(tokenizer, ids, continues=one) for one in (False, True)]
        stops = any(string.encode() in text for text in texts for string in strings)
        assert allowed(processor, request) == (set(EOS_IDS) if stops else set(range(VOCAB)))
        decoded = tokenizer.decode(ids, skip_special_tokens=True)
        assert stops or not any(string in decoded for string in strings)


@slow
@given(data=st.data())
def test_the_output_begins_with_the_prefix(tokenizer: Tokenizer, data: st.DataObject) -> None:
    prefix = data.draw(st.text("abé ", min_size=1, max_size=7))
    text = prefix.encode()

    def can_follow(ids: list[int], depth: int = 0) -> bool:
        """Whether ids exist with which the text becomes the prefix; each id adds a byte or more."""
        written = text_bytes(tokenizer, ids)
        if written.startswith(text) or not text.startswith(written):
            return written.startswith(text)
        last = text_bytes(tokenizer, ids[:-1])
        if ids and len(written) == len(last):
            return False
        return any(can_follow([*ids, one]) for one in candidates(text[len(written) :]))

    def candidates(rest: bytes) -> list[int]:
        return [one for one in range(len(tokenizer)) if (t := tokenizer.token_bytes(one)) and t[0] == rest[0]]

    processor, ids = ForcePrefix(), list[int]()
    try:
        request = begin(processor, {"force_prefix": prefix})
    except InvalidArgument:
        assert tokenizer.name != TRAINED
        if len(prefix) < 4:
            assert not any(can_follow([one]) for one in range(len(tokenizer)))
        return
    while not text_bytes(tokenizer, ids).startswith(text):
        found = allowed(processor, request)
        assert found
        if len(prefix) < 4 and tokenizer.name != TRAINED:
            assert found == {one for one in range(len(tokenizer)) if can_follow([*ids, one])}
        ids.append(draw_id(data, found, tokenizer))
        extend(processor, request, ids[-1])
    assert allowed(processor, request) == set(range(VOCAB))
    decoded = tokenizer.decode(ids, skip_special_tokens=True)
    assert decoded.startswith(prefix) or "\N{REPLACEMENT CHARACTER}" in decoded


@slow
@given(data=st.data())
def test_states_follow_from_histories(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """A history that was cut back and went on has the edits of a new request."""
    cases = (
        (BannedStrings(), {"banned_strings": ["ab", "a b"]}),
        (StopOn(), {"stop_on": ["ab", " a"]}),
    )
    processor, params = data.draw(st.sampled_from(cases))
    ids = st.lists(st.integers(0, len(tokenizer) - 1), max_size=5)
    output, more, cut = data.draw(ids), data.draw(ids), data.draw(st.integers(0, 5))
    request = begin(processor, params, output)
    request.history.rewind(2 + max(0, len(output) - cut))
    processor.rewind(request)
    for token_id in more:
        extend(processor, request, token_id)
    fresh = begin(processor, params, [*output[: max(0, len(output) - cut)], *more])
    assert allowed(processor, request) == allowed(processor, fresh)


@pytest.fixture
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokenizer]:
    folder = tmp_path_factory.mktemp("one")
    write_trained(folder, generation_config={"eos_token_id": 1})
    made = read_tokenizer("t", folder)
    tokenizers.configure({"t": made})
    yield made
    tokenizers.configure({})


def test_a_prefix_is_followed_through_drafts_and_fails_for_other_ids(trained: Tokenizer) -> None:
    processor = ForcePrefix()
    request = begin(processor, {"force_prefix": '{"name"'})
    wrong = trained.encode("]")[0]
    request.history.append(wrong)
    request.history.draft_tokens = 1
    processor.advance(request, wrong)
    assert allowed(processor, request) == set(range(VOCAB))  # after a rejected draft token
    request.history.draft_tokens = 0
    with pytest.raises(ProcessorFailed, match=r"output's id at index 0 is \d+, which differs from the prefix"):
        allowed(processor, request)
    request.history.rewind(2)
    processor.rewind(request)
    for token_id in trained.encode('{"name"'):
        assert token_id in allowed(processor, request)
        extend(processor, request, token_id)
    assert allowed(processor, request) == set(range(VOCAB))


def test_special_tokens_have_no_text(trained: Tokenizer) -> None:
    ids = [*trained.encode("a"), 1, *trained.encode("g")]
    assert trained.decode(ids, skip_special_tokens=True) == "ag"
    request = begin(BannedStrings(), {"banned_strings": ["ag", EOS]}, ids[:2])
    assert ids[2] not in allowed(BannedStrings(), request)
    assert 1 in allowed(BannedStrings(), request)


def test_the_ends_of_the_tokenizer_serve_where_the_session_has_none(trained: Tokenizer) -> None:
    output = trained.encode("name")
    assert allowed(StopOn(), begin(StopOn(), {"stop_on": ["am"]}, output, eos_token_ids=())) == {1}


@pytest.mark.parametrize(
    ("processor", "name"), [(BannedStrings, "banned_strings"), (StopOn, "stop_on"), (ForcePrefix, "force_prefix")]
)
def test_wrong_parameters_are_refused(trained: Tokenizer, processor: Any, name: str) -> None:
    listed = processor is not ForcePrefix
    wrong: list[tuple[Any, str]] = [
        (None, f"{name}: {name} is missing"),
        (5, f"{name} must be a"),
        ([""] if listed else "", "has an empty string"),
        (["\ud800"] if listed else "\ud800", "not valid Unicode"),
        (["a" * 20000] if listed else "a" * 5000, r"bytes; the limit is \d+"),
    ]
    wrong += [([], "a list of one string or more"), (["a"] * 257, "257 strings; the limit is 256")] if listed else []
    for value, message in wrong:
        with pytest.raises(InvalidArgument, match=message):
            processor.validate_params({name: value})
    good = ["a"] if listed else "a"
    with pytest.raises(InvalidArgument, match=r"tokenizer 'other' is not configured .configured: 't'"):
        processor.validate_params({name: good, "tokenizer": "other"})
    with pytest.raises(InvalidArgument, match="check that they are for this model's tokenizer"):
        processor().start(EditRequest({name: good}, History([1]), 312, eos_token_ids=(1,)))
    tokenizers.configure({})
    with pytest.raises(InvalidArgument, match=r"no tokenizer is named .none is configured"):
        begin(processor(), {name: good})


def test_the_event_of_denied_ids_follows_from_the_history(tokenizer: Tokenizer) -> None:
    """At the first row of the output after a text that begins a string, which no id contains wholly."""
    processor, params = BannedStrings(), {"banned_strings": ["a" * 6, "a" * 40]}
    token_id = next(one for one in range(VOCAB) if tokenizer.token_bytes(one) == b"a")
    output = [token_id] * 6

    def events(request: EditRequest) -> list[str]:
        processor.edit(request, edits := RowEdits())
        return [event.name for event in edits.events]

    def first_event(output: list[int]) -> int:
        return next(one for one in range(len(output) + 1) if events(begin(processor, params, output[:one])))

    request = begin(processor, params)
    position = first_event(output)
    assert 0 < position < len(output)
    for length in range(len(output)):
        assert events(request) == (["ids_denied"] if length == position else [])
        extend(processor, request, token_id)
    for length in (position, position - 1, position, len(output)):
        request.history.rewind(min(request.history.length, 2 + length))
        processor.rewind(request)
        for _ in range(request.history.length - 2, length):
            extend(processor, request, token_id)
        assert events(request) == (["ids_denied"] if length == position else [])
