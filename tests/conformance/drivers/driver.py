"""The driver of the Python SDK: see tests/conformance/driver_process.py. `python driver.py TARGET [auto|grpc]`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport import Client, LogitportError, Request, ServerUnavailable

if TYPE_CHECKING:
    from logitport.session import Handle, Session

UNAVAILABLE = 100


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",") if one]


def code_of(error: LogitportError) -> int:
    return UNAVAILABLE if isinstance(error, ServerUnavailable) else error.code


class PythonDriver:
    def __init__(self, target: str, transport: Any) -> None:
        self.target, self.transport = target, transport
        self.handles: dict[str, Handle] = {}
        self.steps = 0
        self.vocab_size = 0
        self.session: Session

    def execute(self, line: str) -> dict[str, Any]:
        name, *words = line.split(" ")
        try:
            output: dict[str, Any] = getattr(self, name)(*words)
        except LogitportError as error:
            return {"error": code_of(error), "message": error.message}
        return output

    def open(self, vocab_size: str, drafts: str, eos: str, timeout: str, reconnect: str) -> dict[str, Any]:
        self.vocab_size = int(vocab_size)
        self.session = Client(self.target, timeout=float(timeout)).session(
            vocab_size=self.vocab_size,
            max_draft_tokens=int(drafts),
            eos_token_ids=numbers(eos),
            transport=self.transport,
            reconnect_seconds=max(0.0, float(reconnect)),
            programs="off",
        )
        return {}

    def add(self, name: str, skips: str, prompt: str, output: str, *chain: str) -> dict[str, Any]:
        processors = [(one.partition("=")[0], json.loads(one.partition("=")[2])) for one in chain]
        self.handles[name] = self.session.add(
            Request(
                numbers(prompt),
                numbers(output),
                processors=processors,
                request_id=name,
                on_error="skip" if skips == "1" else "abort",
            )
        )
        return {"reads_logits": self.handles[name].reads_logits}

    def step(self, *words: str) -> dict[str, Any]:
        end = words.index("rows") if "rows" in words else len(words)
        new, drafts, parents, count = {}, {}, {}, 0
        for word in words[:end]:
            name, new_ids, draft_ids, parent_list = word.split(":")
            handle = self.handles[name]
            new[handle], drafts[handle] = numbers(new_ids), numbers(draft_ids)
            count += 1 + len(drafts[handle])
            if parent_list:
                parents[handle] = numbers(parent_list)
        rows = None
        if end < len(words):
            pairs = [word.split("+") for word in words[end + 1 :]]
            rows = [(self.handles[name], int(offset)) for name, offset in pairs]
            count = len(rows)
        self.steps += 1
        row, token_id = np.indices((count, self.vocab_size))
        logits = (((13 * self.steps + 31 * row + 17 * token_id) % 101) / 8 - 4).astype(np.float32)
        result = self.session.step(new, rows=rows, drafts=drafts, draft_parents=parents).apply(logits, check=False)
        errors = [(handle, error, False) for handle, error in result.failures.items()]
        errors += [(handle, error, True) for handle, error in result.skipped.items()]
        return {
            "logits": [one.tobytes().hex() for one in logits],
            "failures": {
                handle.request_id: {"code": code_of(error), "skipped": skipped, "message": error.message}
                for handle, error, skipped in errors
            },
            "all_denied_rows": list(result.all_denied_rows),
            "applied": result.rows_applied,
        }

    def remove(self, *names: str) -> dict[str, Any]:
        self.session.remove(*(self.handles[name] for name in names))
        return {}

    def rewind(self, name: str, length: str) -> dict[str, Any]:
        self.session.rewind(self.handles[name], int(length))
        return {}

    def length(self, name: str) -> dict[str, Any]:
        return {"length": self.handles[name].history.length}

    def stats(self) -> dict[str, Any]:
        return {"reconnects": self.session.reconnects, "resyncs": self.session.resyncs}

    def close(self) -> dict[str, Any]:
        self.session.close()
        return {}


def main() -> None:
    driver = PythonDriver(sys.argv[-1], sys.argv[1] if len(sys.argv) > 2 else "auto")
    for line in sys.stdin:
        sys.stdout.write(json.dumps(driver.execute(line.rstrip("\n"))) + "\n")
        sys.stdout.flush()
        if line == "close\n":
            return


main()
