"""What edits and built-ins run on: ops with an implementation for each platform, in one registry."""

from logitport.ops.apply_edits import apply_edits
from logitport.ops.config import OpsConfig
from logitport.ops.pluggable import PipelineStage
from logitport.ops.registry import LogitOp, OpRow, configure, list_ops

__all__ = ["apply_edits", "configure", "list_ops", "LogitOp", "OpRow", "OpsConfig", "PipelineStage"]
