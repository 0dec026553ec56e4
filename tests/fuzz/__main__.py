"""Coverage-guided fuzzing, one target after another, each in its own process: `python -m tests.fuzz`.

libFuzzer keeps its corpus in .fuzz/<target>. Inputs that broke a target are files .fuzz/<target>-*. Move them to
tests/fuzz/findings/<target>: every run of the test suite repeats them.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import subprocess
import sys
from pathlib import Path

_FOLDER = Path(".fuzz")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help="targets to fuzz; all by default")
    parser.add_argument("--seconds", type=int, default=60, help="time for each target, in seconds")
    parser.add_argument("--only", help=argparse.SUPPRESS)  # this program runs itself with it
    options = parser.parse_args()
    if options.only:
        return _fuzz(options.only, options.seconds)
    import tests.fuzz.targets

    selected = options.targets or list(tests.fuzz.targets.TARGETS)
    broken = []
    for target in selected:
        print(f"{target}: {options.seconds} s", flush=True)
        command = [sys.executable, "-m", "tests.fuzz", "--only", target, "--seconds", str(options.seconds)]
        if subprocess.run(command, check=False).returncode:
            broken.append(target)
    if broken:
        print(f"broken: {', '.join(broken)}; the inputs are in {_FOLDER}/")
    return len(broken)


def _fuzz(target: str, seconds: int) -> int:
    import atheris

    # Import torch uninstrumented: it is not fuzzed, and instrumenting it is slow.
    import torch  # noqa: F401

    with atheris.instrument_imports(include=["logitport", "logitport_server", "pickletools"]):
        from tests.fuzz import seeds, targets

    logging.disable()
    corpus = _FOLDER / target
    corpus.mkdir(parents=True, exist_ok=True)
    for data in seeds.corpora()[target]:
        (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    options = [
        f"-max_total_time={seconds}",
        "-max_len=65536",
        "-timeout=10",
        "-rss_limit_mb=4096",
        "-print_final_stats=1",
    ]
    atheris.Setup(
        [sys.argv[0], *options, f"-artifact_prefix={_FOLDER / target}-", str(corpus)], targets.TARGETS[target]
    )
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
