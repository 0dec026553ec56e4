"""The command: `python -m benchmarks.gpu`. Needs no network, and no package beyond torch, Triton and `.gpu-wheels`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.gpu import peer_files, python
from benchmarks.gpu.parts import PARTS, Part
from benchmarks.gpu.results import LINES, LOG, TABLE, load
from benchmarks.gpu.runner import RESULTS_VARIABLE, Runner

_SECONDS = 480.0


def main() -> None:
    """Run the parts."""
    options = _parse()
    if options.list:
        sys.exit("".join(f"{part.name:<16}{part.seconds:>4.0f} s  {part.does}\n" for part in PARTS).rstrip())
    folder = options.results.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name in (LINES, LOG, TABLE):
        (folder / name).unlink(missing_ok=True)
    interpreter = python.make(python.ROOT / ".gpu")
    environment = {**_environment(), **peer_files.variables()}
    succeeded = Runner(folder, options.seconds, [str(interpreter)], environment).run(options.only)
    _summarize(folder)
    sys.exit(not succeeded)


def _environment() -> dict[str, str]:
    """The environment of the parts: modules of this repository are found from its root."""
    return {**os.environ, "PYTHONPATH": str(python.ROOT), "HF_HUB_OFFLINE": "1"}


def _summarize(folder: Path) -> None:
    lines = load(folder)
    missed = [line for line in lines if line.met is False]
    print(
        f"\n{sum(line.met is True for line in lines)} bars met, {len(missed)} missed; {folder / TABLE} has all results"
    )
    for line in missed:
        print(f"  {line}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    seconds = float(os.environ.get("GPU_SECONDS") or _SECONDS)
    results = Path(os.environ.get(RESULTS_VARIABLE) or "gpu-results")
    parser.add_argument("--seconds", type=float, default=seconds, help="of the whole run (GPU_SECONDS)")
    parser.add_argument("--results", type=Path, default=results, help=f"the folder of the results ({RESULTS_VARIABLE})")
    parser.add_argument("--only", nargs="+", metavar="PART", help="names of parts, or their beginnings")
    parser.add_argument("--list", action="store_true", help="list the parts")
    options = parser.parse_args()
    options.only = _chosen(parser, options.only)
    return options


def _chosen(parser: argparse.ArgumentParser, names: list[str] | None) -> list[Part]:
    if names is None:
        return list(PARTS)
    for name in names:
        if not any(part.name.startswith(name) for part in PARTS):
            parser.error(f"no part is named {name!r}; --list lists them")
    return [part for part in PARTS if part.name.startswith(tuple(names))]


if __name__ == "__main__":
    main()
