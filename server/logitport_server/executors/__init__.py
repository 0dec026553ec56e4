"""Executors: where processors run. One file an executor; `Executor` in `base` is their interface."""
