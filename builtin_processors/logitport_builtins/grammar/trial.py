"""Compiling a grammar for the first time, out of harm's way."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from logitport.errors import InvalidParams, LimitExceeded, LoadFailed
from logitport_builtins.grammar.fair_limiter import FairLimiter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport_builtins.grammar.request_spec import GrammarSpec

# Of llguidance. Its defaults let one mask take seconds and one grammar 250 MB; with these it is 0.3 s and 20 MB.
PARSER_LIMITS: Mapping[str, Any] = MappingProxyType(
    {"initial_lexer_fuel": 200_000, "max_lexer_states": 20_000, "max_grammar_size": 100_000}
)

# Of processor time, of one mask: a step waits for it, with all its requests. What people write takes a tenth.
MAX_MASK_SECONDS = 0.1

_CPU_SECONDS = 2
_WALL_SECONDS = 20.0  # a machine may be busy with other things
_MEMORY_BYTES = 1 << 30
_AT_ONCE = 2
_MAX_WAITING = 16  # of one caller; each holds a thread
_MAX_ERROR_LENGTH = 600

_limiter = FairLimiter(_AT_ONCE, _MAX_WAITING)


class Verdict(NamedTuple):
    """What came of a trial: the grammar as llguidance reads it, or what is wrong with it."""

    definition: str
    error: str


def definition(spec: GrammarSpec) -> str:
    """The grammar as llguidance reads it, once it has compiled within bounds of time and memory.

    Raises:
        InvalidParams: it is no grammar, uses what is not supported, or is more than the bounds allow.
        LimitExceeded: the machine is busy, with other grammars or otherwise.
        LoadFailed: the process in which it is tried does not start, for want of llguidance perhaps.
    """
    verdict = _try(replace(spec, tokenizer=""))
    if verdict.error:
        raise InvalidParams(f"grammar: {spec.kind}: {verdict.error}")
    return verdict.definition


@lru_cache(maxsize=256)
def _try(spec: GrammarSpec) -> Verdict:
    question = {
        "kind": spec.kind,
        "text": spec.text,
        "whitespace": spec.whitespace,
        "limits": dict(PARSER_LIMITS),
        "mask_seconds": MAX_MASK_SECONDS,
        "seconds": _CPU_SECONDS,
        "memory_bytes": _MEMORY_BYTES,
    }
    program = str(Path(__file__).with_name("trial_process.py"))
    with _limiter.acquire(spec.caller, _WALL_SECONDS):
        try:
            ran = subprocess.run(  # noqa: S603 - our own interpreter, our own file
                [sys.executable, "-I", program],
                input=orjson.dumps(question),
                capture_output=True,
                check=False,
                timeout=_WALL_SECONDS,
            )
        except subprocess.TimeoutExpired as error:  # which says more of the machine than of the grammar: not cached
            raise LimitExceeded(f"grammar: not compiled within {_WALL_SECONDS:.0f} s; try again later") from error
    if ran.returncode > 0:  # it has not got as far as the grammar: not cached
        why = ran.stderr.decode(errors="replace").strip().rpartition("\n")[-1][:_MAX_ERROR_LENGTH]
        raise LoadFailed(f"grammar: the process that is to compile it ends with status {ran.returncode}: {why}")
    if ran.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return Verdict("", f"it does not compile within {_CPU_SECONDS} s; write a simpler one")
    try:
        answer = orjson.loads(ran.stdout)
    except orjson.JSONDecodeError:  # it was ended by what it compiled
        limit = f"{_MEMORY_BYTES >> 20} MiB"
        return Verdict("", f"compiling it takes more than {limit}, or nests too deeply; write a simpler one")
    return Verdict(answer.get("definition", ""), answer.get("error", "")[:_MAX_ERROR_LENGTH])
