"""Calls of project functions along a step of a shipped processor: `python -m benchmarks.step_calls [--list]`.

A step with one request begins at `Session.step` and ends when `PendingStep.apply` returns. It is traced in three
processes: the engine's, the principal's with a session on the local transport, and the worker's. Traced are calls of
Python functions, as `sys.setprofile` reports them, in the files of logitport's packages; without the processor's own.
Comprehensions and generated methods of classes are calls, too, but generated methods have no file. A change of file is
a call in another file than the call before it in the same process.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from benchmarks.servers import connected
from logitport import Client, CustomLogitProcessor, EditProcessor, EditRequest, Request, RowEdits
from logitport.core import compiled

_VOCAB_SIZE = 32_000
_STEPS = 20
# Before the step that the worker traces, to report it, and for all other steps.
_TRACE, _REPORT, _OTHER = 5, 6, 7
_FOLDER_VARIABLE = "STEP_CALLS_FOLDER"
_TRACED_FILE, _PRINCIPAL_FILE = "traced", "principal.json"
_OURS = re.compile(r"/(?:builtin_processors|client|proto|server)/(logitport.+\.py)$")

# The file name that `dataclass` and `NamedTuple` give to the methods that they generate.
_GENERATED = "<string>"

# File and function of each call.
Calls = Sequence[tuple[str, str]]


class _TracesWorker:
    """Traces its worker from its call in one step to its call in the next. Pickled by value, with what it needs."""

    traced: list[tuple[str, str]]

    def trace(self, token_id: int) -> None:
        sys.setprofile(None)
        if token_id == _TRACE:
            traced = self.traced = []

            def note(frame: FrameType, event: str, _: object) -> None:
                if event == "call":
                    traced.append((frame.f_code.co_filename, frame.f_code.co_qualname))

            sys.setprofile(note)
        elif token_id == _REPORT:
            print(base64.b64encode(zlib.compress(json.dumps(self.traced).encode())).decode())


class Denies(_TracesWorker, EditProcessor):
    """Denies an id."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        self.edit_batch([request], [edits])

    def edit_batch(self, requests: Sequence[EditRequest], edits: Sequence[RowEdits]) -> None:
        self.trace(requests[0].history.last_output or 0)
        for row in edits:
            row.deny([1])


class ReadsLogits(_TracesWorker, CustomLogitProcessor):
    """Denies an id in the logits."""

    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        assert custom_param_list is not None
        self.trace(sum(custom_param_list[0]["__req__"].output_ids[-1:]))
        logits[:, 1] = -float("inf")
        return logits


class Unused(EditProcessor):
    """Installed, so that the server's processes import this module."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        """Do nothing."""


def trace_principal(folder: Path) -> None:
    """Trace threads that begin in this process and its forks, while the folder has a file of this name."""
    calls: list[tuple[str, str]] = []
    traced = False

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal traced
        if event != "call":
            return
        if frame.f_code.co_name == "_next_frame":
            traced, was_traced = (folder / _TRACED_FILE).exists(), traced
            if was_traced and not traced:
                (folder / _PRINCIPAL_FILE).write_text(json.dumps(calls))
        if traced:
            calls.append((frame.f_code.co_filename, frame.f_code.co_qualname))

    threading.setprofile(note)


def trace_step(processor: type, *, pure_python: bool) -> dict[str, Calls]:
    """Return the calls of a step, by process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= {_FOLDER_VARIABLE: name, "PYTHONPATH": str(Path(__file__).parents[1])}
        options = ("--device", "cpu", "--logits-processors", f"benchmarks.step_calls:{Unused.__name__}")
        with connected(*options, pure_python=pure_python) as (_, client):
            engine, worker = _engine_and_worker(folder, client, processor)
        principal = json.loads((folder / _PRINCIPAL_FILE).read_text())
    return {"engine": _last(engine), "principal": _last(principal), "worker": _ours(worker)}


def _engine_and_worker(folder: Path, client: Client, processor: type) -> tuple[Calls, Calls]:
    """Run steps. Returns the calls of all traced ones in the engine, and of one in the worker."""
    engine: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            engine.append((frame.f_code.co_filename, frame.f_code.co_qualname))

    logits = torch.zeros(1, _VOCAB_SIZE)
    registered = client.register(processor)
    with client.session(vocab_size=_VOCAB_SIZE, transport="local") as session:
        handle = session.add(Request([1], processors=[(registered, {})]))
        session.step({handle: []}).apply(logits)

        def step(token_id: int) -> None:
            session.step({handle: [token_id]}).apply(logits)

        for _ in range(_STEPS):
            step(_OTHER)
        (folder / _TRACED_FILE).touch()
        sys.setprofile(note)
        for _ in range(_STEPS):
            step(_OTHER)
        sys.setprofile(None)
        (folder / _TRACED_FILE).unlink()
        for token_id in (_OTHER, _TRACE, _OTHER, _REPORT):
            step(token_id)
        printed = client.logs(registered)[-1].text
    return engine, json.loads(zlib.decompress(base64.b64decode(printed)))


def _ours(calls: Calls) -> Calls:
    """Return the calls in logitport's files, and of generated methods, with the file ""."""
    ours = []
    for path, name in calls:
        found = _OURS.search(path)
        if found or path == _GENERATED:
            ours.append((found[1] if found else "", name))
    return ours


def _last(calls: Calls) -> Calls:
    """Return the calls of the last step: after those of the first ones, which have as many."""
    ours = _ours(calls)
    first = ours[-1]
    ends = [index for index, call in enumerate(ours) if call == first]
    return ours[ends[-2] + 1 :]


def main() -> None:
    """Print the counts of each process, and of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print each call")
    parser.add_argument("--reads-logits", action="store_true", help="trace a processor that reads logits")
    parser.add_argument("--pure-python", action="store_true", help="without the compiled core")
    options = parser.parse_args()
    if options.pure_python and compiled.core is not None:  # chosen at the import
        arguments = [sys.executable, "-m", "benchmarks.step_calls", *sys.argv[1:]]
        raise SystemExit(subprocess.call(arguments, env=os.environ | {compiled.VARIABLE: "1"}))
    traced = trace_step(ReadsLogits if options.reads_logits else Denies, pure_python=options.pure_python)
    total_calls = total_changes = 0
    all_files: set[str] = set()
    print(f"{'process':<12}{'calls':>8}{'files':>8}{'changes of file':>18}")
    for process, calls in traced.items():
        files = [file for file, _ in calls if file]
        changes = sum(before != after for before, after in pairwise(files))
        print(f"{process:<12}{len(calls):>8}{len(set(files)):>8}{changes:>18}")
        total_calls, total_changes, all_files = total_calls + len(calls), total_changes + changes, all_files | {*files}
        for file, name in calls if options.list else ():
            print(f"    {file:<70} {name}")
    print(f"{'all':<12}{total_calls:>8}{len(all_files):>8}{total_changes:>18}")


if __name__ == "__main__":
    main()
elif _FOLDER_VARIABLE in os.environ:
    trace_principal(Path(os.environ[_FOLDER_VARIABLE]))
