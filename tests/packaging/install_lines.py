"""Install commands of the project: those that `make` runs, and those in the documentation and the image."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

_TARGETS = (
    "demo", "test", "lint", "bench", "bench-cuda", "bench-fleet", "test-peers", "test-engines", "proto",
    "dashboard", "docs", "screenshots", "wheels", "dist", "worker-python", "check-install",
)  # fmt: skip
_DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "benchmarks/*.md",
    "deploy/README.md",
    "deploy/Containerfile",
    "docs/**/*.md",
    "examples/**/*.md",
)

# The command up to the end of the line, of the inline code, or of the shell command.
_COMMAND = re.compile(r"\bpip (?:install|download) +(?P<arguments>[^`\n]+?)(?= *(?:&&|\|\||;|`|\n|$))", re.MULTILINE)

# Options that only choose an index, or where to store files.
_IGNORED_WITH_VALUE = ("--index-url", "-d")
_IGNORED = ("-q",)


class InstallLine(NamedTuple):
    """One install command.

    Attributes:
        source: "make", or the path of the document.
        arguments: of `pip install`, without the options that do not matter for a resolution.
    """

    source: str
    arguments: tuple[str, ...]


def install_lines() -> list[InstallLine]:
    """Return each install command once, in the order of its first use."""
    printed = subprocess.run(
        ["make", "-n", "-B", *_TARGETS], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.replace("\\\n", " ")
    found = [InstallLine("make", arguments) for arguments in commands(printed)]
    for pattern in _DOCUMENTS:
        for path in sorted(ROOT.glob(pattern)):
            text = path.read_text().replace("${EXTRAS}", _default_extras())
            found += [InstallLine(str(path.relative_to(ROOT)), arguments) for arguments in commands(text)]
    return list({line.arguments: line for line in reversed(found)}.values())[::-1]


def commands(text: str) -> list[tuple[str, ...]]:
    """Return the arguments of each `pip install` and `pip download` in a text, as the shell passes them."""
    found = []
    for match in _COMMAND.finditer(text):
        arguments = iter(_expanded(match["arguments"]))
        kept = []
        for argument in arguments:
            if argument in _IGNORED_WITH_VALUE:
                next(arguments)
            elif argument not in _IGNORED:
                kept.append(argument)
        if not any(argument.endswith(".whl") for argument in kept):  # a file that make has built
            found.append(tuple(kept))
    return found


def _expanded(arguments: str) -> list[str]:
    if "$(" not in arguments:
        return shlex.split(arguments, comments=True)
    printed = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {arguments}"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return printed.splitlines()


def _default_extras() -> str:
    (extras,) = re.findall(r"^ARG EXTRAS=(.*)$", (ROOT / "deploy" / "Containerfile").read_text(), re.MULTILINE)
    return str(extras).strip('"')
