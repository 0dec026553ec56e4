"""SGLang's own sampler, from three of its files: `Sampler`, `SamplingBatchInfo` and the custom logit processors.

What these files import from the rest of SGLang is replaced: by values where their code reads them, by mocks elsewhere.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from benchmarks.peer_files import folder_of

_PROCESSORS = "sglang.srt.sampling.custom_logit_processor"
_BATCH = "sglang.srt.sampling.sampling_batch_info"
_SAMPLER = "sglang.srt.layers.sampler"
_PROBE = "sglang.srt.utils.async_probe"
_ENVIRONMENT = "sglang.srt.environ"


class Req:
    """The part of SGLang's `Req` that processors and the hook read."""

    def __init__(self, rid: str, prompt: Sequence[int]) -> None:
        self.rid = rid
        self.origin_input_ids = self.origin_input_ids_unpadded = array("q", prompt)
        self.output_ids = array("q")
        self.eos_token_ids: set[int] = set()
        self.inflight_middle_chunks = 0
        self.beam_group = None
        self.to_finish: Any = None

    def finished(self) -> bool:
        """It never ends here."""
        return False


class SGLangSampling:
    """SGLang's sampler, greedy, without logprobs.

    Attributes:
        processors: SGLang's module of custom logit processors.
    """

    def __init__(self) -> None:
        """Import SGLang's files. Raises Missing."""
        from tests.peers.partial_package import PartialPackage

        folder = folder_of("LOGITPORT_SGLANG")
        modules = [_ENVIRONMENT, _PROBE, _PROCESSORS, _BATCH, _SAMPLER]
        sys.modules.update(_replaced())
        # It stays for the rest of the process: functions of SGLang import more when they are called.
        finder = PartialPackage(folder, "sglang", modules)
        self._imported = finder.imported()
        found = next(self._imported)
        self.processors = found[_PROCESSORS]
        self._batch, self._sampler = found[_BATCH], found[_SAMPLER]

    def sampler(self) -> Any:
        """Create SGLang's `Sampler`."""
        return self._sampler.Sampler()

    def batch(
        self, entries: Sequence[tuple[Any, Sequence[int]]], params: Sequence[Any], vocab_size: int, device: str
    ) -> Any:
        """Create a `SamplingBatchInfo` of greedy rows.

        Args:
            entries: processors, each with its rows.
            params: the custom parameters of each row.
            vocab_size: width of the logits.
            device: of the logits.
        """
        rows = len(params)
        ones = torch.ones(rows, device=device)
        return self._batch.SamplingBatchInfo(
            temperatures=ones[:, None],
            top_ps=ones,
            top_ks=ones.int(),
            min_ps=torch.zeros(rows, device=device),
            is_all_greedy=True,
            is_any_greedy=True,
            need_top_p_sampling=False,
            need_top_k_sampling=False,
            need_min_p_sampling=False,
            vocab_size=vocab_size,
            has_custom_logit_processor=True,
            custom_params=list(params),
            custom_logit_processor={
                number: self._batch.ProcessorEntry(processor, list(chosen), torch.tensor(chosen, device=device))
                for number, (processor, chosen) in enumerate(entries)
            },
            device=device,
        )


def sample(sampler: Any, batch: Any, logits: torch.Tensor) -> torch.Tensor:
    """Run `Sampler.forward`, which changes the logits. Returns the ids, int64[rows]."""
    output = SimpleNamespace(next_token_logits=logits)
    ids: torch.Tensor = sampler(output, batch, False, [], [], torch.zeros(len(logits), device=logits.device))
    return ids


def _replaced() -> dict[str, ModuleType]:
    """Modules by name, with what the imported files compute with."""
    platform = {f"is_{name}": _no for name in ("cuda", "hip", "musa", "npu", "xpu", "gfx1250_supported")}
    deterministic = SimpleNamespace(rl_on_policy_target=None, enable_deterministic_inference=False)
    execution = SimpleNamespace(
        deterministic=deterministic,
        kernel=SimpleNamespace(sampling_backend="pytorch"),
        features=SimpleNamespace(sampling_mask_max_tokens=0),
    )
    parallel = SimpleNamespace(tp_group=SimpleNamespace(device_group=None))
    context = SimpleNamespace(config_leaf=lambda _: "")
    return {
        "sglang.srt.utils.common": _module(
            "sglang.srt.utils.common", get_bool_env_var=_no, is_pin_memory_available=_pins, **platform
        ),
        "sglang.srt.layers.dp_attention": _module("sglang.srt.layers.dp_attention", is_dp_attention_enabled=_no),
        "sglang.srt.runtime_context": _module(
            "sglang.srt.runtime_context",
            get_context=lambda: context,
            get_exec=lambda: execution,
            get_parallel=lambda: parallel,
            get_server_args=None,
        ),
    }


def _module(name: str, **attributes: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(attributes)
    return module


def _no(*_: Any, **__: Any) -> bool:
    return False


def _pins(*_: Any) -> bool:
    return torch.cuda.is_available()
