"""What the hook must know of the SGLang that it runs in."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from logitport.integrations.common.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable

# SGLang's own switch: with the overlap schedule on, sample a batch after the last one's tokens have joined histories.
DELAY_SAMPLE = "SGLANG_ENABLE_DELAY_SAMPLE"

# Why a request is refused that the engine itself would take.
BEAMS = "beam search: SGLang shows processors one beam of each request; ask for n instead"
SEVERAL_ROWS = "a request has several rows, and SGLang does not show which drafts each of them has seen"


def ranks_here() -> Ranks:
    """The ranks that sample with this process. With attention data parallelism they are fewer than all."""
    from sglang.srt.runtime_context import get_parallel

    return Ranks(get_parallel().attn_tp_group)


def unsupported(option: Callable[[str], Any], *, delays_sampling: bool) -> str:
    """Why logitport cannot be right on an engine with these options; "" if it can.

    Args:
        option: the value of one of SGLang's server arguments, by its name.
        delays_sampling: whether SGLANG_ENABLE_DELAY_SAMPLE is on.
    """
    algorithm = option("speculative_algorithm")
    if algorithm is not None:
        return (
            f"--speculative-algorithm {algorithm}: SGLang does not call processors for draft tokens, or does not show "
            "them the drafts; start it without"
        )
    if option("pp_size") > 1:
        return (
            f"--pp-size {option('pp_size')}: only the last pipeline stage sees processors, and a request that it ends "
            "would live on in the others; start it with 1"
        )
    if not option("disable_overlap_schedule") and not delays_sampling:
        return (
            "the overlap schedule shows processors a history that lacks the last token; "
            f"set {DELAY_SAMPLE}=1, or start SGLang with --disable-overlap-schedule"
        )
    return ""


def unsupported_here() -> str:
    """As `unsupported`, of the engine in this process."""
    try:
        from sglang.srt.environ import envs
        from sglang.srt.runtime_context import get_context, get_parallel

        published = get_context().config_leaf

        def option(name: str) -> Any:
            return get_parallel().pp_size if name == "pp_size" else published(name)

        return unsupported(option, delays_sampling=envs.SGLANG_ENABLE_DELAY_SAMPLE.get())
    except Exception as error:  # noqa: BLE001 - another version of SGLang may differ in any way
        return (
            f"the options of {engine_name()} cannot be read ({type(error).__name__}: {error}); 0.5.23 is known to work"
        )


def engine_name() -> str:
    """The engine and its version."""
    try:
        return f"sglang {version('sglang')}"
    except PackageNotFoundError:
        return "sglang"


def model_name() -> str:
    """The model, for people; "" if SGLang does not say."""
    return _published("served_model_name")


def tokenizer_id() -> str:
    """The tokenizer; "" if SGLang does not say."""
    return _published("tokenizer_path")


def _published(name: str) -> str:
    from sglang.srt.runtime_context import get_context

    try:
        return str(get_context().config_leaf(name) or "")
    except (AttributeError, ValueError):
        return ""
