"""Ops on logits, and the choice of the implementation that runs on each platform.

Ops are looked up by name. An installed package can replace them.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from logitport.errors import InvalidArgument, PayloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

VARIABLE = "LOGITPORT_CUSTOM_OPS"
PLUGINS = "logitport.plugins"  # entry point group; each entry is a module that registers or replaces ops

# NVIDIA's GPUs are "cuda", AMD's "hip", Intel's "xpu"; devices whose torch backend is out of tree are "oot".
PLATFORMS = ("cpu", "cuda", "hip", "xpu", "tpu", "oot")


@dataclass(frozen=True)
class OpsConfig:
    """The operator's choice between the kernels of each platform and native PyTorch. Raises InvalidArgument.

    Attributes:
        custom_ops: at most one base, "all" or "none", and "+op" or "-op" for single ops. The default base is "all",
            or "none" with `compile_native`: inductor fuses PyTorch code, and cannot fuse custom kernels.
        compile_native: compile native implementations with inductor.
    """

    custom_ops: tuple[str, ...] = ()
    compile_native: bool = False

    def __post_init__(self) -> None:
        shown = f"custom_ops {list(self.custom_ops)}"
        for entry in self.custom_ops:
            if not re.fullmatch("all|none|[+-].+", entry):
                raise InvalidArgument(f"{shown}: {entry!r} is none of 'all', 'none', '+op' and '-op'")
            if entry[0] == "+" and f"-{entry[1:]}" in self.custom_ops:
                raise InvalidArgument(f"{shown} both enables and disables {entry[1:]!r}; keep one sign")
        if self.custom_ops.count("all") + self.custom_ops.count("none") > 1:
            raise InvalidArgument(f"{shown} has 'all' or 'none' more than once; keep one of them")

    def decide(self, op: str) -> tuple[bool, str]:
        """Return whether an op runs the kernel of its platform, and the reason."""
        for entry, enabled in ((f"+{op}", True), (f"-{op}", False), ("all", True), ("none", False)):
            if entry in self.custom_ops:
                return enabled, f"custom_ops has {entry}"
        if self.compile_native:
            return False, "native code is compiled, so custom_ops is none"
        return True, "custom_ops is all by default"


_Op = TypeVar("_Op", bound="type[LogitOp]")

_ops: dict[str, type[LogitOp]] = {}
_replacements: dict[str, type[LogitOp]] = {}

# None until the first op is created, or `configure` or `check_variable` is called.
_config: OpsConfig | None = None


def configure(custom_ops: Sequence[str] | None = None, *, compile_native: bool = False) -> None:
    """Set the `OpsConfig` of this process; every op chooses again. Raises InvalidArgument, PayloadError.

    Args:
        custom_ops: see `OpsConfig`; None for LOGITPORT_CUSTOM_OPS, its entries separated by commas.
        compile_native: see `OpsConfig`.
    """
    global _config  # noqa: PLW0603 - one configuration for each process
    _config = _read_config(custom_ops, compile_native=compile_native)
    LogitOp.get.cache_clear()


def check_variable() -> None:
    """Check LOGITPORT_CUSTOM_OPS, and apply it unless this process is configured.

    Raises:
        InvalidArgument: the variable is invalid.
        PayloadError: a plugin cannot be imported.
    """
    global _config  # noqa: PLW0603 - one configuration for each process
    config = _read_config(None)
    _config = _config or config


def _read_config(custom_ops: Sequence[str] | None, *, compile_native: bool = False) -> OpsConfig:
    load_plugins()  # a plugin may register an op that `custom_ops` names
    prefix = ""
    if custom_ops is None:
        value, prefix = os.environ.get(VARIABLE, ""), f"{VARIABLE}: "
        custom_ops = [entry.strip() for entry in value.split(",")] if value else []
    try:
        config = OpsConfig(tuple(custom_ops), compile_native)
    except InvalidArgument as error:
        raise InvalidArgument(f"{prefix}{error.message}") from None
    if unknown := sorted({entry[1:] for entry in custom_ops if entry[0] in "+-"} - set(LogitOp.names())):
        raise InvalidArgument(f"{prefix}custom_ops names {unknown}; the ops are: {', '.join(LogitOp.names())}")
    return config


class LogitOp(ABC):
    """One operation on logits. The device of its last argument, a torch tensor or numpy array, selects the method.

    Register a subclass with `@LogitOp.register("name")` and call `LogitOp.get("name")`. Implement `forward_native`
    in plain PyTorch, and `forward_<platform>` where one of `PLATFORMS` can do better. A wrong name raises
    InvalidArgument.

    Attributes:
        name: set by registration.
        requires: the package that a platform's implementation needs; without it the native one runs.
        compiled: takes a function of tensors, and compiles it with inductor if it is configured so.
    """

    name: ClassVar[str] = ""
    requires: ClassVar[Mapping[str, str]] = {}

    def __init__(self) -> None:
        if _config is None:
            check_variable()
        config = _config or OpsConfig()
        self._enabled, self._reason = config.decide(self.name)
        self._methods: dict[Any, Callable[..., Any]] = {}  # by device
        self.compiled: Callable[[Any], Any] = cache(_compile) if config.compile_native else lambda kernel: kernel

    def __call__(self, *args: Any) -> Any:
        """Run the implementation of the device that has the last argument, the logits."""
        device = _device_of(args[-1])
        if device not in self._methods:
            implementation, _ = self.choose(platform_of(device))
            self._methods[device] = getattr(self, f"forward_{implementation}")
        return self._methods[device](*args)

    def choose(self, platform: str) -> tuple[str, str]:
        """Return the implementation that runs on a platform ("cuda", "native", …), and the reason."""
        if not self._enabled:
            return "native", self._reason
        candidates = ("hip", "cuda") if platform == "hip" else (platform,)
        implementation = next((one for one in candidates if hasattr(self, f"forward_{one}")), "native")
        package = self.requires.get(implementation)
        if package is not None and find_spec(package) is None:
            return "native", f"{package} is not installed"
        fallback = "" if implementation == platform else f"; no implementation for {platform}"
        return implementation, self._reason + fallback

    @classmethod
    @cache
    def get(cls, name: str) -> Any:
        """Return the single instance of an op or of its replacement. Raises PayloadError for a broken plugin."""
        load_plugins()
        cls._check_registered(name)
        return _replacements.get(name, _ops[name])()

    @classmethod
    def names(cls) -> list[str]:
        """Return the registered names, sorted."""
        return sorted(_ops)

    @classmethod
    def register(cls, name: str) -> Callable[[_Op], _Op]:
        """Decorate a class to register it."""
        if name in _ops:
            raise InvalidArgument(f"LogitOp {name!r} is registered already; to replace it, use register_oot")
        return cls._enter(_ops, name)

    @classmethod
    def register_oot(cls, name: str) -> Callable[[_Op], _Op]:
        """Decorate a class to replace the registered one (oot: out of tree)."""
        cls._check_registered(name)
        if name in _replacements:
            raise InvalidArgument(f"{name!r} is replaced already, by {_full_name(_replacements[name])}")
        return cls._enter(_replacements, name)

    @classmethod
    def _enter(cls, table: dict[str, type[LogitOp]], name: str) -> Callable[[_Op], _Op]:
        def decorate(member: _Op) -> _Op:
            if not issubclass(member, LogitOp):
                raise InvalidArgument(f"{member.__qualname__} cannot be {name!r}: derive it from LogitOp")
            table[name], member.name = member, name
            cls.get.cache_clear()
            return member

        return decorate

    @classmethod
    def _check_registered(cls, name: str) -> None:
        if name not in _ops:
            raise InvalidArgument(f"no LogitOp is named {name!r}; there are: {', '.join(cls.names()) or 'none'}")

    @abstractmethod
    def forward_native(self, *args: Any) -> Any:
        """Run in plain PyTorch, on any device."""


class OpRow(NamedTuple):
    """A line of the table: the method that runs an op on a platform, if this machine has the platform (active)."""

    op: str
    platform: str
    implementation: str
    active: bool
    why: str


def list_ops() -> list[OpRow]:
    """List every op on every platform. Imports torch, if it is installed, to find this machine's platforms."""
    load_plugins()
    here = _platforms_here()
    rows = []
    for op in map(LogitOp.get, LogitOp.names()):
        for platform in PLATFORMS:
            implementation, why = op.choose(platform)
            method = f"{_full_name(type(op))}.forward_{implementation}"
            absent = "" if platform in here else f"; no {platform} device here"
            rows.append(OpRow(op.name, platform, method, platform in here, why + absent))
    return rows


@cache
def load_plugins() -> None:
    """Import the installed plugins, once. Raises PayloadError if one cannot be imported."""
    for plugin in entry_points(group=PLUGINS):
        try:
            plugin.load()
        except Exception as error:
            raise PayloadError(f"plugin {plugin.name!r} ({plugin.value}) could not be imported: {error!r}") from error


def platform_of(device: Any) -> str:
    """Return the platform of a torch.device, or of its name."""
    kind = str(device).partition(":")[0]
    if kind == "cuda":  # torch's name for AMD's GPUs too
        import torch

        return "hip" if torch.version.hip else "cuda"
    return {"cpu": "cpu", "xpu": "xpu", "xla": "tpu"}.get(kind, "oot")


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


def _device_of(logits: Any) -> Any:
    device = "cpu" if isinstance(logits, np.ndarray) else getattr(logits, "device", None)
    if device is None:
        raise InvalidArgument(f"logits are a {type(logits).__name__}; pass a torch tensor or a numpy array")
    return device


def _compile(kernel: Any) -> Any:
    import torch

    return torch.compile(kernel, dynamic=True)
