"""logitport as a plugin of vLLM, which loads it before it reads the configuration of an engine.

vLLM imports the classes of `--logits-processors` later: with the first runner in the engine's process, and in the
front end at the first request. An error there appears after a minute, among the messages of several processes.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from logitport.integrations.common import environment

if TYPE_CHECKING:
    from collections.abc import Callable

_PACKAGE = __name__.rpartition(".")[0]


def install() -> None:
    """Check the environment variables of an engine with logitport's class before vLLM starts its processes.

    vLLM calls this in each of its processes, in some of them more than once. Does nothing in processes that read no
    engine arguments.
    """
    arguments = getattr(sys.modules.get("vllm.engine.arg_utils"), "EngineArgs", None)
    if arguments is not None and not hasattr(arguments.create_engine_config, "__wrapped__"):
        arguments.create_engine_config = _wrap(arguments.create_engine_config)


def _wrap(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def wrapped(arguments: Any, *args: Any, **keywords: Any) -> Any:
        """Check the variables. Raises InvalidArgument, which end vLLM."""
        if any(_is_ours(processor) for processor in arguments.logits_processors or ()):
            environment.warn_about_misspelled()
            environment.default_chain()
            environment.reports()
            environment.check_target()
        return create(arguments, *args, **keywords)

    return wrapped


def _is_ours(processor: str | type) -> bool:
    name = processor if isinstance(processor, str) else processor.__module__
    return name.partition(":")[0].startswith(_PACKAGE)
