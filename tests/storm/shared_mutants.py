"""Mutants of code that two trees share, and what each tree's tests kill: `python -m tests.storm.shared_mutants`.

It compares the tests of an earlier tree with those of this one. `draw` draws mutants, by topic, from functions whose
code is equal in both trees, even if their modules have other names. `run` takes the file that it writes: each mutant
runs the tests near its module, with a limit of CPU time. It changes files of the trees, which must have no changes,
and restores them. Each tree has an environment of its own in `.venv`; cosmic-ray is needed in the one that draws.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from tests.storm import near_tests
from tests.storm.mutants import ROOT, changes_code, mutated, places, remove_annotations

if TYPE_CHECKING:
    from tests.storm.near_tests import Outcome

# Of each topic: the modules in this tree, and the folders of tests that mirror them in both trees.
TOPICS = {
    "session": (
        [
            *(f"client/logitport/session/{name}*.py" for name in ("", "connection/", "requests/", "steps/")),
            *(
                f"server/logitport_session/{name}/*.py"
                for name in ("admissions", "engine_session", "requests", "steps")
            ),
        ],
        ["server/session", *(f"client/session/{name}" for name in ("connection", "requests", "steps"))],
    ),
    "wire": (
        [
            "client/logitport/system/*frame*.py",
            "client/logitport/session/transports/*.py",
            "server/logitport_server/transports/*.py",
        ],
        ["server/transports", "client/session/transports", "client/system"],
    ),
    "registry policy": (
        [
            f"server/logitport_server/registry/{name}.py"
            for name in ("change", "known_keys", "policy", "quarantine", "trusted_keys", "view")
        ],
        ["server/registry"],
    ),
    "verifier": (["client/logitport_programs/verifier.py", "client/logitport_programs/rules/*.py"], ["programs"]),
    "worker protocol": (
        [
            *(f"server/logitport_server/worker/{name}.py" for name in ("call_loop", "messages", "packing", "replies")),
            "server/logitport_server/executors/calls/*.py",
            "server/logitport_server/executors/worker_processes/worker_process.py",
            "server/logitport_server/principal_process/worker_messages.py",
        ],
        ["server/worker", "server/executors"],
    ),
    "choice of servers": (
        ["client/logitport/servers/*.py", "client/logitport/session/failover/*.py"],
        ["client/servers", "client/session/failover"],
    ),
}
_PRODUCT = ("client", "server")


@dataclass(frozen=True)
class Place:
    """A place that an operator changes.

    Attributes:
        path: of the file, from the root of its tree.
        line: of the place.
        occurrence: number of the place among those of the operator in the file.
    """

    path: str
    line: int
    occurrence: int


@dataclass(frozen=True)
class SharedMutant:
    """The same change in two trees.

    Attributes:
        topic: a key of the topics.
        operator: its name in cosmic-ray.
        function: qualified name.
        before, after: the place in the earlier tree, and in this one.
        was, becomes: the line in this tree before and after the change.
    """

    topic: str
    operator: str
    function: str
    before: Place
    after: Place
    was: str = ""
    becomes: str = ""


@dataclass(frozen=True)
class Function:
    """A function's lines, and its code without docstrings and annotations."""

    path: str
    name: str
    first: int
    last: int
    code: str


def draw(earlier: Path, seed: int, count: int) -> list[SharedMutant]:
    """Draw `count` mutants of each topic from the functions that the earlier tree also has."""
    matches = _by_code(earlier)
    drawn: dict[str, list[SharedMutant]] = {}
    for topic in TOPICS:
        random = Random(f"{seed} {topic}")
        candidates = [
            (function, start, changes)
            for path in sorted({path for pattern in TOPICS[topic][0] for path in ROOT.glob(pattern)})
            for function, start, changes in _shared_places(str(path.relative_to(ROOT)), matches)
        ]
        random.shuffle(candidates)
        found = drawn.setdefault(topic, [])
        for function, (line, _), changes in candidates:
            if len(found) == count:
                break
            operator, occurrence = random.choice(changes)
            after = Place(function.path, line, occurrence)
            mutant = _in_both(earlier, topic, operator, function, after, matches[function.code])
            if mutant is not None:
                found.append(mutant)
    # One of each topic in turn: a run that ends early has compared all topics.
    return [mutant for turn in itertools.zip_longest(*drawn.values()) for mutant in turn if mutant is not None]


def _by_code(root: Path) -> dict[str, list[Function]]:
    found: dict[str, list[Function]] = {}
    for folder in _PRODUCT:
        for path in sorted((root / folder).rglob("*.py")):
            for function in functions(root, str(path.relative_to(root))):
                found.setdefault(function.code, []).append(function)
    return found


