"""All layers, which are applied in this order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport_sandbox.layers.bubblewrap import Bubblewrap
from logitport_sandbox.layers.landlock import Landlock
from logitport_sandbox.layers.namespaces import Namespaces
from logitport_sandbox.layers.resource_limits import ResourceLimits
from logitport_sandbox.layers.seccomp import Seccomp

if TYPE_CHECKING:
    from logitport_sandbox.layers.layer import Layer

# Limits come before namespaces, which hide /proc. Seccomp comes last: it forbids the system calls of the others.
LAYERS: tuple[Layer, ...] = (Bubblewrap(), ResourceLimits(), Namespaces(), Landlock(), Seccomp())
LAYER_NAMES = tuple(layer.name for layer in LAYERS)
