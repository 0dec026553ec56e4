"""The prices of this machine: measured once, and then read from a file."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from logitport.errors import InvalidArgument
from logitport.programs.cost import cache
from logitport.programs.program import OPERATORS_VERSION
from logitport.programs.rules import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport.programs.cost.measurement import Price

_found: dict[str, Prices] = {}
_lock = Lock()


class Prices(NamedTuple):
    """The prices of one device of the runtime.

    Attributes:
        operators, byte, value: see `Measured`.
    """

    operators: Mapping[str, Price]
    byte: float
    value: float


def prices(device: str = "cpu") -> Prices:
    """The prices of a device. The first call in a process reads them from a file, or measures them.

    Measuring takes less than a second. The file is in the folder `logitport` of the user's cache, `$XDG_CACHE_HOME`.
    The numpy interpreter has no prices: it is made to be simple, and no engine runs programs with it.

    Args:
        device: of torch.

    Raises:
        InvalidArgument: torch is not installed.
    """
    with _lock:
        if device not in _found:
            _found[device] = _load_or_measure(device)
        return _found[device]


def _load_or_measure(device: str) -> Prices:
    try:
        import torch
    except ImportError as error:
        raise InvalidArgument("prices are those of torch, which is not installed: pip install torch") from error
    kind = torch.device(device).type
    model = cache.cpu_model() if kind == "cpu" else torch.get_device_module(kind).get_device_name(device)
    path = cache.path_of(str(OPERATORS_VERSION), *OPERATORS, torch.__version__, kind, model)
    measured = cache.load(path)
    if measured is None:
        from logitport.programs.cost.torch_engine import measure_torch

        measured = measure_torch(torch.device(device))
        cache.store(path, measured)
    return Prices(*measured)
