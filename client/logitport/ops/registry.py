"""Ops: one operation on logits, with an implementation for each platform."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from logitport.errors import InvalidArgument
from logitport.ops.config import OpsConfig
from logitport.ops.platforms import PLATFORMS, device_of, platform_of, present
from logitport.ops.pluggable import Pluggable, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_Kernel = TypeVar("_Kernel", bound="Callable[..., Any]")

# Where a platform has no implementation of its own, it takes that of another.
_FALLBACKS = {"hip": "cuda", "cpu": "native", "cuda": "native", "xpu": "native", "tpu": "native", "oot": "native"}

_config = OpsConfig()


def configure(custom_ops: Sequence[str] = (), *, compile_native: bool = False) -> None:
    """Choose, for this process, which ops run the kernel of their platform; see `OpsConfig`.

    Call it after the modules that register ops were imported. It may be called again: ops choose anew.

    Raises:
        InvalidArgument: as `OpsConfig`, or there is no op of that name.
    """
    global _config  # noqa: PLW0603 - one process, one configuration
    config = OpsConfig(tuple(custom_ops), compile_native)
    if unknown := sorted(config.names - set(LogitOp.names())):
        raise InvalidArgument(f"custom_ops names {unknown}; the ops are: {', '.join(LogitOp.names())}")
    _config = config
    LogitOp.forget_instances()


class LogitOp(Pluggable, ABC):
    """One operation on logits. The device of its last argument, a torch tensor or numpy array, decides what runs.

    Register a subclass with `@LogitOp.register("name")` and use `LogitOp.get("name")`. Implement `forward_native`
    in plain PyTorch, and `forward_<platform>` where a platform can do better.

    Args:
        enforce_enable: run the platform's kernel, whatever the configuration says.

    Attributes:
        requires: the package without which a platform's implementation cannot run, and native runs instead.
    """

    requires: ClassVar[Mapping[str, str]] = {}

    def __init__(self, *, enforce_enable: bool = False) -> None:
        self._compile_native = _config.compile_native
        self._enabled, self._reason = (True, "enforced") if enforce_enable else _config.decide(self.name)
        self._methods: dict[Any, Callable[..., Any]] = {}
        self._compiled: dict[Callable[..., Any], Callable[..., Any]] = {}

    def __call__(self, *args: Any) -> Any:
        """Run it; the last argument is the logits."""
        device = device_of(args[-1])
        method = self._methods.get(device)
        if method is None:
            implementation, _ = self.choose(platform_of(device))
            method = self._methods[device] = getattr(self, f"forward_{implementation}")
        return method(*args)

    @abstractmethod
    def forward_native(self, *args: Any) -> Any:
        """In PyTorch, on any device."""

    def forward_cpu(self, *args: Any) -> Any:
        """On CPU, torch tensors and numpy arrays."""
        return self.forward_native(*args)

    def forward_cuda(self, *args: Any) -> Any:
        """On NVIDIA's GPUs."""
        return self.forward_native(*args)

    def forward_hip(self, *args: Any) -> Any:
        """On AMD's GPUs."""
        return self.forward_cuda(*args)

    def forward_xpu(self, *args: Any) -> Any:
        """On Intel's GPUs."""
        return self.forward_native(*args)

    def forward_tpu(self, *args: Any) -> Any:
        """On TPUs."""
        return self.forward_native(*args)

    def forward_oot(self, *args: Any) -> Any:
        """On a device that torch knows out of tree."""
        return self.forward_native(*args)

    def choose(self, platform: str) -> tuple[str, str]:
        """Which implementation runs on a platform ("cuda", "native", …), and why."""
        if not self._enabled:
            return "native", self._reason
        implementation = platform
        while implementation != "native" and not self._implements(implementation):
            implementation = _FALLBACKS[implementation]
        package = self.requires.get(implementation)
        if package is not None and find_spec(package) is None:
            return "native", f"{package} is not installed"
        if implementation != platform:
            return implementation, f"{self._reason}; no implementation for {platform}"
        return implementation, self._reason

    def compiled(self, kernel: _Kernel) -> _Kernel:
        """`kernel`, a function of tensors that `forward_native` calls, compiled if the configuration says so."""
        if not self._compile_native:
            return kernel
        if kernel not in self._compiled:
            import torch

            self._compiled[kernel] = torch.compile(kernel, dynamic=True)
        return self._compiled[kernel]  # type: ignore[return-value]

    @classmethod
    def forget_instances(cls) -> None:
        """Make every op anew when it is next asked for, and so let it choose again."""
        cls._instances.clear()

    def _implements(self, platform: str) -> bool:
        name = f"forward_{platform}"
        return getattr(type(self), name) is not getattr(LogitOp, name)


class OpRow(NamedTuple):
    """One line of the table of ops.

    Attributes:
        op: the op's name.
        platform: one of `PLATFORMS`.
        implementation: the method that runs there.
        active: whether this machine has the platform.
        why: what decided.
    """

    op: str
    platform: str
    implementation: str
    active: bool
    why: str


def list_ops() -> list[OpRow]:
    """Every op on every platform. Imports torch, if it is installed, to see which platforms this machine has."""
    here = present()
    rows = []
    for name in LogitOp.names():
        op = LogitOp.get(name)
        for platform in PLATFORMS:
            chosen, why = op.choose(platform)
            implementation = f"{describe(type(op))}.forward_{chosen}"
            absent = "" if platform in here else f"; no {platform} device here"
            rows.append(OpRow(name, platform, implementation, platform in here, why + absent))
    return rows
