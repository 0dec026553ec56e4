"""All layers, in the order in which they are applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport_sandbox.bubblewrap import Bubblewrap
from logitport_sandbox.landlock import Landlock
from logitport_sandbox.limits import ResourceLimits
from logitport_sandbox.namespaces import Namespaces
from logitport_sandbox.seccomp import Seccomp

if TYPE_CHECKING:
    from logitport_sandbox.layer import Layer

# Limits come before namespaces, which hide /proc. Seccomp comes last: it forbids the system calls of the others.
LAYERS: tuple[Layer, ...] = (Bubblewrap(), ResourceLimits(), Namespaces(), Landlock(), Seccomp())
LAYER_NAMES = tuple(layer.name for layer in LAYERS)
