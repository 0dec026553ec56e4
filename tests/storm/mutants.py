"""Mutants that the suites do not kill, and what the storm makes of them: `python -m tests.storm.mutants`.

`draw` draws mutants of the modules below from a seed. `test` takes the file that it writes: each mutant runs the tests
nearest to its module, then the fast tier. It appends the outcome of each to a second file, and goes on after the last
one in it. `storm` takes that file and runs the storm for each mutant that passed, and writes what it finds beside it. A
reader may give such a mutant a key `unseen`, with the reason why the storm does not show it: the behaviour is that of
the original, or only a metric or the process list differs. It then runs no storm, and counts as not found. Both
commands change files of this checkout, which must have no changes, and restore them: use a clone with an environment of
its own.

The operators are those of cosmic-ray, which must be installed. A place in the code is drawn first, then one of its
operators, because some have a hundred variants. Mutants that change annotations alone are left out.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from tests.storm import near_tests
from tests.tiers import FAST

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
_MODULES = {
    "session": [
        "client/logitport/session/*.py",
        *(
            f"client/logitport/session/{name}/*.py"
            for name in ("connection", "failover", "logits", "requests", "steps")
        ),
        "server/logitport_session/*.py",
        "server/logitport_session/admissions/*.py",
        "server/logitport_session/engine_session/*.py",
        "server/logitport_session/processor_sources/*.py",
        "server/logitport_session/requests/*.py",
        "server/logitport_session/resources/*.py",
        "server/logitport_session/steps/*.py",
        "server/logitport_session/telemetry/*.py",
        "server/logitport_session/trust/*.py",
    ],
    "registry": ["server/logitport_server/registry/*.py", "server/logitport_server/registry/stores/*.py"],
    "quota": ["server/logitport_server/access/*.py", "server/logitport_server/principal_process/kernel_limits.py"],
    "wire": [
        "client/logitport/system/*frames.py",
        "client/logitport/session/transports/*.py",
        "server/logitport_server/front_door/relay.py",
        "server/logitport_server/principal_process/*.py",
        "server/logitport_server/transports/*.py",
    ],
    "worker": ["server/logitport_server/executors/**/*.py", "server/logitport_server/worker/*.py"],
}
_PYTEST = ["pytest", "-q", "-x", "-n", "2", "--dist", "loadfile", "-m", FAST]
_NEAR_SECONDS, _SUITE_SECONDS, _STORM_SECONDS = 900, 3600, 600
_PIECES = 4  # of the storm's time, each with a seed of its own: a finding ends the search


@dataclass(frozen=True)
class Mutant:
    """A change of one place.

    Attributes:
        topic: a key of the modules.
        path: of the file, from the root.
        line: of the place.
        operator: its name in cosmic-ray.
        occurrence: number of the place among those of the operator in the file.
        was, becomes: the line before and after.
    """

    topic: str
    path: str
    line: int
    operator: str
    occurrence: int
    was: str = ""
    becomes: str = ""

    def text(self) -> str:
        """The file with the change."""
        return mutated((ROOT / self.path).read_text(), self.operator, self.occurrence)


def mutated(source: str, operator: str, occurrence: int) -> str:
    """Return a source with one change. Raises ValueError if the operator has no such place."""
    from cosmic_ray.mutating import mutate_code  # type: ignore[import-not-found]
    from cosmic_ray.plugins import get_operator  # type: ignore[import-not-found]

    changed = mutate_code(source, get_operator(operator)(), occurrence)
    if changed is None:
        raise ValueError(f"{operator} has no place {occurrence}")
    return str(changed)


def draw(seed: int, count: int) -> list[Mutant]:
    """Draw mutants, the same number for each topic up to one."""
    random, drawn = Random(seed), []
    for number in range(count):
        topic = list(_MODULES)[number % len(_MODULES)]
        while True:
            path = random.choice(_files(topic))
            found = places(ROOT / path)
            if not found:
                continue
            line, _ = place = random.choice(sorted(found))
            operator, occurrence = random.choice(found[place])
            mutant = _with_lines(Mutant(topic, path, line, operator, occurrence))
            if mutant is not None and mutant not in drawn:
                drawn.append(mutant)
                break
    return drawn


def _files(topic: str) -> list[str]:
    found = {path for pattern in _MODULES[topic] for path in ROOT.glob(pattern)}
    # A large file is drawn as often as it has lines.
    return sorted(str(path.relative_to(ROOT)) for path in found for _ in path.read_text().splitlines())


@cache
def places(path: Path) -> dict[tuple[int, int], list[tuple[str, int]]]:
    """The operators, with the number of the place, by the line and column of each place."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path  # type: ignore[import-not-found]
    from cosmic_ray.plugins import get_operator, operator_names  # type: ignore[import-not-found]

    tree, found = get_ast_from_path(path), defaultdict(list)
    for name in operator_names():
        operator_class = get_operator(name)
        if operator_class.arguments():
            continue
        operator = operator_class()
        positions = (start for node in ast_nodes(tree) for start, _ in operator.mutation_positions(node))
        for occurrence, start in enumerate(positions):
            found[start].append((name, occurrence))
    return found


