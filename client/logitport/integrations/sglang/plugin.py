"""logitport as a plugin of SGLang, which loads it in each of its processes wherever logitport is installed."""

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
    warn_of_misspelt,
)
from logitport.integrations.sglang import admission, guard
from logitport.integrations.sglang.engine import DELAY_SAMPLE, unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

GUARD = "LOGITPORT_SGLANG_GUARD"


def install() -> None:
    """Do nothing, unless LOGITPORT_TARGET is set; then put the guard up, unless LOGITPORT_SGLANG_GUARD is "off".

    SGLang calls it once a process, before it reads its options. It only logs what is raised here, so the guard comes
    first, and what is wrong with the variables is said when the options are checked.
    """
    warn_of_misspelt()
    if not os.environ.get(TARGET):
        return
    guarded = os.environ.get(GUARD) != "off"
    if guarded:
        guard.install()
    _check_at_start(decides_delay=DELAY_SAMPLE not in os.environ)
    # Right everywhere, and slower where nobody needs it: that is told where the options are checked, before the
    # processes start which inherit it. One that inherits nothing, as on another host, delays.
    os.environ.setdefault(DELAY_SAMPLE, "1")
    admission.install(guarded=guarded)


def _check_at_start(*, decides_delay: bool) -> None:
    from sglang.srt.server_args import ServerArgs

    ServerArgs.check_server_args = _checking(ServerArgs.check_server_args, decides_delay=decides_delay)


def _checking(check: Callable[[Any], None], *, decides_delay: bool) -> Callable[[Any], None]:
    @functools.wraps(check)
    def checked(server_args: Any) -> None:
        """Raises InvalidArgument, and SGLang does not start, where logitport could not be right or reached."""
        from sglang.srt.arg_groups.overrides import resolved_view
        from sglang.srt.environ import envs

        check(server_args)
        options = resolved_view(server_args)
        if decides_delay:
            delays = options.enable_custom_logit_processor and not options.disable_overlap_schedule
            os.environ[DELAY_SAMPLE] = "1" if delays else "0"
        if not options.enable_custom_logit_processor:
            if default_chain():
                raise InvalidArgument(f"{DEFAULT_PROCESSORS} wants --enable-custom-logit-processor")
            return
        default_chain()
        client().close()
        reason = unsupported(lambda name: getattr(options, name), delays_sampling=envs.SGLANG_ENABLE_DELAY_SAMPLE.get())
        if reason:
            raise InvalidArgument(f"logitport: {reason}; or unset {TARGET} to serve without logitport")

    return checked
