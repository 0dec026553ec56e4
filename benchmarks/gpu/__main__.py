"""The command: `python -m benchmarks.gpu`. Needs no network, and no package beyond torch, Triton and `.gpu-wheels`.

The variable GPU_SECONDS limits the whole run, and GPU_RESULTS names the folder of the results.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.gpu import python
from benchmarks.gpu.results import LINES, LOG, TABLE, load
from benchmarks.gpu.runner import PARTS, RESULTS_VARIABLE, Runner
from benchmarks.peer_files import ROOT

_SECONDS = 480.0


def main() -> None:
    """Run the parts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="PART", default=[""], help="names of parts, or their beginnings")
    parser.add_argument("--list", action="store_true", help="list the parts")
    options = parser.parse_args()
    if options.list:
        sys.exit("".join(f"{part.name:<16}{part.seconds:>4.0f} s  {part.does}\n" for part in PARTS).rstrip())
    for name in options.only:
        if not any(part.name.startswith(name) for part in PARTS):
            parser.error(f"no part is named {name!r}; --list lists them")
    folder = Path(os.environ.get(RESULTS_VARIABLE) or "gpu-results").resolve()
    for name in (LINES, LOG, TABLE):
        (folder / name).unlink(missing_ok=True)
    # Modules of this repository are found from its root.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    seconds = float(os.environ.get("GPU_SECONDS") or _SECONDS)
    runner = Runner(folder, seconds, [str(python.make(ROOT / ".gpu"))], environment)
    succeeded = runner.run([part for part in PARTS if part.name.startswith(tuple(options.only))])
    lines = load(folder)
    missed = [line for line in lines if line.met is False]
    met = sum(line.met is True for line in lines)
    print(f"\n{met} bars met, {len(missed)} missed; {folder / TABLE} has all results")
    for line in missed:
        print(f"  {line}")
    sys.exit(not succeeded)


if __name__ == "__main__":
    main()
