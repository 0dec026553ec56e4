"""`green_list`: a watermark in the choice of ids, and its detector."""

from logitport_builtins.green_list.detector import GreenListDetection, GreenListDetector
from logitport_builtins.green_list.processor import GreenList

__all__ = ["GreenList", "GreenListDetection", "GreenListDetector"]
