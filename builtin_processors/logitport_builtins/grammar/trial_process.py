"""Compiles a grammar in a process that may crash. `trial` runs this file.

Failures that llguidance's own limits do not catch (stack overflow, a product of automata) end only this process.
The argument is the id of the process that runs it. Standard input is one JSON object. Standard output is another:
{"definition": …} if the grammar compiles, or {"error": …}. Imports only the standard library and llguidance, so that
the process starts fast.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import RepetitionNode, gbnf_to_lark

if TYPE_CHECKING:
    from collections.abc import Mapping

# Source: include/uapi/linux/prctl.h.
_PR_SET_PDEATHSIG = 1

# Smaller than the stack of any server thread that compiles the grammar again.
_STACK_BYTES = 1 << 20

# In Lark: a special token by its name, and ids such as <[5,7-9]>. In a string they are text, and do no harm here.
_SPECIAL_TOKEN = re.compile(r"<(?!\[)[^<>\s]+>")
_TOKEN_IDS = re.compile(r"<\[\^?[0-9,-]+\]>")
_MAX_TOKEN_ID = (1 << 19) - 1

_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)

# Makes the converter write (a*)* with parentheses; without them it writes a**, which is invalid.
RepetitionNode.is_atomic = lambda self: False  # type: ignore[method-assign] # noqa: ARG005


class _ByteVocabulary:
    """A vocabulary of the 256 byte values, an end-of-sequence token, and the special tokens of a grammar in Lark.

    The tokenizer of a request has other ids and perhaps other tokens. The compilation for it checks them.
    """

    eos_token_id = 256
    bos_token_id = None

    def __init__(self, lark: str) -> None:
        names = dict.fromkeys(match[0] for match in _SPECIAL_TOKEN.finditer(lark))
        ids = (int(digits) for match in _TOKEN_IDS.finditer(lark) for digits in re.findall(r"\d+", match[0]))
        largest = max(ids, default=0)
        if largest > _MAX_TOKEN_ID:
            raise ValueError(f"token id {largest} is above {_MAX_TOKEN_ID}; no tokenizer has so many ids")
        tokens = [*(bytes([value]) for value in range(256)), b"<eos>", *(name.encode() for name in names)]
        self.tokens = (*tokens, *[b""] * (largest + 1 - len(tokens)))
        self.special_token_ids = tuple(range(256, len(tokens)))

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def define(kind: str, text: str) -> str:
    """Convert a grammar to llguidance's form. Raises ValueError, or any exception of the converter from EBNF."""
    if kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(text)
    if kind == "regex":
        return LLMatcher.grammar_from_regex(text)
    if kind == "choice":
        return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, json.loads(text))))
    if kind == "ebnf":
        return LLMatcher.grammar_from_lark(gbnf_to_lark(_ESCAPE.sub(_rewrite_escape, text)))
    return LLMatcher.grammar_from_lark(text)


def compile_error(definition: str, limits: Mapping[str, Any], mask_seconds: float) -> str:
    """Compile the grammar and compute a first mask. Returns why that failed or took too long; "" on success."""
    wrong, messages = LLMatcher.validate_grammar_with_warnings(definition, limits=LLParserLimits(**limits))
    if wrong:
        return messages[0]
    bounds = LLParserLimits(**limits, verbose_errors=False)
    matcher = LLMatcher(
        LLTokenizer(TokenizerWrapper(_ByteVocabulary(definition))), definition, log_level=0, limits=bounds
    )
    began = time.thread_time()
    matcher.compute_bitmask()
    if time.thread_time() - began > mask_seconds:
        return "its masks take too long; write a simpler one, with smaller counts of repetition"
    return matcher.get_error().replace("<non-verbose/>", "").replace("NoExtensionBias", "no text matches it")


def _rewrite_escape(escape: re.Match[str]) -> str:
    """Rewrite an escape sequence that the converter mishandles."""
    digits = escape[1] or escape[2]
    if digits is None:
        return escape[0]
    code = int(digits, 16)
    return f"\\x{code:02x}" if code < 0x80 else chr(code)


def _answer(spec: Mapping[str, Any]) -> dict[str, str]:
    try:
        definition = define(spec["kind"], spec["text"])
        error = compile_error(definition, spec["limits"], spec["mask_seconds"])
    except RecursionError:
        error = "nested too deeply"
    except Exception as raised:  # noqa: BLE001 - the libraries raise many types for invalid grammars
        error = str(raised) or type(raised).__name__
    return {"error": (_error_of_a_part(spec) or error).strip()} if error else {"definition": definition}


def _error_of_a_part(spec: Mapping[str, Any]) -> str:
    """Return the first error of a part alone, with its name: the error of the whole has lines of generated text."""
    for name, kind, text in spec["parts"]:
        with suppress(Exception):
            wrong, messages = LLMatcher.validate_grammar_with_warnings(
                define(kind, text), limits=LLParserLimits(**spec["limits"])
            )
            if wrong:
                return f"{name}: {messages[0]}"
    return ""


def _end_with(parent: int) -> None:
    """Let the kernel kill this process when the parent's thread that waits for it has ended. Not on macOS."""
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:  # it has ended before
        sys.exit(1)


def _main() -> None:
    _end_with(int(sys.argv[1]))
    spec = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(ValueError):  # macOS does not support this limit
        resource.setrlimit(resource.RLIMIT_AS, (spec["memory_bytes"],) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (spec["seconds"],) * 2)
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=lambda: json.dump(_answer(spec), sys.stdout))
    thread.start()
    thread.join()


if __name__ == "__main__":
    _main()
