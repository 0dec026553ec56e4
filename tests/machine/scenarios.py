"""The machines of `make machine`: a kernel, what each has, and the tests that run in it."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.machine.virtual_machine import Size

_GUEST = "tests/machine/guest"


class Run(NamedTuple):
    """One run of pytest in a machine."""

    arguments: tuple[str, ...]
    unprivileged: bool = False


class Scenario(NamedTuple):
    """One machine.

    Attributes:
        kernel: the release of Debian that brings it.
        read_only: whether `/` is, while the tests run.
    """

    kernel: str
    runs: dict[str, Run]
    size: Size = Size()
    read_only: bool = False

    @property
    def plan(self) -> dict[str, Any]:
        """For `guest/begin.py`."""
        return {"runs": {name: run._asdict() for name, run in self.runs.items()}, "read_only": self.read_only}


_LAYERS = {
    "layers-of-root": Run((f"{_GUEST}/test_layers.py", "tests/sandbox")),
    "layers-of-a-user": Run((f"{_GUEST}/test_layers.py", "tests/sandbox/test_attempts.py"), unprivileged=True),
}
_UNIT = Run((f"{_GUEST}/test_unit.py", f"{_GUEST}/test_delegation.py"))
_REGIMES = Run((f"{_GUEST}/test_regimes.py",))

SCENARIOS = {
    "bookworm": Scenario("bookworm", {"unit": _UNIT, "regimes": _REGIMES, **_LAYERS}),
    "trixie": Scenario("trixie", {"unit": _UNIT, "regimes": _REGIMES, **_LAYERS}),
    "bullseye": Scenario("bullseye", {"unit": Run((f"{_GUEST}/test_unit.py",)), **_LAYERS}),
    "small": Scenario(
        "bookworm", {"small": Run((f"{_GUEST}/test_small.py",))}, Size(cores=1, memory_mib=512), read_only=True
    ),
}
