"""Fuzz one target after the other, led by coverage, each in a process of its own: `python -m tests.fuzz`.

What libFuzzer found worth keeping lies in .fuzz/<target>; what broke a target lies beside it, and belongs into
tests/fuzz/findings/<target>, which every run of the test-suite repeats.
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
    parser.add_argument("targets", nargs="*", help="all of them, if none is given")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--only", help=argparse.SUPPRESS)  # how this file calls itself
    given = parser.parse_args()
    if given.only:
        return _fuzz(given.only, given.seconds)
    import tests.fuzz.targets

    wanted = given.targets or list(tests.fuzz.targets.TARGETS)
    broken = []
    for target in wanted:
        print(f"{target}: {given.seconds} s", flush=True)
        command = [sys.executable, "-m", "tests.fuzz", "--only", target, "--seconds", str(given.seconds)]
        if subprocess.run(command, check=False).returncode:
            broken.append(target)
    if broken:
        print(f"broken: {', '.join(broken)}; what broke them lies in {_FOLDER}/")
    return len(broken)


def _fuzz(target: str, seconds: int) -> int:
    import atheris

    # torch is no part of what is fuzzed, and slow to instrument.
    import torch  # noqa: F401

    with atheris.instrument_imports(include=["logitport", "logitport_server", "pickletools"]):
        from tests.fuzz import seeds, targets

    logging.disable()
    corpus = _FOLDER / target
    corpus.mkdir(parents=True, exist_ok=True)
    for octets in seeds.corpora()[target]:
        (corpus / hashlib.sha256(octets).hexdigest()[:16]).write_bytes(octets)
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
