"""First compilation of a grammar, in a process of its own with limits on time and memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from logitport.errors import InvalidArgument, LimitExceeded, PayloadError
from logitport_builtins.grammar.fair_limiter import FairLimiter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport_builtins.grammar.grammar_spec import GrammarSpec

# Limits of llguidance. Its defaults let one mask take seconds and one grammar 250 MB; with these, 0.3 s and 20 MB.
PARSER_LIMITS: Mapping[str, Any] = MappingProxyType(
    {"initial_lexer_fuel": 200_000, "max_lexer_states": 20_000, "max_grammar_size": 100_000}
)

# Processor time of one mask. All requests of a step wait for it. Typical grammars take a tenth of this.
MAX_MASK_SECONDS = 0.1

_CPU_SECONDS = 2
_WALL_SECONDS = 20.0  # longer than the processor time, because the machine may be busy
_MEMORY_BYTES = 1 << 30
_MAX_CONCURRENT = 2
_MAX_WAITING = 16  # per caller; each waiting compilation holds a thread
MAX_ERROR_LENGTH = 600

_limiter = FairLimiter(_MAX_CONCURRENT, _MAX_WAITING)


class TrialResult(NamedTuple):
    """Result of a trial: the grammar in llguidance's form, or an error message."""

    definition: str
    error: str


def definition(spec: GrammarSpec) -> str:
    """Convert a grammar to llguidance's form, after a trial compilation within limits of time and memory.

    Raises:
        InvalidArgument: the grammar is invalid, uses an unsupported feature, or exceeds the limits.
        LimitExceeded: too many grammars are being compiled, or the machine is too busy.
        PayloadError: the trial process does not start, for example because llguidance is missing.
    """
    result = _try(replace(spec, tokenizer=""))
    if result.error:
        raise InvalidArgument(f"grammar: {spec.kind}: {result.error}")
    return result.definition


@lru_cache(maxsize=256)
def _try(spec: GrammarSpec) -> TrialResult:
    task = {
        "kind": spec.kind,
        "text": spec.text,
        "parts": spec.parts,
        "limits": dict(PARSER_LIMITS),
        "mask_seconds": MAX_MASK_SECONDS,
        "seconds": _CPU_SECONDS,
        "memory_bytes": _MEMORY_BYTES,
    }
    program = str(Path(__file__).with_name("trial_process.py"))
    with _limiter.acquire(spec.caller, _WALL_SECONDS):
        try:
            process = subprocess.run(  # noqa: S603 - our own interpreter, our own file
                [sys.executable, "-I", program, str(os.getpid())],
                input=orjson.dumps(task),
                capture_output=True,
                check=False,
                timeout=_WALL_SECONDS,
            )
        except subprocess.TimeoutExpired as error:  # the machine is slow, not the grammar: not cached
            raise LimitExceeded(f"grammar: not compiled within {_WALL_SECONDS:.0f} s; try again later") from error
    if process.returncode > 0:  # the process failed before it read the grammar: not cached
        why = process.stderr.decode(errors="replace").strip().rpartition("\n")[-1][:MAX_ERROR_LENGTH]
        raise PayloadError(
            f"grammar: the process that compiles grammars exited with status {process.returncode}: {why}"
        )
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return TrialResult("", f"it does not compile within {_CPU_SECONDS} s; write a simpler one")
    try:
        answer = orjson.loads(process.stdout)
    except orjson.JSONDecodeError:  # the grammar crashed the process
        limit = f"{_MEMORY_BYTES >> 20} MiB"
        return TrialResult("", f"compiling it takes more than {limit}, or nests too deeply; write a simpler one")
    return TrialResult(answer.get("definition", ""), answer.get("error", "")[:MAX_ERROR_LENGTH])
