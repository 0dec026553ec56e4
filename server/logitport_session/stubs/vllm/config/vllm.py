"""Stub of vLLM's configuration: the part that a logits service knows."""

from __future__ import annotations

from typing import Any


class Part:
    """Some attributes of an object of vLLM. Any other raises an AttributeError that lists those that exist."""

    def __init__(self, path: str, **attributes: Any) -> None:
        self._path = path
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_path" not in vars(self):
            raise AttributeError(name)
        known = ", ".join(sorted(known for known in vars(self) if not known.startswith("_")))
        raise AttributeError(
            f"{self._path}.{name} is not known here: the processor runs in logitport, which knows only {known} "
            f"of {self._path}"
        )


class VllmConfig(Part):
    """The engine's configuration, as far as a session knows it.

    Attributes:
        scheduler_config: has `max_num_seqs`.
        model_config: has `get_vocab_size()`, `hf_config` with `vocab_size` and `eos_token_id`, `logprobs_mode`,
            `trust_remote_code`; and `model` and `tokenizer`, if the engine's tokenizer is known.
        speculative_config: None, as always where vLLM loads such processors.
    """

    def __init__(self, vocab_size: int, max_num_seqs: int, tokenizer: str = "", eos_token_ids: tuple[int, ...] = ()):
        eos = eos_token_ids[0] if len(eos_token_ids) == 1 else list(eos_token_ids) or None
        hf_config = Part("model_config.hf_config", vocab_size=vocab_size, eos_token_id=eos)
        known = {"model": tokenizer, "tokenizer": tokenizer} if tokenizer else {}
        super().__init__(
            "vllm_config",
            scheduler_config=Part("scheduler_config", max_num_seqs=max_num_seqs),
            model_config=Part(
                "model_config",
                get_vocab_size=lambda: vocab_size,
                hf_config=hf_config,
                hf_text_config=hf_config,
                logprobs_mode="raw_logprobs",
                trust_remote_code=False,
                **known,
            ),
            speculative_config=None,
        )
