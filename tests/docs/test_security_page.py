"""docs/security.md lists the layers of the sandbox and what each stops."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from logitport_server.config import ServerConfig
from logitport_server.sandbox import LAYER_NAMES, Limits
from logitport_server.sandbox.attempts import ATTEMPTS, Attempt

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()


def rows_of(header: str) -> list[list[str]]:
    """The table below a heading row, cell by cell, without code marks."""
    lines = PAGE[PAGE.index(header) :].splitlines()[2:]
    table = lines[: next((at for at, line in enumerate(lines) if not line.startswith("|")), len(lines))]
    return [[cell.strip().strip("`") for cell in line[1:-1].split("|")] for line in table]


def defines(path: str, name: str) -> bool:
    tree = ast.parse((ROOT / path).read_text())
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in ast.walk(tree))


def test_every_threat_names_existing_tests() -> None:
    table = rows_of("| attacker | attempt | defence | tests |")
    assert len(table) > 20
    for *_, shown_by in table:
        named = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", shown_by)
        assert named, shown_by
        for path, name in named:
            assert (ROOT / path).is_file(), path
            assert not name or defines(path, name), f"{path}::{name}"


def test_every_class_of_attack_is_listed() -> None:
    assert all(f"tests/attacks/{path.name}" in PAGE for path in (ROOT / "tests" / "attacks").glob("test_*.py"))


def cell_of(attempt: Attempt, layer: str) -> str:
    if frozenset() in attempt.stopped_by:
        return "always"
    if frozenset({layer}) in attempt.stopped_by:
        return "alone"
    return "together" if any(layer in layers for layers in attempt.stopped_by) else ""


def test_every_layer_is_listed() -> None:
    assert [row[0] for row in rows_of("| layer | what it does")] == list(LAYER_NAMES)


def test_the_table_of_attempts_is_the_list_of_attempts() -> None:
    table = rows_of(f"| attempt | {' | '.join(LAYER_NAMES)} |")
    assert table == [[attempt.what, *(cell_of(attempt, layer) for layer in LAYER_NAMES)] for attempt in ATTEMPTS]


def test_the_limits_are_the_limits() -> None:
    shown = {row[0].partition(",")[0]: row[1] for row in rows_of("| what | default | option |")}
    limits, config = Limits(), ServerConfig()
    assert shown["memory of a worker"] == f"{config.worker_memory_bytes >> 30} GiB"
    assert shown["threads"] == str(config.worker_threads)
    assert shown["open files"] == str(limits.open_files)
    assert shown["temporary files"].startswith(f"{limits.temporary_bytes >> 20} MiB")