def _shared_places(
    path: str, matches: dict[str, list[Function]]
) -> list[tuple[Function, tuple[int, int], list[tuple[str, int]]]]:
    shared = [function for function in functions(ROOT, path) if function.code in matches]
    found = []
    for start, changes in sorted(places(ROOT / path).items()):
        inside = [function for function in shared if function.first <= start[0] <= function.last]
        if inside:
            found.append((inside[-1], start, changes))
    return found


def functions(root: Path, path: str) -> list[Function]:
    """The functions of a file, an outer one before those inside it."""
    return _functions((root / path).read_text(), path)


@cache
def _functions(source: str, path: str) -> list[Function]:
    found: list[Function] = []

    def visit(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{name}.{child.name}".lstrip(".")
                if not isinstance(child, ast.ClassDef):
                    first = min([child.lineno, *(one.lineno for one in child.decorator_list)])
                    found.append(Function(path, inner, first, child.end_lineno or first, _code(child)))
                visit(child, inner)
            else:
                visit(child, name)

    visit(ast.parse(source), "")
    return found


def _code(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    tree = ast.parse(ast.unparse(function))
    remove_annotations(tree)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and ast.get_docstring(node) is not None
        ):
            node.body[0] = ast.Pass()
    return ast.unparse(tree)


def _in_both(
    earlier: Path, topic: str, operator: str, function: Function, after: Place, others: list[Function]
) -> SharedMutant | None:
    """Return the mutant with its place in the earlier tree; None if it changes nothing, or has no such place."""
    source = (ROOT / after.path).read_text()
    changed = mutated(source, operator, after.occurrence)
    if not changes_code(source, changed):
        return None
    code = _mutated_code(changed, function)
    at = after.line - 1
    was, becomes = source.splitlines()[at].strip(), changed.splitlines()[at].strip()
    for other in sorted(others, key=lambda one: (one.path != function.path, one.name != function.name)):
        text = (earlier / other.path).read_text()
        for start, changes in sorted(places(earlier / other.path).items()):
            for name, occurrence in changes if other.first <= start[0] <= other.last else ():
                if name == operator and _mutated_code(mutated(text, name, occurrence), other) == code:
                    before = Place(other.path, start[0], occurrence)
                    return SharedMutant(topic, operator, function.name, before, after, was, becomes)
    return None


def _mutated_code(source: str, function: Function) -> str:
    """The changed function's code: operators never add a line."""
    named = [one for one in _functions(source, function.path) if one.name == function.name]
    return next((one.code for one in named if abs(one.first - function.first) <= 1), "")


def run(mutant: SharedMutant, side: str, tree: Path, cpu_seconds: float, launcher: list[str]) -> Outcome:
    """Return what the tests near a mutant's module make of it in the tree of a side."""
    place: Place = getattr(mutant, side)
    path = tree / place.path
    original = path.read_text()
    tests = near_tests.near(tree, place.path, TOPICS[mutant.topic][1])
    try:
        path.write_text(mutated(original, mutant.operator, place.occurrence))
        return near_tests.outcome(tree, tests, cpu_seconds, launcher)
    finally:
        path.write_text(original)


def read(path: Path) -> list[SharedMutant]:
    found = []
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        places_of = {side: Place(**fields[side]) for side in ("before", "after")}
        found.append(SharedMutant(**{**fields, **places_of}))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.storm.shared_mutants", description=__doc__)
    parser.add_argument("command", choices=["draw", "run"])
    parser.add_argument("file", type=Path, help="the mutants, one JSON object a line")
    parser.add_argument("--before", type=Path, required=True, help="the earlier tree")
    parser.add_argument("--after", type=Path, default=ROOT, help="run: a tree with the code of this one")
    parser.add_argument("--side", choices=["before", "after"], default="after", help="run: whose tests")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=15, help="draw: so many of each topic")
    parser.add_argument("--cpu-seconds", type=float, default=120, help="run: of the tests of one mutant")
    parser.add_argument("--launcher", default="", help="run: a command that starts the tests, such as `nice -n 19`")
    options = parser.parse_args()
    if options.command == "draw":
        drawn = draw(options.before.resolve(), options.seed, options.count)
        options.file.write_text("".join(json.dumps(asdict(mutant)) + "\n" for mutant in drawn))
        return
    tree = getattr(options, options.side).resolve()
    for mutant in read(options.file):
        result = run(mutant, options.side, tree, options.cpu_seconds, options.launcher.split())
        sys.stdout.write(json.dumps({**asdict(mutant), "side": options.side, **result._asdict()}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
