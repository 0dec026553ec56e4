"""logitport as a plugin of SGLang, which loads it in each of its processes if logitport is installed."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidArgument
from logitport.integrations.common.environment import (
    DEFAULT_PROCESSORS,
    TARGET,
    client,
    default_chain,
    reports,
    warn_about_misspelled,
)
from logitport.integrations.sglang import front_end_patches, guard, meta_info, pipeline, speculation
from logitport.integrations.sglang.engine_options import DELAY_SAMPLE, unsupported

if TYPE_CHECKING:
    from collections.abc import Callable


def install() -> None:
    """Install the guard. Without LOGITPORT_TARGET only check variables' names.

    SGLang calls this once per process, before it parses its options, and only logs an exception. So the guard comes
    first, and invalid variables are reported when the options are checked.
    """
    warn_about_misspelled()
    if not os.environ.get(TARGET):
        return
    guard.install()
    from sglang.srt.server_args import ServerArgs

    ServerArgs.check_server_args = _wrap_check(
        ServerArgs.check_server_args, decides_delay=DELAY_SAMPLE not in os.environ
    )
    # Delayed sampling is always correct, but slower where no processor needs it. The option check turns it off there,
    # before the child processes that inherit it start. A process that inherits nothing (on another host) delays.
    os.environ.setdefault(DELAY_SAMPLE, "1")
    front_end_patches.install()
    pipeline.install()
    speculation.install()
    if reports():
        meta_info.install()


def _wrap_check(check: Callable[[Any], None], *, decides_delay: bool) -> Callable[[Any], None]:
    @functools.wraps(check)
    def wrapped(server_args: Any) -> None:
        """Check the options. Raises InvalidArgument, which stops SGLang, if logitport would be wrong or unreachable."""
        from sglang.srt.arg_groups.overrides import resolved_view
        from sglang.srt.environ import envs

        check(server_args)
        options = resolved_view(server_args)
        if decides_delay:
            delays = options.enable_custom_logit_processor and not options.disable_overlap_schedule
            os.environ[DELAY_SAMPLE] = "1" if delays else "0"
        if not options.enable_custom_logit_processor:
            if default_chain():
                raise InvalidArgument(f"{DEFAULT_PROCESSORS} needs --enable-custom-logit-processor")
            return
        default_chain()
        reports()
        client().close()
        reason = unsupported(
            lambda name: getattr(options, name),
            delays_sampling=envs.SGLANG_ENABLE_DELAY_SAMPLE.get(),
            has_plugin=True,
            verifies=True,  # by the hook in the scheduler's process
        )
        if reason:
            raise InvalidArgument(f"logitport: {reason}; or unset {TARGET} to serve without logitport")

    return wrapped
