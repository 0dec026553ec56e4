"""Where a processor's code has made an edit. An invalid edit is found after the call, when its frames are gone."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from types import CodeType

_OUR_PACKAGES = ("logitport", "logitport_builtins", "logitport_server")

# A function, the offset of an instruction in its bytecode, and the globals of its module. No frame, which would keep
# the variables of the call; and a tuple, because it is made at each edit.
CallSite: TypeAlias = "tuple[CodeType, int, dict[str, Any]]"


def call_site() -> CallSite:
    """The place that called the caller of this function."""
    frame = sys._getframe(2)
    return frame.f_code, frame.f_lasti, frame.f_globals


def traceback_at(site: CallSite, error: BaseException) -> str:
    """Format as the traceback of an error that was raised there; "" if the code is logitport's own."""
    code, instruction, module = site
    if str(module.get("__package__") or "").partition(".")[0] in _OUR_PACKAGES:
        return ""
    lines = (line for begin, end, line in code.co_lines() if line is not None and begin <= instruction < end)
    frame = traceback.FrameSummary(code.co_filename, next(lines, code.co_firstlineno), code.co_name)
    stack = traceback.StackSummary.from_list([frame]).format()
    raised = traceback.format_exception_only(type(error), error)
    return "".join(["Traceback (most recent call last):\n", *stack, *raised])
