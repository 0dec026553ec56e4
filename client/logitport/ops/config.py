"""Which ops run the kernel of their platform, and which their native PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from logitport.errors import InvalidArgument

_BASES = ("all", "none")


@dataclass(frozen=True)
class OpsConfig:
    """The choice, checked when it is made.

    Attributes:
        custom_ops: at most one base, "all" or "none", and "+op" or "-op" for single ops. Without a base it is "all",
            and "none" with `compile_native`: inductor does better with PyTorch than with kernels it cannot see into.
        compile_native: compile native implementations with inductor.

    Raises:
        InvalidArgument: two bases, both signs for one op, or an entry that is neither base nor signed.
    """

    custom_ops: tuple[str, ...] = ()
    compile_native: bool = False

    def __post_init__(self) -> None:
        shown = list(self.custom_ops)
        if sum(entry in _BASES for entry in shown) > 1:
            raise InvalidArgument(f"custom_ops {shown} has more than one base; keep one of 'all' and 'none'")
        for entry in shown:
            if entry not in _BASES and (entry[:1] not in {"+", "-"} or len(entry) == 1):
                raise InvalidArgument(f"custom_ops {shown}: {entry!r} is none of 'all', 'none', '+op' and '-op'")
        for op in sorted(self.names):
            if f"+{op}" in shown and f"-{op}" in shown:
                raise InvalidArgument(f"custom_ops {shown} both enables and disables {op!r}; keep one sign")

    @property
    def names(self) -> frozenset[str]:
        """The ops that are named with a sign."""
        return frozenset(entry[1:] for entry in self.custom_ops if entry not in _BASES)

    def decide(self, op: str) -> tuple[bool, str]:
        """Whether an op runs the kernel of its platform, and the reason."""
        for sign in "+-":
            if f"{sign}{op}" in self.custom_ops:
                return sign == "+", f"custom_ops has {sign}{op}"
        for base in _BASES:
            if base in self.custom_ops:
                return base == "all", f"custom_ops has {base}"
        if self.compile_native:
            return False, "native code is compiled, so custom_ops is none"
        return True, "custom_ops is all by default"
