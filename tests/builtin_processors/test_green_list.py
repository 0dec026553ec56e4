from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from logitport.core.edits import RowEdits
from logitport.core.history import History
from logitport.errors import InvalidArgument
from logitport.processors import EditRequest
from logitport_builtins import GreenList, GreenListDetector
from logitport_builtins.green_list.lists import GreenLists

VOCAB_SIZE = 500


def green(params, ids, vocab_size=VOCAB_SIZE):
    processor, edits = GreenList(), RowEdits()
    request = EditRequest(params, History([], ids), vocab_size)
    processor.start(request)
    processor.edit(request, edits)
    edits.check(vocab_size)
    return [(ids.tolist(), set(values.tolist())) for _, ids, values in edits]


def test_the_last_id_determines_the_list():
    ((ids, values),) = green({}, [3, 9])
    assert len(ids) == 125
    assert ids == sorted(ids)
    assert values == {2.0}
    assert green({}, [9]) == [(ids, values)]
    assert green({}, [8]) != [(ids, values)]
    assert green({"hashing_key": 5}, [9]) != [(ids, values)]
    assert green({}, []) == []


def test_parameters():
    ((ids, values),) = green({"greenlist_ratio": 0.5, "bias": -1, "vocab_size": 400}, [1])
    assert len(ids) == 200
    assert max(ids) < 400
    assert values == {-1.0}
    with pytest.raises(InvalidArgument, match="logits have 500 ids"):
        green({"vocab_size": 501}, [1])


def test_lists_do_not_change_from_release_to_release():
    """A text that was marked earlier must be detected."""
    marks = np.stack([GreenLists(151_936, 0.25, 15_485_863).after(token_id) for token_id in (0, 1, 151_935)])
    assert (
        hashlib.sha256(np.packbits(marks).tobytes()).hexdigest()
        == "4631f3370248ba7ad1d44d30c54b8786f91e51df6cf06c5d9a495915b93bbc7b"
    )


@pytest.mark.parametrize("vocab_size", [1, 2, 7, 1000, 32_000])
@pytest.mark.parametrize("ratio", [0.01, 0.25, 0.5, 0.999])
@pytest.mark.parametrize("key", [0, 1, 15_485_863, 2**40 + 7])
def test_lists_are_the_begin_of_a_permutation_of_torch(vocab_size, ratio, key):
    lists = GreenLists(vocab_size, ratio, key)
    for token_id in {0, vocab_size // 2, vocab_size - 1}:
        generator = torch.Generator().manual_seed(key * token_id % (2**64 - 1))
        expected = torch.randperm(vocab_size, generator=generator)[: lists.size].sort().values
        assert np.flatnonzero(lists.after(token_id)).tolist() == expected.tolist()


def test_a_marked_text_is_detected():
    generator = torch.Generator().manual_seed(0)
    processor, detector = GreenList(), GreenListDetector(VOCAB_SIZE)
    scores = []
    for bias in (0.0, 4.0):
        request = EditRequest({"bias": bias}, History([7]), VOCAB_SIZE)
        processor.start(request)
        for _ in range(60):
            logits = torch.randn(VOCAB_SIZE, generator=generator)
            edits = RowEdits()
            processor.edit(request, edits)
            for _, ids, values in edits:
                logits[ids.tolist()] += torch.from_numpy(values.copy())
            request.history.append(torch.multinomial(logits.softmax(0), 1, generator=generator).item())
        scores.append(detector.detect(request.history.token_ids.tolist()))
    plain, marked = scores
    assert plain.num_tokens_scored == marked.num_tokens_scored == 60
    assert plain.z_score < 3 < marked.z_score
    assert marked.p_value < 1e-6 < plain.p_value
    assert marked.green_fraction > 0.75


def test_repeated_pairs_can_be_counted_once():
    text = [3, 4] * 20
    assert GreenListDetector(VOCAB_SIZE).detect(text).num_tokens_scored == 39
    assert GreenListDetector(VOCAB_SIZE, ignore_repeated_ngrams=True).detect(text).num_tokens_scored == 2


def test_ids_outside_the_vocabulary_are_not_green():
    assert GreenListDetector(VOCAB_SIZE).detect([3, 500, -1]).num_green_tokens == 0


def test_what_a_detector_refuses():
    with pytest.raises(InvalidArgument, match="at least 2"):
        GreenListDetector(VOCAB_SIZE).detect([1])
    for options in ({"greenlist_ratio": 1}, {"hashing_key": -1}, {"hashing_key": 0.5}):
        with pytest.raises(InvalidArgument, match="green_list"):
            GreenListDetector(VOCAB_SIZE, **options)
