"""The fast tests: they reach every area, and a run does not import the files that it leaves out."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from logitport_server.cli.root import COMMANDS
from tests.tiers import FAST, MARKED_FOLDERS, ROOT, SLOW, is_left_out, marks_of

if TYPE_CHECKING:
    from pathlib import Path

# What logitport promises in each area has a fast test from one end to the other; the slow ones have the details.
FAST_TESTS = {
    "every dialect, phases, loops and reports": "compatibility/test_example_engine.py::test_tokens_are_the_native_ones",
    "every transport": "end_to_end/test_quickstart.py::test_a_session",
    "programs": "end_to_end/test_programs.py::test_random_sessions_equal_the_interpreter",
    "recordings": "end_to_end/test_recording.py::test_histories_rewinds_and_drafts",
    "training": "docs/test_training_page.py::test_the_examples",
    "every layer of the sandbox": "sandbox/test_attempts.py::test_active_layers_stop_exactly_their_attempts",
    "a server that accepts no code": "end_to_end/test_flag_off.py::test_register",
    "logitport serve": "end_to_end/test_quickstart.py::test_register_and_apply",
    "logitport ray": "ray/test_load.py::test_a_server_with_a_session",  # what needs Ray itself is in tests/fleet
    "logitport status": "server/cli/test_servers.py::test_a_server",
    "logitport top": "server/cli/test_servers.py::test_a_server",
    "logitport sessions": "server/cli/test_servers.py::test_a_server",
    "logitport processors": "server/cli/test_servers.py::test_a_server",
    "logitport drain": "server/cli/test_servers.py::test_a_server_that_drains",
    "logitport token": "server/cli/test_cli.py::test_a_created_token_is_accepted_by_the_server",
    "logitport payload": "server/cli/test_inspect_program.py::test_a_program",
    "logitport play": "play/test_command.py::test_the_command",
    "logitport check": "server/cli/test_check_command.py::test_a_broken_law",
    "logitport replay": "server/cli/test_replay.py::test_differences_step_by_step",
    "logitport doctor": "server/cli/test_doctor.py::test_an_attempt_that_gets_through_is_marked",
}


@pytest.mark.parametrize("area", FAST_TESTS)
def test_an_area_has_a_fast_test(area: str) -> None:
    path, _, name = FAST_TESTS[area].partition("::")
    (test,) = [
        each
        for each in ast.parse((ROOT / path).read_text()).body
        if isinstance(each, ast.FunctionDef) and each.name == name
    ]
    assert marks_of(ROOT / path) == []
    assert "pytest.mark.slow" not in map(ast.unparse, test.decorator_list)


def test_every_command_is_an_area() -> None:
    assert {f"logitport {command}" for command in COMMANDS} == {area for area in FAST_TESTS if "logitport " in area}


@pytest.mark.parametrize("path", sorted(SLOW))
def test_a_listed_file_exists_and_is_slow(path: str) -> None:
    assert (ROOT / path).exists()
    assert marks_of(ROOT / path) == ["slow"]


@pytest.mark.parametrize("path", [ROOT / "client" / "test_new.py", ROOT.parent / "examples" / "test_new.py"])
def test_a_new_file_is_fast(path: Path) -> None:
    assert marks_of(path) == []
    assert not is_left_out(path, FAST)


@pytest.mark.parametrize("folder", MARKED_FOLDERS)
def test_a_folder_has_its_mark(folder: str) -> None:
    assert (ROOT / folder).is_dir()
    assert marks_of(ROOT / folder / "test_new.py") == [folder]


@pytest.mark.parametrize("path", ["peers", "fleet/test_kill.py", *sorted(SLOW)[:1]])
def test_only_a_run_that_selects_none_of_its_tests_leaves_a_file_out(path: str) -> None:
    assert is_left_out(ROOT / path, FAST)
    assert not is_left_out(ROOT / path, "")
    assert not is_left_out(ROOT / path, marks_of(ROOT / path)[0])
