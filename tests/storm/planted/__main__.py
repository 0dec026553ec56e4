"""Plants defects that the product once had in a copy of it, and runs the storm there: `python -m tests.storm.planted`.

Each must be found. The copy has an environment of its own, because workers import the packages of their interpreter.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
_PACKAGES = ("proto", "client", "server", "builtin_processors")
_FOLDERS = (*_PACKAGES, "tests", "benchmarks", "core")
_IGNORED = shutil.ignore_patterns("__pycache__", "build", "results", ".*")


class Defect(NamedTuple):
    """A defect, and a run of the storm that finds it.

    Attributes:
        what: goes wrong.
        options: of the storm; it has ten minutes at most.
        changes: by file of the product, texts and what replaces them, each of which is once in the file.
    """

    what: str
    options: str
    changes: dict[str, dict[str, str]]


DEFECTS = {
    "large-reply": Defect(
        "a reply of over 1 MiB on the local transport ends the process",
        "--seed 1 --minutes 2 --only fuzzer engine",
        {
            "core/src/step_message.h": {
                "message.remove_prefix(std::min(message.size(), length_bytes));": "message = message.substr(4);"
            },
            "core/src/batch_binding.cpp": {
                "    const nb::bytes last = served": "    server_.release_large();\n    const nb::bytes last = served"
            },
        },
    ),
    "cast": Defect(
        "scratch memory of a cast is overwritten before it is read, so that another row fails",
        "--seed 1 --minutes 2 --only fuzzer",
        {
            "client/logitport_programs/runtime/program_runner.py": {
                "unfit.append(flags.view(len(flags), -1).any(dim=1))": "unfit.append(flags.view(len(flags), -1))",
                "    return unfit\n": "    return [flags.any(dim=1) for flags in unfit]\n",
            }
        },
    ),
    "held-workers": Defect(
        "a step waits for a busy worker while it holds others",
        "--seed 18 --minutes 5 --only engine",
        {
            "server/logitport_server/executors/calls/worker_calls.py": {
                "if worker.lock.acquire(blocking=False):": "if worker.lock.acquire(timeout=max(0.0, self._remaining)):"
            }
        },
    ),
    "memory": Defect(
        "histories and states are not counted",
        "--seed 55 --minutes 1.5 --only engine rival",
        {
            "server/logitport_session/requests/principal_memory.py": {
                "    if not begin() and not _fits_later(begin, account):": "    if fixed < 0:"
            }
        },
    ),
    "quota": Defect(
        "a session leaves its quota before its resources have ended",
        "--seed 118 --minutes 1.5 --only engine rival operator",
        {
            "server/logitport_server/front_door/service.py": {
                "            await stream.relay.ended\n": "            pass\n"
            },
            "server/logitport_server/transports/local_connection.py": {
                "            self._peer.shutdown(socket.SHUT_RD if finish else socket.SHUT_RDWR)": "            pass"
            },
        },
    ),
    "long-reply": Defect(
        "the client awaits a reply that is announced with 4 GB",
        "--seed 1 --minutes 2 --only fuzzer",
        {
            "client/logitport/system/local_frames.py": {
                "        if length > self._max_bytes:\n": "        if length < 0:\n"
            }
        },
    ),
    "left-folder": Defect(
        "a start that fails leaves its folder behind",
        "--seed 1 --minutes 3 --only engine-0 operator",
        {
            "server/logitport_server/server.py": {
                "            await self._close(0.0)\n            raise\n": "            raise\n"
            }
        },
    ),
    "all-denied": Defect(
        "rows of which no id is allowed are not reported",
        "--seed 1 --minutes 3 --only engine",
        {
            "client/logitport/session/steps/step_reply.py": {
                "reply.rows_applied, reply.all_denied_rows)": "reply.rows_applied, ())"
            }
        },
    ),
    "frozen-state": Defect(
        "`self.n += 1` is frozen into a program",
        "--seed 1 --minutes 2 --only fuzzer",
        {
            "client/logitport_programs/capturing/operator_tracing.py": {
                "inspect.unwrap(cls.process)) if check_state else": "inspect.unwrap(cls.process)) if False else"
            }
        },
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storm.planted", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"defects: {', '.join(DEFECTS)}; all by default")
    missed = [name for name in parser.parse_args().names or DEFECTS if not is_found(name)]
    print(f"missed: {', '.join(missed)}" if missed else "all were found")
    return len(missed)


def is_found(name: str) -> bool:
    """Plant a defect, and run the storm. Returns whether it has found something."""
    defect = DEFECTS[name]
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        tree = Path(folder)
        for part in _FOLDERS:
            shutil.copytree(ROOT / part, tree / part, ignore=_IGNORED)
        plant(defect, tree)
        if any(file.startswith("core/") for file in defect.changes):
            build = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--target"]
            subprocess.run([*build, tree / _PACKAGES[0], tree / "core"], check=True)
        begun = time.monotonic()
        command = [str(_environment(tree)), "-m", "tests.storm", "--shrink-minutes", "0", *defect.options.split()]
        ran = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    found = [line for line in ran.stdout.splitlines() if line.startswith("FOUND")]
    print(f"{name}: {defect.what}\n  {defect.options}: {len(found)} findings, {time.monotonic() - begun:.0f} s")
    print("\n".join(f"  {line[:200]}" for line in found[:5]) or ran.stderr[-3000:], flush=True)
    return bool(found)


def plant(defect: Defect, tree: Path) -> None:
    """Change the files of a defect."""
    for file, changes in defect.changes.items():
        text = (tree / file).read_text()
        for old, new in changes.items():
            if text.count(old) != 1:
                raise ValueError(f"{file} has {old!r} {text.count(old)} times")
            text = text.replace(old, new)
        (tree / file).write_text(text)


def _environment(tree: Path) -> Path:
    """Make an environment in which the packages are those of the tree. Returns its interpreter."""
    subprocess.run([sys._base_executable, "-m", "venv", "--without-pip", tree / "venv"], check=True)  # type: ignore[attr-defined]
    python = tree / "venv" / "bin" / "python"
    (site,) = (tree / "venv").glob("lib/*/site-packages")
    paths = [str(tree / part) for part in _PACKAGES]
    others = [path for path in sys.path if Path(path).is_dir() and not Path(path).is_relative_to(ROOT)]
    (site / "first.pth").write_text("\n".join([*paths, *others]))
    command = Path(sys.executable).with_name("logitport").read_text()
    (tree / "venv" / "bin" / "logitport").write_text(f"#!{python}\n{command.partition(chr(10))[2]}")
    (tree / "venv" / "bin" / "logitport").chmod(0o700)
    return python


if __name__ == "__main__":
    sys.exit(main())