def _with_lines(mutant: Mutant) -> Mutant | None:
    """Return the mutant with its lines; None if it does the same as the original, or cannot be made."""
    before = (ROOT / mutant.path).read_text()
    try:
        after = mutant.text()
    except AttributeError:  # cosmic-ray's ExceptionReplacer, of `except a.b`
        return None
    if not changes_code(before, after):
        return None
    at = mutant.line - 1
    was, becomes = before.splitlines()[at].strip(), after.splitlines()[at].strip()
    return Mutant(**{**asdict(mutant), "was": was, "becomes": becomes})


def changes_code(before: str, after: str) -> bool:
    """Whether two sources differ in more than annotations, and the second one can be compiled."""
    try:
        return _without_annotations(before) != _without_annotations(after)
    except SyntaxError:
        return False


def _without_annotations(source: str) -> str:
    tree = ast.parse(source)
    remove_annotations(tree)
    return ast.dump(tree)


def remove_annotations(tree: ast.AST) -> None:
    """Replace all annotations by None."""
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            if getattr(node, field, None) is not None:
                setattr(node, field, ast.Constant(None))


def tested(mutant: Mutant) -> dict[str, object]:
    """Return the tests that fail with a mutant; nothing if all pass."""
    with _planted(mutant):
        suites = [(near_tests.importing(ROOT, mutant.path), _NEAR_SECONDS), (["tests"], _SUITE_SECONDS)]
        for tests, seconds in suites:
            if tests and not _passes([*_PYTEST, *tests], seconds):
                return {"killed": "tests", "by": tests}
        return {"killed": ""}


def stormed(mutant: Mutant, minutes: float, seed: int) -> dict[str, object]:
    """Return the options of the storm that has findings with a mutant, and none without it; nothing if none has."""
    for piece in range(_PIECES):
        began, part = time.monotonic(), str(minutes / _PIECES)
        options = ["--minutes", part, "--seed", str(seed + piece), "--shrink-minutes", "0"]
        with _planted(mutant):
            found = _findings(options, minutes)
        if found and not _findings(options, minutes):
            seconds = round(time.monotonic() - began)
            return {"killed": "storm", "by": options, "seconds": seconds, "findings": found}
    return {"killed": "", "stormed": minutes}


def _findings(options: list[str], minutes: float) -> list[str]:
    """Run the storm. Return the first line of each finding, or how it failed."""
    command = [sys.executable, "-m", "tests.storm", *options]
    seconds = _STORM_SECONDS + 60 * minutes
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return [f"no end within {seconds:.0f} s"]
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    return found or ([done.stderr[-500:]] if done.returncode else [])


@contextmanager
def _planted(mutant: Mutant) -> Iterator[None]:
    path = ROOT / mutant.path
    original = path.read_text()
    try:
        path.write_text(mutant.text())
        yield
    finally:
        path.write_text(original)


def _passes(module: list[str], seconds: float) -> bool:
    command = [sys.executable, "-m", *module]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, timeout=seconds, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def test_all(mutants: list[Mutant], results: Path, survivors: int) -> None:
    """Test the mutants in their order, from the first without a result, until so many have passed.

    Raises ValueError if the results are not of these mutants.
    """
    lines = _read(results) if results.exists() else []
    for mutant, result in zip(mutants, lines, strict=False):
        if {**result, **asdict(mutant)} != result:
            raise ValueError(f"{results} has a result of another mutant in place of {mutant}: give another file")
        survivors -= result["killed"] != "tests"
    for mutant in mutants[len(lines) :]:
        if survivors <= 0:
            return
        result = tested(mutant)
        survivors -= result["killed"] != "tests"
        with results.open("a") as file:
            file.write(json.dumps({**asdict(mutant), **result}) + "\n")


def storm_all(results: Path, minutes: float, seed: int) -> None:
    """Run the storm for each mutant that passed the tests, has no result, and is not `unseen`."""
    lines = _read(results)
    for number, line in enumerate(lines):
        if line["killed"] or "unseen" in line or "stormed" in line:
            continue
        mutant = Mutant(**{one.name: line[one.name] for one in fields(Mutant)})
        line.update(stormed(mutant, minutes, seed + 10 * number))
        results.write_text("".join(json.dumps(one) + "\n" for one in lines))


def _read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.storm.mutants", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    of_draw, of_test, of_storm = (commands.add_parser(name) for name in ("draw", "test", "storm"))
    for command in (of_draw, of_test):
        command.add_argument("file", type=Path, help="the mutants, one JSON object a line")
    for command in (of_test, of_storm):
        command.add_argument("results", type=Path, help="the same lines with what killed each mutant")
    for command in (of_draw, of_storm):
        command.add_argument("--seed", type=int, default=1)
    of_draw.add_argument("--count", type=int, default=100)
    of_test.add_argument("--survivors", type=int, default=20, help="end after so many that the tests do not kill")
    of_storm.add_argument("--minutes", type=float, default=10, help="of the storm for each")
    options = parser.parse_args()
    match options.command:
        case "draw":
            lines = [json.dumps(asdict(mutant)) + "\n" for mutant in draw(options.seed, options.count)]
            options.file.write_text("".join(lines))
        case "test":
            if not _passes([*_PYTEST, "tests"], _SUITE_SECONDS):
                sys.exit("the fast tests fail without a mutant: run them first")
            test_all([Mutant(**line) for line in _read(options.file)], options.results, options.survivors)
        case "storm":
            storm_all(options.results, options.minutes, options.seed)


if __name__ == "__main__":
    main()
