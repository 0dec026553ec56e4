"""Tags of known models."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from logitport.phases.phase_tags import harmony_tags, thinking_tags

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport.phases.phase_tags import PhaseTags

# Start tag, end tag, and the newline before an end tag that is forced.
# Source of the ids: sglang/srt/sampling/custom_logit_processor.py, SGLang 0.5.23.
THINKING_PRESETS: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {
        "qwen3": (151667, 151668, 198),
        "deepseek_r1": (128798, 128799, 201),
        "glm4_moe": (151350, 151351, 198),
        "inkling": (200008, 200010, 198),
    }
)

# gpt-oss: <|channel|>, <|message|>; analysis, final, commentary; <|end|>, <|return|>, <|call|>. Source: the vocabulary
# o200k_harmony of openai-harmony.
_HARMONY = harmony_tags(200005, 200008, [[35644], [17196], [12606, 815]], [200007, 200002, 200012])

_THINKING = {name: thinking_tags([start], [end], newline) for name, (start, end, newline) in THINKING_PRESETS.items()}
PHASE_PRESETS: Mapping[str, PhaseTags] = MappingProxyType(
    {
        **_THINKING,
        "qwen3": _THINKING["qwen3"].with_tool_call([151657], [151658]),  # as in Qwen3's tokenizer_config.json
        "harmony": _HARMONY,
    }
)
