"""Compares built-ins with the sampling of vLLM 0.33, which computes in float32: bit for bit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.peers.sampling import HISTORIES, VOCAB_SIZE, assert_same, assert_same_values, random_logits, run

SEEDS = pytest.mark.parametrize("seed", range(25))


def updated(processor, params):
    """A batch with one added request for each row."""
    added = [
        (row, SimpleNamespace(**one), prompt, output)
        for row, (one, (prompt, output)) in enumerate(zip(params, HISTORIES, strict=True))
    ]
    processor.update_state(SimpleNamespace(batch_size=len(params), removed=[], moved=[], added=added))
    return processor


def config(vllm_sampling):
    vllm_sampling.builtin.async_tensor_h2d = lambda data, device, dtype: torch.tensor(data, device=device, dtype=dtype)
    return SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=8))


@SEEDS
def test_temperature(vllm_sampling, seed):
    temperatures = [0.5, 0.7, 1.0, 3.0]
    for logits in random_logits(4, seed):
        theirs = vllm_sampling.sampler.Sampler.apply_temperature(logits.clone(), torch.tensor(temperatures), True)
        assert_same(run("temperature", logits, [{"temperature": one} for one in temperatures]), theirs)


def test_temperatures_that_vllm_samples_greedily(vllm_sampling):
    below = vllm_sampling.sampler._SAMPLING_EPS
    for logits in random_logits(4, 0):
        found = run("temperature", logits, [{"temperature": one} for one in (0, 1e-9, below * 0.99, below * 1.01)])
        for row in range(3):
            assert found[row].isfinite().nonzero().flatten().tolist() == [logits[row].argmax().item()]
            assert found[row].amax() == logits[row].amax()
        assert found[3].isfinite().equal(logits[3].isfinite())


@SEEDS
def test_top_k(vllm_sampling, seed):
    ks = [1, 2, 50, VOCAB_SIZE]
    for logits in random_logits(4, seed):
        found = run("top_k", logits, [{"top_k": k} for k in ks])
        by_search = vllm_sampling.topk_topp_sampler.apply_top_k_only(logits.clone(), torch.tensor(ks))
        by_sort = vllm_sampling.topk_topp_sampler.apply_top_k_top_p_pytorch(logits.clone(), torch.tensor(ks), None)
        assert_same(found, by_search)
        assert_same(found, by_sort)


@SEEDS
def test_top_p(vllm_sampling, seed):
    ps = [0.1, 0.5, 0.9, 1.0]
    plain, *others = random_logits(4, seed)
    for logits in (plain, *others):
        found = run("top_p", logits, [{"top_p": p} for p in ps])
        theirs = vllm_sampling.topk_topp_sampler.apply_top_k_top_p_pytorch(logits.clone(), None, torch.tensor(ps))
        (assert_same if logits is plain else assert_same_values)(found, theirs)


@SEEDS
def test_min_p(vllm_sampling, seed):
    params = [{"min_p": p} for p in (0.0, 0.05, 0.5, 1.0)]
    for logits in random_logits(4, seed):
        theirs = vllm_sampling.builtin.MinPLogitsProcessor(config(vllm_sampling), torch.device("cpu"), False)
        assert_same(run("min_p", logits, params), updated(theirs, params).apply(logits.clone()))


@SEEDS
@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_penalties(vllm_sampling, name, seed):
    # The kernel of vLLM's own build is not there; this is what vLLM runs on a CPU.
    vllm_sampling._custom_ops.apply_repetition_penalties = vllm_sampling._custom_ops.apply_repetition_penalties_torch
    numbers = [0.3, 1.7, 0.9, 2.0] if name == "repetition_penalty" else [0.3, -1.7, 0.0, 2.0]
    penalties = {"presence_penalty": [0.0] * 4, "frequency_penalty": [0.0] * 4, "repetition_penalty": [1.0] * 4}
    penalties[name] = numbers
    prompts, outputs = (padded([history[part] for history in HISTORIES]) for part in (0, 1))
    for logits in random_logits(4, seed):
        theirs = vllm_sampling.utils.apply_penalties(
            logits.clone(), prompts, outputs, *(torch.tensor(one) for one in penalties.values())
        )
        found = run(name, logits, [{name: number} for number in numbers], HISTORIES)
        if name == "repetition_penalty":  # vLLM multiplies by 1 / penalty on a CPU, and so rounds twice
            torch.testing.assert_close(found, theirs, rtol=2e-7, atol=0)
        else:
            assert_same(found, theirs)


def padded(histories):
    width = max(len(ids) for ids in histories)
    return torch.tensor([ids + [VOCAB_SIZE] * (width - len(ids)) for ids in histories], dtype=torch.int64)


@SEEDS
def test_logit_bias(vllm_sampling, seed):
    params = [{"logit_bias": bias} for bias in ({1: 2.5}, {}, {7: -100.0, 199: 0.1}, {3: 100})]
    for logits in random_logits(4, seed):
        theirs = vllm_sampling.builtin.LogitBiasLogitsProcessor(config(vllm_sampling), torch.device("cpu"), False)
        assert_same(run("logit_bias", logits, params, HISTORIES), updated(theirs, params).apply(logits.clone()))


@pytest.mark.parametrize("count", range(6))
def test_min_tokens(vllm_sampling, count):
    logits = random_logits(4, 0)[0]
    theirs = vllm_sampling.builtin.MinTokensLogitsProcessor(config(vllm_sampling), torch.device("cpu"), False)
    params = {"min_tokens": count, "stop_token_ids": [8, 3]}
    engine = {"min_tokens": count, "all_stop_token_ids": {8, 3}, "structured_outputs": None}
    expected = updated(theirs, [engine] * 4).apply(logits.clone())
    assert_same(run("min_tokens", logits, [params] * 4, HISTORIES), expected)


def test_bad_words(vllm_sampling):
    generator = torch.Generator().manual_seed(0)
    logits = random_logits(4, 0)[0]
    for _ in range(100):
        words = [torch.randint(0, 4, (1 + n % 4,), generator=generator).tolist() for n in range(6)]
        histories = [
            (torch.randint(0, 4, (5,), generator=generator).tolist(), torch.randint(0, 4, (n,)).tolist())
            for n in range(4)
        ]
        expected = logits.clone()
        outputs = [output for _, output in histories]
        vllm_sampling.bad_words.apply_bad_words(expected, dict.fromkeys(range(4), words), outputs)
        found = run("bad_words", logits, [{"bad_words_ids": words, "generated_only": True}] * 4, histories)
        assert_same(found, expected)
