"""Imported by every Python that has this folder on PYTHONPATH, SGLang's processes included.

torchvision registers the shapes of operators that its CPU build lacks with another version of torch. They are
declared here when torchvision is imported, so that the import succeeds. Nothing calls them.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class _BeforeTorchvision(MetaPathFinder):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            import torch

            self.library = torch.library.Library("torchvision", "DEF")
            for operator in _OPERATORS:
                self.library.define(operator)
            _alive.append(self)


_alive: list[object] = []
sys.meta_path.insert(0, _BeforeTorchvision())
