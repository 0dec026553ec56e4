"""Runs programs on the engine's own logits.

kernels           one function of torch for each operator
arena             lays values out in one block of memory, which is reused when their last reader has run
nan               whether a result can have NaN, so that it must be searched
plan              what a run needs, by shape arithmetic alone: shapes, offsets in the arena, in-place operators
parts             irregular rows that run in place, part by part
tokens            the values that programs compute from histories
runner            runs plans on rows of the logits, in place
reference_runner  the same for engines without torch, by the interpreter
"""
