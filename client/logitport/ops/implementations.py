"""The class that applies edits in this process: logitport's own, or an installed package's."""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from logitport.core import tensors
from logitport.errors import InvalidArgument, PayloadError
from logitport.ops.apply_edits import PLATFORMS, ApplyEdits, platform_of

if TYPE_CHECKING:
    from logitport.core.edits import Edits

VARIABLE = "LOGITPORT_CUSTOM_OPS"
PLUGINS = "logitport.plugins"  # entry point group; each entry is a module that calls `register_oot`

_ClassT = TypeVar("_ClassT", bound=type[ApplyEdits])
_replacement: type[ApplyEdits] | None = None
# None until edits are applied first, or `configure` or `check_variable` is called.
_custom_ops: str | None = None


def apply_edits(edits: Edits, logits: Any) -> None:
    """Apply edits to logits, in place, with the implementation of the platform that holds the logits.

    Rows without an edit, and values that an edit keeps, stay bit-identical. All BIAS values of one id are summed, added
    in float32, and rounded once to the logits' dtype. Every platform therefore gives the same bits.

    Args:
        edits: edits that `Edits.check` has accepted for these logits; they are not checked again.
        logits: float32, float16 or bfloat16 [rows, vocab_size], a torch tensor on any device or a numpy array, with
            any strides. Ids past the words of a BITMASK are denied.

    Raises:
        InvalidArgument: another dtype, a read-only array, or a gradient is required (`tensors.check_gradient`).
        PayloadError: at the first call, a plugin cannot be imported.
    """
    tensors.check_gradient(logits)
    current()(edits, logits)


@cache
def current() -> ApplyEdits:
    """Return what applies edits in this process. Raises the errors of `check_variable`."""
    if _custom_ops is None:
        check_variable()
    return (_replacement or ApplyEdits)(with_kernels=_custom_ops == "all")


def configure(custom_ops: str | None = None) -> None:
    """Choose the implementations of this process again. Raises the errors of `check_variable`.

    Args:
        custom_ops: "all" for the kernel of each platform, "none" for native PyTorch; None for LOGITPORT_CUSTOM_OPS,
            which is "all" by default.
    """
    global _custom_ops  # noqa: PLW0603 - one choice for each process
    _custom_ops = _read(custom_ops)
    current.cache_clear()


def check_variable() -> None:
    """Check LOGITPORT_CUSTOM_OPS, and apply it unless this process is configured.

    Raises:
        InvalidArgument: it is neither "all" nor "none".
        PayloadError: a plugin cannot be imported.
    """
    global _custom_ops  # noqa: PLW0603 - one choice for each process
    custom_ops = _read(None)
    _custom_ops = _custom_ops or custom_ops


def _read(custom_ops: str | None) -> str:
    _load_plugins()
    given = os.environ.get(VARIABLE) or "all" if custom_ops is None else custom_ops
    if given not in ("all", "none"):
        raise InvalidArgument(f"{VARIABLE} is {given!r}; set it to 'all' or 'none'")
    return given


@cache
def _load_plugins() -> None:
    for plugin in entry_points(group=PLUGINS):
        try:
            plugin.load()
        except Exception as error:
            raise PayloadError(f"plugin {plugin.name!r} ({plugin.value}) could not be imported: {error!r}") from error


def register_oot(replacement: _ClassT) -> _ClassT:
    """Decorate a class to apply edits with it in this process (oot: out of tree).

    Raises:
        InvalidArgument: it does not derive from ApplyEdits, or there is a replacement already.
    """
    global _replacement  # noqa: PLW0603 - one for each process
    if not issubclass(replacement, ApplyEdits):
        raise InvalidArgument(f"{replacement.__qualname__} cannot apply edits: derive it from ApplyEdits")
    if _replacement is not None:
        raise InvalidArgument(f"ApplyEdits is replaced already, by {_full_name(_replacement)}")
    _replacement = replacement
    current.cache_clear()
    return replacement


class Implementation(NamedTuple):
    """The method that runs on a platform of this machine, and the reason."""

    platform: str
    method: str
    why: str


def list_implementations() -> list[Implementation]:
    """List what runs here. Imports torch, if it is installed, to find this machine's platforms."""
    found = []
    for platform in filter(_platforms_here().__contains__, PLATFORMS):
        implementation, why = current().choose(platform)
        method = f"{_full_name(type(current()))}.forward_{implementation}"
        found.append(Implementation(platform, method, why))
    return found


def _full_name(member: type[Any]) -> str:
    return f"{member.__module__}.{member.__qualname__}"


def _platforms_here() -> set[str]:
    if find_spec("torch") is None:
        return {"cpu"}
    import torch

    out_of_tree = getattr(torch, torch._C._get_privateuse1_backend_name(), None)
    backends = {"cpu": torch.cpu, platform_of("cuda"): torch.cuda, "xpu": torch.xpu, "oot": out_of_tree}
    here = {platform for platform, backend in backends.items() if backend is not None and backend.is_available()}
    return here | {"tpu"} if find_spec("torch_xla") is not None else here
