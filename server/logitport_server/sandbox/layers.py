"""All layers, in the order in which they are put up, and whether this machine has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport_server.sandbox.bubblewrap import Bubblewrap
from logitport_server.sandbox.landlock import Landlock
from logitport_server.sandbox.limits import ResourceLimits
from logitport_server.sandbox.namespaces import Namespaces
from logitport_server.sandbox.plan import LayersMissing
from logitport_server.sandbox.seccomp import Seccomp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logitport_server.sandbox.layer import Layer

# Limits come before namespaces, which take /proc away; seccomp comes last, for it forbids what the others call.
LAYERS: tuple[Layer, ...] = (Bubblewrap(), ResourceLimits(), Namespaces(), Landlock(), Seccomp())
LAYER_NAMES = tuple(layer.name for layer in LAYERS)


def check(without: Iterable[str] = ()) -> None:
    """Raises LayersMissing, which lists every layer that is required and missing, what it needs, how to waive it."""
    waived = frozenset(without)
    lines = [
        f"  {layer.name}: {reason} (or do without it: --without-layer {layer.name})"
        for layer in LAYERS
        if layer.name not in waived and (reason := layer.missing()) is not None
    ]
    if lines:
        raise LayersMissing("\n".join(("this machine lacks what is to contain shipped processors:", *lines)))
