"""The writer still works, so that it writes the fixtures of the next release."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.stored.__main__ import PARTS, write
from tests.stored.reading import VERSIONS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(900)
def test_every_part_is_written(tmp_path: Path) -> None:
    write(tmp_path / "next")
    assert {path.name for path in (tmp_path / "next").iterdir()} == set(PARTS)
    for version in VERSIONS:
        assert {path.name for path in version.iterdir()} <= set(PARTS)
        for part in set(PARTS) & {path.name for path in version.iterdir() if path.is_dir()}:
            written = {path.relative_to(tmp_path / "next" / part) for path in (tmp_path / "next" / part).rglob("*")}
            assert {path.relative_to(version / part) for path in (version / part).rglob("*")} <= written
