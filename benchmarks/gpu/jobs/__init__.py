"""The measurements of `python -m benchmarks.gpu`: one file a job, each with a function `run`."""
