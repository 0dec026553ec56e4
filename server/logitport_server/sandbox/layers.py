"""All layers, in the order in which they are put up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport_server.sandbox.bubblewrap import Bubblewrap
from logitport_server.sandbox.landlock import Landlock
from logitport_server.sandbox.limits import ResourceLimits
from logitport_server.sandbox.namespaces import Namespaces
from logitport_server.sandbox.seccomp import Seccomp

if TYPE_CHECKING:
    from logitport_server.sandbox.layer import Layer

# Limits come before namespaces, which take /proc away; seccomp comes last, for it forbids what the others call.
LAYERS: tuple[Layer, ...] = (Bubblewrap(), ResourceLimits(), Namespaces(), Landlock(), Seccomp())
LAYER_NAMES = tuple(layer.name for layer in LAYERS)
