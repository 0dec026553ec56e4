"""A payload as a user of SGLang makes it with cloudpickle in place of dill."""

from __future__ import annotations

import json
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

_SOURCE = '''
import torch

SCALE = 1.25


def scaled(logits):
    return logits * SCALE


class Shifts(Base):
    """Uses a global, a function, a closure, a property and super()."""

    step = 0.5

    def __init__(self):
        super().__init__()
        self.add = (lambda start: lambda value: value + start)(2.0)

    @property
    def shift(self):
        return self.add(self.step)

    def __call__(self, logits, custom_param_list=None):
        added = torch.tensor([params["add"] for params in custom_param_list], dtype=logits.dtype)
        return scaled(logits) + self.shift + added.unsqueeze(1)
'''


def shifts(base: type) -> Any:
    """Return a class that derives from `base`, as if it were defined in a script."""
    made: dict[str, Any] = {"__name__": "__main__", "Base": base}
    exec(_SOURCE, made)
    return made["Shifts"]


def serialize(cls: type) -> str:
    """Return a payload of the class that cloudpickle made."""
    return json.dumps({"callable": cloudpickle.dumps(cls).hex()})
