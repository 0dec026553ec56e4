"""The operator's tokenizers: their interface, and the texts of their ids."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models

from logitport import InvalidArgument, PayloadError, tokenizers
from logitport.tokenizers import Tokenizer, TokenizerFile, operator_tokenizer, read_tokenizer
from tests.tokenizer_files import EOS, PAD, write_pieces, write_trained

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PIECES = ["▁", "▁Hello", "Hello", "▁world", "o", "l", "▁▁", "é", "##lo", ".", "'s", "n't", "▁a▁b", "<0x20>"]
PIECES += [f"<0x{byte:02X}>" for byte in (0x0A, 0x41, 0xC3, 0xA9, 0xE5, 0x90, 0x8D)]
DECODERS = {
    "llama": decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
    "gemma": decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    "metaspace": decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
    "never_prepends": decoders.Metaspace(prepend_scheme="never"),
    "wordpiece": decoders.WordPiece(),
    "none": None,
}


@pytest.fixture(autouse=True)
def _unconfigured() -> Iterator[None]:
    yield
    tokenizers.configure({})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("trained")
    write_trained(folder, generation_config={"eos_token_id": 1})
    return load(folder)


@pytest.fixture(scope="module", params=["byte_level", *DECODERS])
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Library]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "byte_level":
        library = write_trained(folder)
        library.add_tokens(["<think>", "名"])
        library.save(str(folder / "tokenizer.json"))
    else:
        library = write_pieces(folder, PIECES, DECODERS[request.param])
    return load(folder), library


def load(folder: Path, name: str = "t") -> Tokenizer:
    return read_tokenizer(name, folder)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_texts_of_ids_are_the_decoded_text(kind: tuple[Tokenizer, Library], data: st.DataObject) -> None:
    tokenizer, library = kind
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=8))
    shown = [token_id for token_id in ids if token_id < len(tokenizer) and token_id not in tokenizer.all_special_ids]
    joined = b"".join(tokenizer.token_bytes(token_id, first=not at) for at, token_id in enumerate(shown))
    decoded = library.decode(ids, skip_special_tokens=True)
    try:
        assert joined.decode() == decoded
    except UnicodeDecodeError:
        assert "\N{REPLACEMENT CHARACTER}" in decoded
    assert tokenizer.decode(ids, skip_special_tokens=True) == decoded


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_ids_are_found_by_their_texts(kind: tuple[Tokenizer, Library], data: st.DataObject) -> None:
    tokenizer, _ = kind
    texts = [tokenizer.token_bytes(token_id) for token_id in range(len(tokenizer))]
    sources = st.sampled_from([text for text in texts if text])
    part = data.draw(st.one_of(sources, sources.map(lambda text: text[1:] or text), st.binary(min_size=1, max_size=3)))
    containing = [token_id for token_id, text in enumerate(texts) if part in text]
    assert tokenizer.ids_containing(part).tolist() == containing
    starting = [token_id for token_id, text in enumerate(texts) if text and text.startswith(part)]
    assert sorted(tokenizer.ids_starting_with(part).tolist()) == starting
    assert len(tokenizer.ids_starting_with("")) == sum(map(bool, texts))


def test_it_encodes_and_decodes_like_the_library(trained: Tokenizer) -> None:
    ids = trained.encode('{"name": "Grüße"}')
    assert trained.decode(ids) == '{"name": "Grüße"}'
    assert trained.decode(np.array(ids)) == trained.decode(iter(ids)) == '{"name": "Grüße"}'
    assert trained(" name")["input_ids"] == trained(" name").input_ids == trained.encode(" name")
    assert trained.convert_tokens_to_ids(trained.tokenize('"name')) == trained.encode('"name')
    assert trained.convert_ids_to_tokens(1) == EOS
    assert (trained.decode(1), trained.decode(1, skip_special_tokens=True)) == (EOS, "")
    assert (trained.eos_token_id, trained.eos_token, trained.all_special_ids) == (1, EOS, [0, 1])
    assert (len(trained), trained.get_vocab()[PAD], trained.eos_token_ids) == (313, 0, (1,))


@pytest.mark.parametrize("wrong", [-1, 1.5, ["a"], [1 << 31]])
def test_ids_must_be_integers(trained: Tokenizer, wrong: Any) -> None:
    with pytest.raises((InvalidArgument, TypeError)):
        trained.decode(wrong)


def test_it_is_copied_and_pickled_by_reference(trained: Tokenizer) -> None:
    assert copy.deepcopy([trained])[0] is copy.copy(trained) is trained
    data = pickle.dumps(trained)
    assert len(data) < 300
    with pytest.raises(PayloadError, match=r"the tokenizer 't'.*configured: none"):
        pickle.loads(data)
    tokenizers.configure({"mine": trained})
    assert pickle.loads(data).encode("name") == trained.encode("name")


def test_attributes_that_it_lacks_are_named(trained: Tokenizer) -> None:
    assert not hasattr(trained, "add_tokens")
    with pytest.raises(AttributeError, match=r"no attribute 'pad_token_id'; it has encode, decode"):
        _ = trained.pad_token_id


def test_a_decoder_that_is_not_known_is_refused_where_bytes_are_needed(tmp_path: Path) -> None:
    write_pieces(tmp_path, PIECES, decoders.BPEDecoder())
    tokenizer = load(tmp_path)
    assert tokenizer.decode([2]) == "Hello"
    with pytest.raises(PayloadError, match=r"tokenizer 't': its decoder is BPEDecoder"):
        tokenizer.token_bytes(0)


@pytest.mark.parametrize("text", ["", "[]", '{"model": {}}'])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(PayloadError, match=r"tokenizer 't': .*give a tokenizer.json"):
        load(tmp_path)
    with pytest.raises(PayloadError, match=r"No such file"):
        load(tmp_path / "other")


def test_without_the_library_the_error_names_the_extra(trained: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(PayloadError, match=r"pip install '\.\[tokenizers\]'"):
        Tokenizer("t", TokenizerFile(b"{}"))


def test_the_tokenizer_is_found_by_name(trained: Tokenizer) -> None:
    with pytest.raises(InvalidArgument, match=r"no tokenizer is named .none is configured"):
        operator_tokenizer()
    tokenizers.configure({"a": trained})
    assert operator_tokenizer() is operator_tokenizer("a") is trained
    with pytest.raises(InvalidArgument, match=r"tokenizer 'b' is not configured .configured: 'a'"):
        operator_tokenizer("b")
    tokenizers.configure({"a": trained, "b": PayloadError("not here")})
    with pytest.raises(InvalidArgument, match=r"no tokenizer is named .configured: 'a', 'b'"):
        operator_tokenizer()
    with pytest.raises(PayloadError, match=r"^not here$"):
        operator_tokenizer("b")


def test_a_library_without_the_same_tokens_is_another_one(tmp_path: Path, trained: Tokenizer) -> None:
    library = write_trained(tmp_path)
    assert load(tmp_path).digest == trained.digest
    library.add_tokens(["<think>"])
    library.save(str(tmp_path / "tokenizer.json"))
    assert load(tmp_path).digest != trained.digest


def test_truncation_of_prompts_does_not_apply(tmp_path: Path) -> None:
    library = write_trained(tmp_path)
    library.enable_truncation(2)
    library.save(str(tmp_path / "tokenizer.json"))
    assert len(load(tmp_path).encode("a long text, which has more than two tokens")) > 2
    assert isinstance(library.model, models.BPE)
