"""The parts of a run, in order of value: a run that is cut off has the first ones."""

from __future__ import annotations

from typing import NamedTuple

# The tests' own configuration makes a warning an error. Here a warning of another torch must not hide a result.
_LENIENT = ("-W", "default", "-o", "timeout=120")
_TESTS = ("-m", "pytest", "-m", "cuda", "-v", "-rfEs", "-p", "no:cacheprovider", "--tb=short", *_LENIENT)
_END_TO_END = ("end_to_end/test_cuda_in_place.py", "end_to_end/test_cuda_scope.py", "end_to_end/test_cuda.py")


class Part(NamedTuple):
    """A process of the run.

    Attributes:
        name: for `--only`.
        seconds: the limit of its time.
        arguments: of the Python interpreter.
        does: one line for `--list`.
    """

    name: str
    seconds: float
    arguments: tuple[str, ...]
    does: str


def _job(name: str, seconds: float, does: str) -> Part:
    return Part(name, seconds, ("-m", "benchmarks.gpu.job", name), does)


def _tests(name: str, seconds: float, *paths: str) -> Part:
    return Part(name, seconds, (*_TESTS, *(f"tests/{path}" for path in paths)), f"pytest -m cuda {' '.join(paths)}")


PARTS = (
    _job("environment", 60, "the driver, the GPU, the versions, the packages that are missing"),
    _tests("test-ops", 120, "client/ops", "client/core/test_token_ids.py"),
    _tests("test-end-to-end", 200, *_END_TO_END),
    _tests("test-server", 60, "server/session/test_session_steps.py", "server/dialects/transformers/test_own.py"),
    _job("edits", 120, "the kernel of edits, against moving the bytes, xgrammar and vLLM"),
    _job("mix", 90, "the mix of three built-ins against SGLang's processors in process, 4k and 32k ids"),
    _job("temperature", 60, "a temperature on all rows, as a program and through the server, against torch"),
    _job("faults", 90, "workers that break CUDA: a bad index, an endless kernel, no memory"),
    _job("generation", 120, "a transformers model with random weights, with and without the hook"),
    _job("sampling", 75, "SGLang's sampler with its own processors, and with the hook"),
    Part("bench-cuda", 150, ("-m", "benchmarks.cuda"), "steps in place, through pinned memory, and in SGLang"),
)
