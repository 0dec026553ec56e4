"""Reads the options of the SGLang that the hook runs in, and names those that are unsupported."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from logitport.integrations.common.ranks import Ranks
from logitport.integrations.sglang import speculation
from logitport.integrations.sglang.requests import plugin_installed

if TYPE_CHECKING:
    from collections.abc import Callable

# SGLang's own switch: with the overlap schedule on, sample a batch only after the last one's ids joined the histories.
DELAY_SAMPLE = "SGLANG_ENABLE_DELAY_SAMPLE"

# With these values of --speculative-algorithm, SGLang calls processors before its grammars.
BLOCK_ALGORITHMS = ("DFLASH", "DSPARK")
# The plugin patches the verification of these.
_PATCHED_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "NGRAM", "STANDALONE", *BLOCK_ALGORITHMS)

# Reasons to refuse a request that SGLang itself accepts.
BEAMS = "beam search: SGLang passes processors only one beam of each request; use n instead"
SEVERAL_ROWS = "a request has several rows, and SGLang does not pass the draft tokens that precede each"


def ranks_here() -> Ranks:
    """Return the ranks that sample with this process; fewer than all with attention data parallelism."""
    from sglang.srt.runtime_context import get_parallel

    return Ranks(get_parallel().attn_tp_group)


def unsupported(option: Callable[[str], Any], *, delays_sampling: bool, has_plugin: bool, verifies: bool) -> str:
    """Return why logitport gives wrong results on an engine with these options; "" if it does not.

    Args:
        option: returns one of SGLang's server arguments by name.
        delays_sampling: whether SGLANG_ENABLE_DELAY_SAMPLE is on.
        has_plugin: whether logitport is also a plugin of this SGLang.
        verifies: whether processors run where SGLang verifies drafts, see `speculation`.
    """
    algorithm = option("speculative_algorithm")
    if algorithm is not None and not (verifies and algorithm in _PATCHED_ALGORITHMS):
        return (
            f"--speculative-algorithm {algorithm}: SGLang does not call processors for draft tokens, or does not pass "
            f"them the drafts; start SGLang without it, or with logitport's plugin and one of "
            f"{', '.join(_PATCHED_ALGORITHMS)}"
        )
    overlaps = not option("disable_overlap_schedule")
    if algorithm is not None and overlaps and option("disaggregation_mode") == "prefill":
        return (
            f"--speculative-algorithm {algorithm} with the overlap schedule in a prefill engine: SGLang samples the "
            "last chunk of a prompt before it has processed the one before it; start it with --disable-overlap-schedule"
        )
    if option("pp_size") > 1 and not has_plugin:
        return (
            f"--pp-size {option('pp_size')}: only the last pipeline stage runs processors, and without the plugin a "
            "request that it ends continues in the other stages; set LOGITPORT_TARGET before SGLang starts, in all of "
            "its processes"
        )
    if algorithm is None and overlaps and not delays_sampling:
        return (
            "the overlap schedule passes processors a history without the last token; "
            f"set {DELAY_SAMPLE}=1, or start SGLang with --disable-overlap-schedule"
        )
    return ""


def unsupported_here() -> str:
    """Return the same for the engine in this process."""
    try:
        from sglang.srt.environ import envs
        from sglang.srt.runtime_context import get_context, get_parallel

        published = get_context().config_leaf

        def option(name: str) -> Any:
            return get_parallel().pp_size if name == "pp_size" else published(name)

        return unsupported(
            option,
            delays_sampling=envs.SGLANG_ENABLE_DELAY_SAMPLE.get(),
            has_plugin=plugin_installed.is_set(),
            verifies=speculation.installed(),
        )
    except Exception as error:  # noqa: BLE001 - another version of SGLang may differ in any way
        return (
            f"the options of {engine_name()} cannot be read ({type(error).__name__}: {error}); 0.5.23 is known to work"
        )


def engine_name() -> str:
    """Return the engine and its version."""
    try:
        return f"sglang {version('sglang')}"
    except PackageNotFoundError:
        return "sglang"


def published_names() -> dict[str, str]:
    """Return the options of a session that name the model and its tokenizer; "" for what SGLang does not publish."""
    return {"model_name": _published("served_model_name"), "tokenizer_id": _published("tokenizer_path")}


def max_draft_tokens() -> int:
    """Return how many draft tokens of a request SGLang verifies in one step; 0 without speculation.

    With adaptive drafts, the published number changes with the load, so the largest one is taken.
    """
    if _published("speculative_adaptive") == str(True):
        from sglang.srt.speculative.adaptive_spec_params import resolve_candidate_steps_from_config

        steps: list[int] = resolve_candidate_steps_from_config(_published("speculative_adaptive_config") or None)
        return max(steps)
    return max(0, int(_published("speculative_num_draft_tokens") or 0) - 1)  # SGLang counts the last sampled id, too


def is_disaggregated() -> bool:
    """Return whether this SGLang only reads prompts, or only continues them."""
    return _published("disaggregation_mode") in ("prefill", "decode")


def _published(name: str) -> str:
    from sglang.srt.runtime_context import get_context

    try:
        return str(get_context().config_leaf(name) or "")
    except (AttributeError, ValueError):
        return ""
