"""The list of slow test files names files that exist."""

from __future__ import annotations

import pytest

from tests.tiers import ROOT, SLOW_FILES, is_fleet, is_slow


@pytest.mark.parametrize("path", sorted(SLOW_FILES))
def test_a_listed_file_exists_and_is_slow(path: str) -> None:
    assert (ROOT / path).is_file()
    assert is_slow(ROOT / path)


def test_a_new_file_is_fast() -> None:
    assert not is_slow(ROOT / "client" / "test_new.py")
    assert not is_slow(ROOT.parent / "examples" / "test_new.py")


def test_files_of_one_folder_test_fleets() -> None:
    assert is_fleet(ROOT / "fleet" / "test_kill.py")
    assert not is_fleet(ROOT / "ray" / "test_scaling.py")
