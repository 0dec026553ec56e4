"""Compares built-ins with the logits processors of transformers 5.23: float32 logits, bit for bit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers.generation import logits_process
from transformers.generation.watermarking import WatermarkDetector

import logitport_builtins as ours
from tests.peers.sampling import HISTORIES, VOCAB_SIZE, assert_same, assert_same_values, random_logits, run

# The numbers are exact in float32: transformers computes 1 - p in float64.
PROGRAMS = [
    ("temperature", "TemperatureLogitsWarper", "temperature", "temperature", [0.5, 0.7, 1.0, 3.0]),
    ("top_k", "TopKLogitsWarper", "top_k", "top_k", [1, 2, 50, 1000]),
    ("top_p", "TopPLogitsWarper", "top_p", "top_p", [0.125, 0.5, 0.9375, 1.0]),
    ("min_p", "MinPLogitsWarper", "min_p", "min_p", [0.0, 0.0625, 0.5, 1.0]),
    ("typical_p", "TypicalLogitsWarper", "typical_p", "mass", [0.125, 0.5, 0.75, 0.9375]),
    ("epsilon", "EpsilonLogitsWarper", "epsilon_cutoff", "epsilon", [2**-12, 2**-8, 2**-4, 0.5]),
    ("eta", "EtaLogitsWarper", "eta_cutoff", "epsilon", [2**-12, 2**-8, 2**-4, 0.5]),
    ("repetition_penalty", "RepetitionPenaltyLogitsProcessor", "repetition_penalty", "penalty", [1.2, 2.0, 0.5, 1.0]),
]


def each_row(processor, logits, histories=HISTORIES):
    """Call a processor of transformers for a row after the other, so that histories may differ in length."""
    rows = [
        processor(torch.tensor([prompt + output], dtype=torch.int64), row[None].clone())
        for row, (prompt, output) in zip(logits, histories, strict=True)
    ]
    return torch.cat(rows)


each_program = pytest.mark.parametrize(("name", "their_class", "key", "argument", "numbers"), PROGRAMS)


def check_program(name, their_class, key, argument, numbers, logits, *, compare=assert_same):
    """Compare each row, which has its own number."""
    found = run(name, logits, [{key: number} for number in numbers], HISTORIES)
    for row, number in enumerate(numbers):
        theirs = getattr(logits_process, their_class)(**{argument: number})
        compare(found[row : row + 1], each_row(theirs, logits[row : row + 1], HISTORIES[row : row + 1]))


@pytest.mark.parametrize("seed", range(25))
@each_program
def test_programs(name, their_class, key, argument, numbers, seed):
    compare = assert_same_values if name == "top_p" else assert_same
    for logits in random_logits(4, seed):
        check_program(name, their_class, key, argument, numbers, logits, compare=compare)


@each_program
def test_programs_of_a_large_vocabulary(name, their_class, key, argument, numbers):
    check_program(name, their_class, key, argument, numbers, random_logits(4, 0, vocab_size=50_000)[0])


def test_min_tokens():
    logits = random_logits(4, 0)[0]
    for count in range(6):
        expected = []
        for row, (prompt, output) in enumerate(HISTORIES):
            theirs = logits_process.MinNewTokensLengthLogitsProcessor(len(prompt), count, [3, 8])
            expected.append(each_row(theirs, logits[row : row + 1], [(prompt, output)]))
        found = run("min_tokens", logits, [{"min_tokens": count, "stop_token_ids": [8, 3]}] * 4, HISTORIES)
        assert_same(found, torch.cat(expected))


def test_bad_words():
    generator = torch.Generator().manual_seed(0)
    logits = random_logits(4, 0)[0]
    for _ in range(100):
        words = [torch.randint(0, 4, (1 + n % 4,), generator=generator).tolist() for n in range(6)]
        histories = [tuple(torch.randint(0, 4, (2, 5), generator=generator).tolist()) for _ in range(4)]
        theirs = logits_process.NoBadWordsLogitsProcessor(words)
        found = run("bad_words", logits, [{"bad_words_ids": words}] * 4, histories)
        assert_same(found, each_row(theirs, logits, histories))


def test_logit_bias():
    logits = random_logits(4, 0)[0]
    bias = {1: 2.5, 7: -100.0, 199: 0.1}
    theirs = logits_process.SequenceBiasLogitsProcessor({(token_id,): number for token_id, number in bias.items()})
    assert_same(run("logit_bias", logits, [{"logit_bias": bias}] * 4, HISTORIES), each_row(theirs, logits))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_green_list(dtype):
    for ratio, bias, key in ((0.25, 2.0, 15_485_863), (0.5, -0.75, 2**40 + 3), (0.01, 1.0, 0)):
        theirs = logits_process.WatermarkLogitsProcessor(VOCAB_SIZE, "cpu", ratio, bias, key)
        params = {"greenlist_ratio": ratio, "bias": bias, "hashing_key": key}
        for logits in random_logits(4, 0):
            found = run("green_list", logits.to(dtype), [params] * 4, HISTORIES)
            assert_same(found, each_row(theirs, logits.to(dtype)))


def test_green_list_of_a_padded_vocabulary():
    logits = random_logits(4, 0)[0]
    theirs = logits_process.WatermarkLogitsProcessor(150, "cpu")
    found = run("green_list", logits, [{"vocab_size": 150}] * 4, HISTORIES)
    assert_same(found[:, :150], each_row(theirs, logits[:, :150]))
    assert_same(found[:, 150:], logits[:, 150:])


@pytest.mark.parametrize("once", [False, True])
def test_green_list_detector(once):
    generator = torch.Generator().manual_seed(1)
    config = SimpleNamespace(bos_token_id=-1, is_encoder_decoder=False, vocab_size=VOCAB_SIZE)
    watermark = {"greenlist_ratio": 0.25, "bias": 4.0, "hashing_key": 17, "seeding_scheme": "lefthash"}
    theirs = WatermarkDetector(config, "cpu", {**watermark, "context_width": 1}, ignore_repeated_ngrams=once)
    detector = ours.GreenListDetector(VOCAB_SIZE, hashing_key=17, ignore_repeated_ngrams=once)
    for bias in (0.0, 4.0):
        text = [5]
        for _ in range(80):
            logits = torch.randn(1, VOCAB_SIZE, generator=generator)
            params = {"bias": bias, "hashing_key": 17}
            marked = run("green_list", logits, [params], [([], text)])
            text.append(torch.multinomial(marked.softmax(-1), 1, generator=generator).item())
        expected = theirs(torch.tensor([text]), return_dict=True)
        found = detector.detect(text)
        assert found.num_tokens_scored == expected.num_tokens_scored[0]
        assert found.num_green_tokens == expected.num_green_tokens[0]
        assert found.green_fraction == expected.green_fraction[0]
        assert found.z_score == pytest.approx(expected.z_score[0])
        assert found.p_value == pytest.approx(expected.p_value[0], rel=1e-4, abs=1e-12)
        assert (found.z_score > 3) == (bias > 0)
