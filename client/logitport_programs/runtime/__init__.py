"""Runs programs with torch, on the engine's own logits.

kernels  one function for each operator
arena    places values in one block of memory, which is reused when their last reader has run
plan     what a run needs, by shape arithmetic alone: shapes, places in the arena, in-place operators
parts    irregular rows that run in place, part by part
tokens   the values that programs compute from histories
runner   runs plans on rows of the logits, in place
"""
