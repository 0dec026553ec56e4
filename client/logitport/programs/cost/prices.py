"""The prices of this machine: measured once, and then read from a file."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from logitport.errors import InvalidArgument
from logitport.programs.cost import cache
from logitport.programs.cost.measurement import Price
from logitport.programs.cost.operands import keys
from logitport.programs.cost.work import FILLED, SORTS, key_of
from logitport.programs.program import OPERATORS_VERSION
from logitport.programs.rules import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Mapping

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


NUMPY = "numpy"

# For 151,936 elements on one core, numpy needed 11 to 14 ns an element for `softmax` and `cumsum`, and 65 ns for `exp`
# with subnormal results. Measuring it would delay engines without torch.
_UNIT_NS, _SORTED_NS, _CALL_NS = 50.0, 500.0, 50_000.0
ASSUMED = Prices(
    {
        key: Price(_SORTED_NS if operator in SORTS and plain else _UNIT_NS, _CALL_NS)
        for key, operator, _, plain in keys()
    }
    | {key_of(operator, (), plain=True): Price(_UNIT_NS, _CALL_NS) for operator in FILLED},
    byte=1.0,
    value=_CALL_NS,
)


def prices(device: str = "cpu") -> Prices:
    """The prices of a device. The first call in a process reads them from a file, or measures them.

    Measuring takes about a second of one core. The file is in the folder `logitport` of the user's cache,
    `$XDG_CACHE_HOME`. The prices of the numpy interpreter are assumed.

    Args:
        device: of torch; or `NUMPY`.

    Raises:
        InvalidArgument: torch is not installed.
    """
    if device == NUMPY:
        return ASSUMED
    with _lock:
        if device not in _found:
            _found[device] = _load_or_measure(device)
        return _found[device]


def known_prices(device: str) -> Prices:
    """The prices of a device if they are known, else `ASSUMED`, which are higher. Returns at once."""
    return _found.get(device, ASSUMED)


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
