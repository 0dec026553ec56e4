"""Ops on logits: one implementation for each platform, chosen by the device of the logits."""

from logitport.ops.apply_edits import apply_edits
from logitport.ops.logit_op import LogitOp, OpRow, OpsConfig, check_variable, configure, list_ops

__all__ = ["apply_edits", "check_variable", "configure", "list_ops", "LogitOp", "OpRow", "OpsConfig"]
