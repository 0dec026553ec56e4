"""Reads a grammar and compiles it, in a process that it may bring down: `trial` runs this file.

What llguidance's own limits do not catch (a stack that overflows, a product of automata) ends this process and no
other. Standard input is one JSON object, the answer on standard output another: {"definition": …} of a grammar that
compiles, or {"error": …}. Imports the standard library and llguidance alone, so that it starts fast.
"""

from __future__ import annotations

import json
import re
import resource
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import RepetitionNode, gbnf_to_lark

if TYPE_CHECKING:
    from collections.abc import Mapping

# Smaller than any stack on which the server compiles the grammar again.
_STACK_BYTES = 1 << 20

_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)

# So that the converter writes (a*)* as that, and not as a**, which is none.
RepetitionNode.is_atomic = lambda self: False  # type: ignore[method-assign] # noqa: ARG005


class _Octets:
    """A vocabulary of all octets and an end of sequence."""

    eos_token_id = 256
    bos_token_id = None
    special_token_ids = (256,)
    tokens = (*(bytes([octet]) for octet in range(256)), b"<eos>")

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def define(kind: str, text: str, whitespace: str | None) -> str:
    """The grammar in llguidance's form. Raises ValueError, and whatever the converter from EBNF raises."""
    if kind == "json_schema":
        options: Any = {"whitespace_pattern": whitespace} if whitespace else {"whitespace_flexible": whitespace is None}
        return LLMatcher.grammar_from_json_schema(text, defaults={"coerce_one_of": True}, overrides=options)
    if kind == "regex":
        return LLMatcher.grammar_from_regex(text)
    if kind == "choice":
        return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, json.loads(text))))
    return LLMatcher.grammar_from_lark(gbnf_to_lark(_ESCAPE.sub(_plain, text)))


def compile_error(definition: str, limits: Mapping[str, Any], mask_seconds: float) -> str:
    """Why the grammar does not compile, or not to a first mask within these seconds; "" if it does."""
    wrong, messages = LLMatcher.validate_grammar_with_warnings(definition, limits=LLParserLimits(**limits))
    if wrong:
        return messages[0]
    bounds = LLParserLimits(**limits, verbose_errors=False)
    matcher = LLMatcher(LLTokenizer(TokenizerWrapper(_Octets())), definition, log_level=0, limits=bounds)
    began = time.thread_time()
    matcher.compute_bitmask()
    if time.thread_time() - began > mask_seconds:
        return "its masks take too long; write a simpler one, with smaller counts of repetition"
    return matcher.get_error().replace("<non-verbose/>", "").replace("NoExtensionBias", "no text matches it")


def _plain(escape: re.Match[str]) -> str:
    """An escape that the converter spoils, written so that it does not."""
    digits = escape[1] or escape[2]
    if digits is None:
        return escape[0]
    code = int(digits, 16)
    return f"\\x{code:02x}" if code < 0x80 else chr(code)


def _answer(spec: Mapping[str, Any]) -> dict[str, str]:
    try:
        definition = define(spec["kind"], spec["text"], spec["whitespace"])
        error = compile_error(definition, spec["limits"], spec["mask_seconds"])
    except RecursionError:
        error = "nested too deeply"
    except Exception as raised:  # noqa: BLE001 - whatever it is, it is what the grammar makes the libraries say
        error = str(raised) or type(raised).__name__
    return {"error": error.strip()} if error else {"definition": definition}


def _main() -> None:
    spec = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(ValueError):  # macOS knows no such limit
        resource.setrlimit(resource.RLIMIT_AS, (spec["memory_bytes"],) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (spec["seconds"],) * 2)
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=lambda: json.dump(_answer(spec), sys.stdout))
    thread.start()
    thread.join()


if __name__ == "__main__":
    _main()
